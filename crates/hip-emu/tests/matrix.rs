//! Matrix instructions: fragments are loaded as the ISA documents lay them out, and the product must be the matrices'.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Source, arg, open_with_compiler};

/// An instruction.
struct Shape {
    device: &'static str,
    call: &'static str,
    /// Rows and columns.
    n: usize,
    k: usize,
    /// Elements of a lane's fragment of A, and of B.
    held: usize,
    /// The row of a lane's value `i`, in C.
    row: &'static str,
}

/// Multiplies matrices of small whole numbers, of which every sum is exact.
#[track_caller]
fn check(shape: &Shape, element: &str, fragment: &str, sum: &str) {
    let Shape { device, call, n, k, held, row } = *shape;
    let lanes = if device == "gfx942" { 64 } else { 32 };
    let settings = [("HIP_EMU_DEVICE", device), ("HIP_EMU_ORDER", "random")];
    let Some(hip) = open_with_compiler(&settings) else { return };
    let text = format!(
        r#"
        typedef {element} T;
        typedef {sum} R;
        #ifndef VECTOR
        #define VECTOR(NAME, T, N) typedef T NAME __attribute__((ext_vector_type(N)))
        #endif
        VECTOR(fragment_t, T, {held});
        VECTOR(sums_t, R, {values});
        template <typename F> F as(fragment_t x) {{ return __builtin_bit_cast(F, x); }}
        extern "C" __global__ void k(const T *a, const T *b, R *d) {{
            unsigned lane = threadIdx.x;
            fragment_t fa, fb;
            sums_t c;
            for (unsigned j = 0; j < {held}; j++) {{
                unsigned k = {k} == {held} ? j : lane / {n} * {held} + j;
                fa[j] = a[lane % {n} * {k} + k];
                fb[j] = b[k * {n} + lane % {n}];
            }}
            for (unsigned i = 0; i < {values}; i++) c[i] = (R)i;
            c = {call};
            for (unsigned i = 0; i < {values}; i++) d[{row} * {n} + lane % {n}] = c[i] - (R)i;
        }}"#,
        values = n * n / lanes,
    );
    let text = text.replace("FRAGMENT", fragment);
    let kernel = hip.function(hip.module(&Source { text: &text, ..Source::default() }), "k");
    let (a, b) = (|i: usize, l: usize| (i * 3 + l) % 5, |l: usize, j: usize| (l * 2 + j * 7) % 3);
    let encode = |value: usize| -> Vec<u8> {
        match element {
            "_Float16" => [0u16, 0x3c00, 0x4000, 0x4200, 0x4400][value].to_le_bytes().to_vec(),
            "short" => ((value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
            _ => vec![value as u8],
        }
    };
    let a_bytes: Vec<u8> = (0..n * k).flat_map(|i| encode(a(i / k, i % k))).collect();
    let b_bytes: Vec<u8> = (0..k * n).flat_map(|i| encode(b(i / n, i % n))).collect();
    let (pa, pb, pd) = (hip.upload(&a_bytes), hip.upload(&b_bytes), hip.malloc(n * n * 4));
    hip.ok(hip.launch(kernel, 1, lanes as u32, 0, std::ptr::null_mut(), &[arg(&pa), arg(&pb), arg(&pd)]));
    let product = hip.download::<[u8; 4]>(pd, n * n);
    for i in 0..n {
        for j in 0..n {
            let expected: usize = (0..k).map(|l| a(i, l) * b(l, j)).sum();
            let got = match sum {
                "float" => f32::from_le_bytes(product[i * n + j]) as usize,
                _ => i32::from_le_bytes(product[i * n + j]) as usize,
            };
            assert_eq!(got, expected, "{call} at {i}, {j}");
        }
    }
    assert_eq!(hip.violations(), "");
}

const GFX11: &str = "(2 * i + lane / 16)";
const GFX12: &str = "(lane / 16 * 8 + i)";
const MFMA_16: &str = "(lane / 16 * 4 + i)";
const MFMA_32: &str = "(i / 4 * 8 + lane / 32 * 4 + i % 4)";

#[test]
fn wmma_of_gfx11() {
    let shape = |call| Shape { device: "gfx1100", call, n: 16, k: 16, held: 16, row: GFX11 };
    check(&shape("__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(fa, fb, c)"), "_Float16", "", "float");
    check(&shape("__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(fa, fb, c)"), "short", "", "float");
    let call = "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, as<FRAGMENT>(fa), true, as<FRAGMENT>(fb), c, false)";
    check(&shape(call), "signed char", "int4", "int");
}

#[test]
fn wmma_of_gfx12() {
    let shape = |call| Shape { device: "gfx1201", call, n: 16, k: 16, held: 8, row: GFX12 };
    check(&shape("__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(fa, fb, c)"), "_Float16", "", "float");
    check(&shape("__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(fa, fb, c)"), "short", "", "float");
    let call = "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, as<FRAGMENT>(fa), true, as<FRAGMENT>(fb), c, false)";
    check(&shape(call), "signed char", "int2", "int");
}

#[test]
fn mfma_of_gfx942() {
    let shape = |call, n, k, held, row| Shape { device: "gfx942", call, n, k, held, row };
    let call = "__builtin_amdgcn_mfma_f32_16x16x16f16(fa, fb, c, 0, 0, 0)";
    check(&shape(call, 16, 16, 4, MFMA_16), "_Float16", "", "float");
    let call = "__builtin_amdgcn_mfma_f32_32x32x8f16(fa, fb, c, 0, 0, 0)";
    check(&shape(call, 32, 8, 4, MFMA_32), "_Float16", "", "float");
    let call = "__builtin_amdgcn_mfma_f32_32x32x8bf16_1k(fa, fb, c, 0, 0, 0)";
    check(&shape(call, 32, 8, 4, MFMA_32), "short", "", "float");
    let call = "__builtin_amdgcn_mfma_i32_16x16x32_i8(as<FRAGMENT>(fa), as<FRAGMENT>(fb), c, 0, 0, 0)";
    check(&shape(call, 16, 32, 8, MFMA_16), "signed char", "long", "int");
    let call = "__builtin_amdgcn_mfma_i32_32x32x16_i8(as<FRAGMENT>(fa), as<FRAGMENT>(fb), c, 0, 0, 0)";
    check(&shape(call, 32, 16, 8, MFMA_32), "signed char", "long", "int");
}
