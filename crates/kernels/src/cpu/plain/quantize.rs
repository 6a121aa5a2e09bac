//! Rows rounded to int8 in groups of 32.

use portolan_device::cpu::Team;

use crate::{
    Launch, StepShape,
    cpu::access::{Rows, values},
};

/// The definition of [`crate::Op::QuantizeRows`].
///
/// For each group of 32 (the last one filled up with zeros): the scale `d` is `max|x| / 127`, a code is `x / d` rounded
/// to the nearest integer, ties to even, and the sum is `d` times that of the codes. A group of zeros (or of numbers
/// so small that `d` is 0) has codes and scale 0. A NaN makes the scale NaN.
///
/// The sum is not that of the x, though that would be nearer to it: a weight `s*c + b` must multiply the same rounded
/// numbers with both of its parts. The codes c are all positive, so the rounding's errors in `s*c` add up; those in `b`
/// take most of that away again. With exact sums SmolLM2's logits were off by twice as much.
pub(super) fn quantize_rows(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = Rows::<u8>::new(&launch.outputs[0].slice, rows, cols.div_ceil(32) * 40);
    team.run(rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        quantize_row(&x[row * cols..(row + 1) * cols], unsafe { y.row_mut(row) });
    });
}

/// One row: all codes, then all scales, then all sums.
pub(crate) fn quantize_row(x: &[f32], out: &mut [u8]) {
    let groups = x.len().div_ceil(32);
    let (codes, floats) = out.split_at_mut(groups * 32);
    let (scales, sums) = floats.split_at_mut(groups * 4);
    codes.fill(0);
    for (g, x) in x.chunks(32).enumerate() {
        let max = x.iter().fold(0f32, |max, x| if x.abs() > max || x.is_nan() { x.abs() } else { max });
        let scale = max / 127.0;
        if scale != 0.0 {
            for (code, x) in codes[g * 32..].iter_mut().zip(x) {
                *code = ((x / scale).round_ties_even() as i8).cast_unsigned();
            }
        }
        scales[g * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        let sum: i32 = codes[g * 32..][..32].iter().map(|&c| i32::from(c.cast_signed())).sum();
        sums[g * 4..][..4].copy_from_slice(&(scale * sum as f32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::access::Q8Row;

    fn quantized(x: &[f32]) -> Vec<u8> {
        let mut out = vec![0xaa; x.len().div_ceil(32) * 40];
        quantize_row(x, &mut out);
        out
    }

    #[test]
    fn layout_of_a_row() {
        let mut x = vec![0.0; 40];
        (x[0], x[1], x[32], x[39]) = (127.0, -1.5, -2.0, 1.0);
        let bytes = quantized(&x);
        let row = Q8Row::new(&bytes, 0, 40);
        assert_eq!(row.codes.len(), 64);
        assert_eq!((row.codes[0], row.codes[1]), (127, -2), "a tie goes to the even code");
        assert_eq!((row.codes[32], row.codes[39]), (-127, 64), "63.5 goes to 64");
        assert!(row.codes[40..].iter().all(|&c| c == 0), "filled up with zeros");
        assert_eq!((row.scales, row.sums), (&[1.0, 2.0 / 127.0][..], &[125.0, 2.0 / 127.0 * -63.0][..]));
    }

    #[test]
    fn zeros_and_what_is_not_a_number() {
        assert!(quantized(&[0.0; 32]).iter().all(|&b| b == 0));
        let tiny = quantized(&[1e-45; 32]);
        assert!(tiny[..36].iter().all(|&b| b == 0), "no division by a scale of 0");
        for bad in [f32::NAN, f32::INFINITY] {
            let bytes = quantized(&[1.0, bad, 2.0]);
            assert!(!Q8Row::new(&bytes, 0, 3).scales[0].is_finite(), "{bad} shows");
        }
    }

    proptest! {
        #[test]
        fn error_is_at_most_half_a_step(
            x in proptest::collection::vec(prop_oneof![-1e3f32..1e3, -1e-3f32..1e-3, Just(0.0)], 1..200),
            exponent in -60i32..60,
        ) {
            let x: Vec<f32> = x.into_iter().map(|x| x * 2f32.powi(exponent)).collect();
            let bytes = quantized(&x);
            let row = Q8Row::new(&bytes, 0, x.len());
            for (i, &x) in x.iter().enumerate() {
                let (q, d) = (f64::from(row.codes[i]), f64::from(row.scales[i / 32]));
                // The quotient is rounded to f32 (half of 2^-23 of at most 127) before it is rounded to a code.
                let allowed = d * (0.5 + 127.0 * 2f64.powi(-24)) + f64::from(f32::MIN_POSITIVE);
                prop_assert!((f64::from(x) - q * d).abs() <= allowed, "{x} became {q} * {d}");
            }
            for (g, codes) in row.codes.chunks(32).enumerate() {
                let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
                prop_assert_eq!(row.sums[g], row.scales[g] * sum as f32);
            }
        }
    }
}
