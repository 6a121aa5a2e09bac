//! Kernels of the tree, through kernels-hip/dialect.h, against the same sums on the host.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Ptr, Source, arg, open_with_compiler};

const HEADERS: [(&str, &str); 3] = [
    ("dialect.cuh", include_str!("../../../kernels-hip/dialect.h")),
    ("common.cuh", include_str!("../../../kernels-cuda/common.cuh")),
    ("vectors.cuh", include_str!("../../../kernels-cuda/vectors.cuh")),
];
const NORM: &str = include_str!("../../../kernels-cuda/norm.cu");
const ELEMENTWISE: &str = include_str!("../../../kernels-cuda/elementwise.cu");
const BLOCK: u32 = 128;

/// Device, order, lanes, how much is checked: races in shared memory under full checks.
const WAYS: [(&str, &str, u32, &str); 4] = [
    ("gfx1151", "forward", 32, "full"),
    ("gfx1151", "random", 32, "strict"),
    ("gfx942", "reverse", 64, "strict"),
    ("gfx942", "random", 64, "full"),
];

/// Numbers between -2 and 2 that are no pattern.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |i: u32| ((i.wrapping_mul(2654435761) ^ seed) >> 8 & 0xffff) as f32 / 16384.0 - 2.0;
    (0..count as u32).map(number).collect()
}

fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `Args` of norm.cu.
#[repr(C)]
struct NormArgs {
    a: Ptr,
    b: Ptr,
    weight: Ptr,
    s: Ptr,
    y: Ptr,
    norms: u32,
    width: u32,
    eps: f32,
    aligned: u32,
}

#[track_caller]
fn norms(width: usize, team_is_block: bool) {
    const NORMS: usize = 5;
    let (a, b, weight) = (numbers(NORMS * width, 1), numbers(NORMS * width, 2), numbers(width, 3));
    let a: Vec<u16> = a.iter().map(|&x| bf16_bits(x)).collect();
    for (device, order, lanes, check) in WAYS {
        let Some(hip) = open_with_compiler(&[
            ("HIP_EMU_DEVICE", device),
            ("HIP_EMU_ORDER", order),
            ("HIP_EMU_CHECK", check),
        ]) else {
            return;
        };
        let team = if team_is_block { BLOCK } else { lanes };
        let options = [
            format!("-DLANES={lanes}"),
            format!("-DTEAM={team}"),
            format!("-DBLOCK={BLOCK}"),
            format!("-DARGS_SIZE={}", size_of::<NormArgs>()),
            "-DCHUNKS=1".to_owned(),
            "-DADD=1".to_owned(),
            "-DA_T=bf16".to_owned(),
            "-DB_T=float".to_owned(),
            "-DW_T=float".to_owned(),
            "-DS_T=float".to_owned(),
            "-DY_T=float".to_owned(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let module = hip.module(&Source { text: NORM, headers: &HEADERS, options: &options });
        let function = hip.function(module, "add_rms_norm");
        let args = NormArgs {
            a: hip.upload(&a),
            b: hip.upload(&b),
            weight: hip.upload(&weight),
            s: hip.malloc(NORMS * width * 4),
            y: hip.malloc(NORMS * width * 4),
            norms: NORMS as u32,
            width: width as u32,
            eps: 1e-5,
            aligned: u32::from(width.is_multiple_of(8)),
        };
        let grid = (NORMS as u32).div_ceil(BLOCK / team);
        hip.ok(hip.launch(function, grid, BLOCK, 0, std::ptr::null_mut(), &[arg(&args)]));
        let (s, y) = (hip.download::<f32>(args.s, NORMS * width), hip.download::<f32>(args.y, NORMS * width));
        for row in 0..NORMS {
            let sum = |i: usize| bf16_value(a[row * width + i]) + b[row * width + i];
            let squares: f64 = (0..width).map(|i| f64::from(sum(i)).powi(2)).sum();
            let scale = 1.0 / (squares / width as f64 + 1e-5).sqrt();
            for i in 0..width {
                assert_eq!(s[row * width + i], sum(i));
                let expected = f64::from(sum(i)) * scale * f64::from(weight[i]);
                let error = (f64::from(y[row * width + i]) - expected).abs();
                // A sum of some hundred squares in f32, and three products.
                assert!(
                    error <= 1e-5 * expected.abs().max(1e-3),
                    "{device} {order} {width} row {row} at {i}: {error}"
                );
            }
        }
        assert_eq!(hip.violations(), "");
    }
}

#[test]
fn bitsandbytes_93_norms_by_waves_and_by_blocks() {
    norms(256, false);
    norms(999, true);
}

/// `Args` of elementwise.cu.
#[repr(C)]
struct ElementArgs {
    x: Ptr,
    b: Ptr,
    y: Ptr,
    elements: u64,
    function: u32,
    aligned: u32,
}

#[test]
fn elements_are_multiplied_in_f16() {
    let (x, b) = (numbers(1003, 4), numbers(1003, 5));
    let Some(hip) = open_with_compiler(&[]) else { return };
    let size = format!("-DARGS_SIZE={}", size_of::<ElementArgs>());
    let options = ["-DLANES=32", "-DBLOCK=128", &size, "-DMUL=1", "-DX_T=float", "-DB_T=float", "-DY_T=f16"];
    let module = hip.module(&Source { text: ELEMENTWISE, headers: &HEADERS, options: &options });
    let function = hip.function(module, "mul_elements");
    let args = ElementArgs {
        x: hip.upload(&x),
        b: hip.upload(&b),
        y: hip.malloc(1003 * 2),
        elements: 1003,
        function: 0,
        aligned: 1,
    };
    hip.ok(hip.launch(function, 1003u32.div_ceil(8 * 128), 128, 0, std::ptr::null_mut(), &[arg(&args)]));
    for (i, &bits) in hip.download::<u16>(args.y, 1003).iter().enumerate() {
        let (sign, exponent, fraction) =
            (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
        let value = match exponent {
            0 => fraction * 2f32.powi(-14),
            _ => (1.0 + fraction) * 2f32.powi(exponent - 15),
        };
        let value = if sign == 1 { -value } else { value };
        let expected = x[i] * b[i];
        // Half of the last of eleven bits; below 2^-14 of a fixed step.
        let step = expected.abs().max(2f32.powi(-14)) * 2f32.powi(-11);
        assert!((value - expected).abs() <= step, "{i}: {value} {expected}");
    }
    assert_eq!(hip.violations(), "");
}

/// Rows as int8 with their scales: exchanges between neighbouring lanes.
#[test]
fn rows_are_quantized() {
    #[repr(C)]
    struct Args {
        x: Ptr,
        y: Ptr,
        rows: u32,
        cols: u32,
        aligned: u32,
        unused: u32,
    }
    const ROWS: usize = 3;
    const COLS: usize = 64;
    let x = numbers(ROWS * COLS, 6);
    for (device, order, lanes, check) in WAYS {
        let Some(hip) = open_with_compiler(&[
            ("HIP_EMU_DEVICE", device),
            ("HIP_EMU_ORDER", order),
            ("HIP_EMU_CHECK", check),
        ]) else {
            return;
        };
        let size = format!("-DARGS_SIZE={}", size_of::<Args>());
        let lanes = format!("-DLANES={lanes}");
        let options = [&*lanes, "-DBLOCK=128", &size, "-DQUANTIZE=1", "-DX_T=float"];
        let module = hip.module(&Source { text: ELEMENTWISE, headers: &HEADERS, options: &options });
        let function = hip.function(module, "quantize_rows");
        let row_bytes = COLS + COLS / 32 * 8;
        let y = hip.malloc(ROWS * row_bytes);
        let args = Args { x: hip.upload(&x), y, rows: ROWS as u32, cols: COLS as u32, aligned: 1, unused: 0 };
        hip.ok(hip.launch(function, 1, 128, 0, std::ptr::null_mut(), &[arg(&args)]));
        let y = hip.download::<u8>(y, ROWS * row_bytes);
        for (row, codes) in y.chunks_exact(row_bytes).enumerate() {
            let float = |i: usize| f32::from_le_bytes(codes[COLS + 4 * i..][..4].try_into().unwrap());
            for (group, x) in x[row * COLS..][..COLS].chunks_exact(32).enumerate() {
                let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
                let codes: Vec<i8> = codes[group * 32..][..32].iter().map(|&c| c as i8).collect();
                assert_eq!(float(group), scale);
                assert!(
                    codes.iter().zip(x).all(|(&code, x)| f32::from(code) == (x / scale).round_ties_even())
                );
                let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
                assert_eq!(float(2 + group), scale * sum as f32);
            }
        }
        assert_eq!(hip.violations(), "");
    }
}
