//! Quantizing rows of f32 as `mx.quantize` does: the same codes, scales and biases, bit for bit.
//!
//! The rules are those of MLX 0.32.4 (`mlx/backend/cpu/quantized.cpp` and `fp_quantize` in `mlx/ops.cpp` of
//! <https://github.com/ml-explore/mlx>; documented at
//! <https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html>). All arithmetic is f32,
//! and only what is stored is rounded to the type of the scales.
//!
//! **Affine**, with `n = 2^bits - 1` and the group's `min` and `max`:
//! - the *edge* is whichever of the two is farther from zero, and `scale = max((max - min) / n, 1e-7)`, taken
//!   negative where the edge is `max`, so that codes count from the edge;
//! - `q0 = round(edge / scale)`. Unless it is 0, `scale = edge / q0` and `bias = edge`, so that zero is exactly the
//!   code `-q0`; else the bias is 0;
//! - `code = clamp(round((w - bias) / scale), 0, n)`, halves to even.
//!
//! **MXFP4**, groups of 32: the scale is `2^e` with `e = ceil(log2(max|w| / 6))`, or `e = 0` in a group of zeros; the
//! code is the nearest E2M1 to `w / 2^e`, the smaller of two that are equally near, and never minus zero. (Releases before
//! rounded the logarithm to the nearest; kernels for GPUs, in `mlx/backend/metal/kernels/fp4.h`, take the even code of two
//! that are equally near, and keep the sign of zero.)
//!
//! Two things differ from MLX, both for numbers that no weight has: what is not finite is an error here and becomes
//! NaN or zero there, and an MXFP4 scale below `2^-127` is `2^-127` here and wraps around to NaN there.

use half::{bf16, f16};
use portolan_device::DType;

use crate::{BlockScale, Element, Encoding, decode::e8m0};

/// A number that cannot be quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadValue {
    /// Its row, counted from the first that was given.
    pub row: usize,
    /// Its place in the row, or the first place of its group.
    pub column: usize,
    /// The number; a finite one is the scale or the bias of its group that the type of scales cannot hold.
    pub value: f32,
}

/// Whether [`quantize_rows`] makes this encoding: affine with 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, and
/// MXFP4.
pub const fn can_quantize(encoding: Encoding) -> bool {
    match encoding {
        Encoding::Affine { bits, group, meta } => {
            matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128) && meta.is_float()
        }
        Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 } => true,
        _ => false,
    }
}

/// Quantizes rows of `k` numbers into the planes of `encoding`, each of `out` as long as that plane is for so many
/// rows.
///
/// # Errors
/// The first number that is not finite, or whose group has a scale or bias beyond the type of scales.
///
/// # Panics
/// When `encoding` is none of [`can_quantize`], `k` no multiple of its group, or a plane too short.
pub fn quantize_rows(
    encoding: Encoding,
    k: usize,
    values: &[f32],
    out: &mut [&mut [u8]],
) -> Result<(), BadValue> {
    assert!(can_quantize(encoding) && k.is_multiple_of(encoding.group()), "rows of {k} to {encoding}");
    if k == 0 {
        return Ok(());
    }
    let group = encoding.group();
    let code_bytes = group * encoding.code_bits() / 8;
    for (g, values) in values.chunks_exact(group).enumerate() {
        let bad = |column: usize, value: f32| BadValue {
            row: g * group / k,
            column: g * group % k + column,
            value,
        };
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(bad(i, values[i]));
        }
        match (encoding, &mut *out) {
            (Encoding::Affine { bits, meta, .. }, [codes, scales, biases]) => {
                let codes = &mut codes[g * code_bytes..(g + 1) * code_bytes];
                let (scale, bias) = affine(bits, values, codes);
                for (plane, value) in [(scales, scale), (biases, bias)] {
                    let size = meta.size();
                    store(meta, value, &mut plane[g * size..(g + 1) * size]).ok_or(bad(0, value))?;
                }
            }
            (_, [codes, scales]) => {
                scales[g] = mxfp4(values, &mut codes[g * code_bytes..(g + 1) * code_bytes]);
            }
            (_, planes) => panic!("{encoding} has not {} planes", planes.len()),
        }
    }
    Ok(())
}

/// Rounds to the type of scales; none where that is not finite.
fn store(meta: DType, value: f32, out: &mut [u8]) -> Option<()> {
    let finite = match meta {
        DType::F16 => {
            let value = f16::from_f32(value);
            out.copy_from_slice(&value.to_le_bytes());
            value.is_finite()
        }
        DType::BF16 => {
            let value = bf16::from_f32(value);
            out.copy_from_slice(&value.to_le_bytes());
            value.is_finite()
        }
        _ => {
            out.copy_from_slice(&value.to_le_bytes());
            value.is_finite()
        }
    };
    finite.then_some(())
}

/// Codes of one group, and its scale and bias before they are rounded.
fn affine(bits: u8, values: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let n = ((1u32 << bits) - 1) as f32;
    let (min, max) =
        values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &v| (a.min(v), b.max(v)));
    let from_min = min.abs() > max.abs();
    let scale = ((max - min) / n).max(1e-7);
    let (scale, edge) = if from_min { (scale, min) } else { (-scale, max) };
    let q0 = (edge / scale).round_ties_even();
    let (scale, bias) = if q0 != 0.0 { (edge / q0, edge) } else { (scale, 0.0) };
    for (values, out) in values.chunks_exact(8).zip(codes.chunks_exact_mut(bits as usize)) {
        let mut packed = 0u64;
        for (i, &value) in values.iter().enumerate() {
            // Clamped to whole numbers before it is rounded, which comes to the same; then adding 1.5 * 2^23 leaves
            // the number, rounded with halves to even, in the low bits.
            let code = ((value - bias) / scale).clamp(0.0, n) + 12_582_912.0;
            packed |= u64::from(code.to_bits() & 0xff) << (i * bits as usize);
        }
        out.copy_from_slice(&packed.to_le_bytes()[..bits as usize]);
    }
    (scale, bias)
}

/// Codes of one group of 32, and its scale.
fn mxfp4(values: &[f32], codes: &mut [u8]) -> u8 {
    let most = values.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 6.0;
    let exponent = if most == 0.0 { 0.0 } else { most.log2().ceil() };
    let scale = (exponent.clamp(-127.0, 127.0) as i32 + 127) as u8;
    let step = e8m0(scale);
    for (pair, out) in values.chunks_exact(2).zip(codes) {
        *out = e2m1_code(pair[0] / step) | e2m1_code(pair[1] / step) << 4;
    }
    scale
}

/// The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
fn e2m1_code(value: f32) -> u8 {
    const HALFWAY: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = HALFWAY.iter().map(|&half| u8::from(value.abs() > half)).sum::<u8>();
    if value < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_e2m1(value: f32, expected: u8) {
        assert_eq!(e2m1_code(value), expected, "{value}");
    }

    #[test]
    fn e2m1_takes_the_smaller_of_two_that_are_equally_near() {
        for (value, code) in [(0.0, 0), (0.25, 0), (0.26, 1), (0.75, 1), (1.25, 2), (1.75, 3), (2.5, 4)] {
            check_e2m1(value, code);
            check_e2m1(-value, if code == 0 { 0 } else { code | 8 });
        }
        check_e2m1(3.5, 5);
        check_e2m1(5.0, 6);
        check_e2m1(-5.1, 15);
        check_e2m1(6.0, 7);
    }

    const AFFINE: Encoding = Encoding::Affine { bits: 4, group: 32, meta: DType::F16 };

    #[track_caller]
    fn refused(encoding: Encoding, at: usize, value: f32, row: usize, column: usize) {
        let mut values = vec![0.5; 2 * 64];
        values[at] = value;
        let (mut a, mut b, mut c) = (vec![0; 64], vec![0; 8], vec![0; 8]);
        let mut planes: Vec<&mut [u8]> = vec![&mut a, &mut b, &mut c];
        planes.truncate(encoding.planes().len());
        let found = quantize_rows(encoding, 64, &values, &mut planes).unwrap_err();
        assert_eq!((found.row, found.column), (row, column));
    }

    #[test]
    fn what_is_not_finite_is_refused_and_named() {
        let mxfp4 = Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 };
        for encoding in [AFFINE, mxfp4] {
            refused(encoding, 3, f32::NAN, 0, 3);
            refused(encoding, 70, f32::INFINITY, 1, 6);
            refused(encoding, 127, f32::NEG_INFINITY, 1, 63);
        }
        // The bias is the group's edge, and f16 ends at 65504.
        refused(AFFINE, 97, 70_000.0, 1, 32);
    }

    #[test]
    fn what_mlx_does_not_quantize_is_not_quantized() {
        let affine = |bits, group| can_quantize(Encoding::Affine { bits, group, meta: DType::BF16 });
        assert!([2, 3, 4, 5, 6, 8].iter().all(|&bits| affine(bits, 64)));
        assert!(![0, 1, 7, 9].iter().any(|&bits| affine(bits, 64)));
        assert!(affine(4, 32) && affine(4, 128) && !affine(4, 16) && !affine(4, 256));
        assert!(!can_quantize(Encoding::Dense(DType::F32)));
    }
}
