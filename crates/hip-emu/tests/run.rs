//! Kernels run, and give the right results at 32 and 64 lanes and in every thread order.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Source, arg, open_with_compiler};

const NONE: common::Ptr = std::ptr::null_mut();

/// Devices of both widths, each in all orders.
const WAYS: [(&str, &str); 6] = [
    ("gfx1151", "forward"),
    ("gfx1151", "reverse"),
    ("gfx1151", "random"),
    ("gfx942", "forward"),
    ("gfx942", "reverse"),
    ("gfx942", "random"),
];

#[test]
fn a_vector_is_added() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = r#"
        extern "C" __global__ void add(const float *a, const float *b, float *c, unsigned n) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) c[i] = a[i] + b[i];
        }"#;
    let module = hip.module(&Source { text, ..Source::default() });
    let add = hip.function(module, "add");
    let n = 1000u32;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (a, b, c) = (hip.upload(&a), hip.upload(&a), hip.malloc(n as usize * 4));
    hip.ok(hip.launch(add, n.div_ceil(128), 128, 0, NONE, &[arg(&a), arg(&b), arg(&c), arg(&n)]));
    let sums: Vec<f32> = hip.download(c, n as usize);
    assert!(sums.iter().enumerate().all(|(i, &sum)| sum == 2.0 * i as f32));
    assert_eq!(hip.violations(), "");
}

/// Sums of blocks by lane exchanges, shared memory and an atomic, at both widths and in all orders.
#[test]
fn blocks_are_reduced() {
    let text = r#"
        extern "C" __global__ void __launch_bounds__(256) sum(const int *x, int *sums, int *total, unsigned n) {
            __shared__ int parts[32];
            int value = 0;
            for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += x[i];
            for (int mask = warpSize / 2; mask > 0; mask /= 2) value += __shfl_xor(value, mask);
            if (threadIdx.x % warpSize == 0) parts[threadIdx.x / warpSize] = value;
            __syncthreads();
            if (threadIdx.x == 0) {
                int all = 0;
                for (unsigned i = 0; i < blockDim.x / warpSize; i++) all += parts[i];
                sums[blockIdx.x] = all;
                atomicAdd(total, all);
            }
        }"#;
    let x: Vec<i32> = (0..5000).map(|i| i * 7 % 101).collect();
    for (device, order) in WAYS {
        let Some(hip) = open_with_compiler(&[("HIP_EMU_DEVICE", device), ("HIP_EMU_ORDER", order)]) else {
            return;
        };
        let sum = hip.function(hip.module(&Source { text, ..Source::default() }), "sum");
        let (n, input, sums, total) = (5000u32, hip.upload(&x), hip.malloc(6 * 4), hip.upload(&[0i32]));
        hip.ok(hip.launch(sum, 6, 256, 0, NONE, &[arg(&input), arg(&sums), arg(&total), arg(&n)]));
        assert_eq!(hip.download::<i32>(total, 1)[0], x.iter().sum::<i32>(), "{device} {order}");
        assert_eq!(hip.download::<i32>(sums, 6).iter().sum::<i32>(), x.iter().sum::<i32>());
        assert_eq!(hip.violations(), "");
    }
}

/// Every lane writes what an expression gives it; the host computes the same.
#[track_caller]
fn lanes(expression: &str, expected: impl Fn(u32, u32) -> i64) {
    let text = format!(
        r#"extern "C" __global__ void lanes(long long *out) {{
            unsigned lane = threadIdx.x % warpSize;
            (void)lane;
            out[threadIdx.x] = (long long)({expression});
        }}"#
    );
    let Some(hip) = open_with_compiler(&[]) else { return };
    let function = hip.function(hip.module(&Source { text: &text, ..Source::default() }), "lanes");
    for (device, order) in WAYS {
        hip.set("HIP_EMU_DEVICE", device);
        hip.set("HIP_EMU_ORDER", order);
        let width = if device == "gfx942" { 64 } else { 32 };
        let out = hip.malloc(128 * 8);
        hip.ok(hip.launch(function, 1, 128, 0, NONE, &[arg(&out)]));
        for (thread, &got) in (0..).zip(&hip.download::<i64>(out, 128)) {
            assert_eq!(
                got,
                expected(thread % width, width),
                "{expression}, {device} {order}, thread {thread}"
            );
        }
        assert_eq!(hip.violations(), "");
    }
}

#[test]
fn lanes_exchange_values() {
    let i = i64::from;
    lanes("__shfl_xor(lane * 3, 5)", |l, _| i((l ^ 5) * 3));
    lanes("__shfl_down((double)lane, 3)", |l, w| i(if l + 3 < w { l + 3 } else { l }));
    lanes("__shfl_up(lane, 2, 8)", |l, _| i(if l % 8 < 2 { l } else { l - 2 }));
    lanes("__shfl(lane, 9, 4)", |l, _| i(l / 4 * 4 + 1));
    lanes("__popcll(__ballot(lane % 3 == 0))", |_, w| i(w.div_ceil(3)));
    // In a branch only those lanes take part that take it.
    lanes("lane < 7 ? __popcll(__ballot(1)) : 0", |l, _| if l < 7 { 7 } else { 0 });
    lanes("lane % 2 ? __shfl_xor(lane, 2) : __shfl_xor(lane, 4)", |l, _| {
        i(if l % 2 == 1 { l ^ 2 } else { l ^ 4 })
    });
    lanes("__all(lane < 64) + __any(lane == 5)", |_, _| 2);
    lanes("__builtin_amdgcn_readfirstlane(lane + 4)", |_, _| 4);
    lanes("__builtin_amdgcn_ds_bpermute(4 * (lane ^ 1), lane)", |l, _| i(l ^ 1));
    lanes("__builtin_amdgcn_ds_permute(4 * (lane ^ 3), lane)", |l, _| i(l ^ 3));
    lanes("__builtin_amdgcn_mov_dpp(lane, 0xb1, 0xf, 0xf, true)", |l, _| i(l ^ 1));
    lanes("__builtin_amdgcn_update_dpp(-1, lane, 0x111, 0xf, 0xf, false)", |l, _| {
        if l % 16 == 0 { -1 } else { i(l - 1) }
    });
    lanes("__builtin_amdgcn_update_dpp(7, lane, 0x141, 0x1, 0xf, false)", |l, _| {
        if l / 16 == 0 { i(l / 8 * 8 + 7 - l % 8) } else { 7 }
    });
    lanes("__builtin_amdgcn_ds_swizzle(lane, 0x401f)", |l, _| i(l ^ 16));
    lanes("__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0))", |l, _| i(l));
    lanes("__syncthreads_count(lane < 5)", |_, w| i(5 * (128 / w)));
}

#[test]
fn builtins_compute_what_the_instructions_do() {
    lanes("__builtin_amdgcn_sdot4(0x80ff017f, 0x02020202, 10, false)", |_, _| 2 * (-128 - 1 + 1 + 127) + 10);
    lanes("__builtin_amdgcn_sudot4(true, 0xff, false, 0xff, 0, false)", |_, _| -255);
    lanes("__builtin_amdgcn_udot4(0xffu, 0xffu, 1u, false)", |_, _| 255 * 255 + 1);
    lanes("__builtin_amdgcn_sdot4(0x7f7f7f7f, 0x7f7f7f7f, 0x7fffffff, true)", |_, _| 0x7fff_ffff);
    lanes("__builtin_amdgcn_perm(0x88776655u, 0x44332211u, 0x0c040100u)", |_, _| 0x0055_2211);
    lanes("__builtin_amdgcn_perm(0x80000000u, 0u, 0x0d0b0a09u)", |_, _| 0xffff_0000u32.into());
    lanes("__builtin_amdgcn_alignbyte(0x44332211u, 0x88776655u, 1)", |_, _| 0x1188_7766);
    lanes("__byte_perm(0x44332211u, 0x88776655u, 0x7410u)", |_, _| 0x8855_2211u32.into());
    lanes("__float2int_rn(2.5f) + __float2int_rz(-1.9f) + __clz(1) + __ffs(8)", |_, _| 2 - 1 + 31 + 4);
    lanes("__float2int_rn(3e9f)", |_, _| i32::MAX.into());
}

#[test]
fn dynamic_shared_memory_and_structs_of_arguments() {
    let text = r#"
        struct Args { const float *x; float *y; float factor; unsigned n; };
        template <typename T> __device__ T *buffer() { extern __shared__ __align__(16) char bytes[]; return (T *)bytes; }
        extern "C" __global__ void turn(const Args args) {
            HIP_DYNAMIC_SHARED(float, tile)
            tile[threadIdx.x] = args.x[threadIdx.x] * args.factor;
            __syncthreads();
            args.y[threadIdx.x] = buffer<float>()[args.n - 1 - threadIdx.x];
        }"#;
    #[repr(C)]
    struct Args {
        x: common::Ptr,
        y: common::Ptr,
        factor: f32,
        n: u32,
    }
    let Some(hip) = open_with_compiler(&[]) else { return };
    let turn = hip.function(hip.module(&Source { text, ..Source::default() }), "turn");
    let x: Vec<f32> = (0..96).map(|i| i as f32).collect();
    let args = Args { x: hip.upload(&x), y: hip.malloc(96 * 4), factor: 2.0, n: 96 };
    hip.ok(hip.launch(turn, 1, 96, 96 * 4, NONE, &[arg(&args)]));
    let turned: Vec<f32> = x.iter().rev().map(|x| 2.0 * x).collect();
    assert_eq!(hip.download::<f32>(args.y, 96), turned);
    // The same through one buffer.
    hip.ok(hip.launch_packed(turn, 96, 96 * 4, &args, size_of::<Args>()));
    assert_eq!(hip.download::<f32>(args.y, 96), turned);
    assert_eq!(hip.violations(), "");
}

#[test]
fn a_wrong_text_gives_a_log() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = "extern \"C\" __global__ void k(int *p) {\n  p[0] = not_there;\n}";
    let log = hip.compile(&Source { text, ..Source::default() }).unwrap_err();
    assert!(log.contains("not_there") && log.contains("test.hip:2"), "{log}");
    let log = hip.compile(&Source { text: "#include \"nowhere.h\"", ..Source::default() }).unwrap_err();
    assert!(log.contains("nowhere.h"), "{log}");
}

#[test]
fn headers_and_defines_reach_the_text() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = "#include \"a/b.h\"\n#define ENTRY number\nextern \"C\" __global__ void ENTRY(int *p) { p[0] = B + N; }";
    let headers = [("a/b.h", "#pragma once\n#define B 40")];
    let options = ["-DN=2", "--offload-arch=gfx1151", "-O3"];
    let number = hip.function(hip.module(&Source { text, headers: &headers, options: &options }), "number");
    let p = hip.malloc(4);
    hip.ok(hip.launch(number, 1, 1, 0, NONE, &[arg(&p)]));
    assert_eq!(hip.download::<i32>(p, 1), [42]);
}
