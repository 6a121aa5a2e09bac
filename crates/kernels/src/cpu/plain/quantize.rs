//! Rows rounded to integers in groups of 32.

use portolan_device::cpu::Team;

use crate::{
    Launch, Op, StepShape,
    cpu::access::{Rows, values},
    row_codes::{GROUP, RowCodes},
};

/// The definition of [`crate::Op::QuantizeRows`]; [`RowCodes`] says what a row becomes.
///
/// The sum is not that of the x, though that would be nearer to it: a weight `s*c + b` must multiply the same rounded
/// numbers with both of its parts. The codes c are all positive, so the rounding's errors in `s*c` add up; those in `b`
/// take most of that away again. With int8 and exact sums SmolLM2's logits were off by twice as much.
pub(super) fn quantize_rows(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::QuantizeRows(how) = launch.op else { return };
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = Rows::<u8>::new(&launch.outputs[0].slice, rows, how.row_bytes(cols));
    team.run(rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        quantize_row(&x[row * cols..(row + 1) * cols], how, unsafe { y.row_mut(row) });
    });
}

/// One row: all codes, then all scales, then all sums.
pub(crate) fn quantize_row(x: &[f32], how: RowCodes, out: &mut [u8]) {
    let (groups, group_codes) = (x.len().div_ceil(GROUP), GROUP * how.planes());
    let (codes, floats) = out.split_at_mut(groups * group_codes);
    let (scales, sums) = floats.split_at_mut(groups * 4);
    codes.fill(0);
    for (g, x) in x.chunks(GROUP).enumerate() {
        let max = x.iter().fold(0f32, |max, x| if x.abs() > max || x.is_nan() { x.abs() } else { max });
        let scale = max / how.largest() as f32;
        let mut sum = 0;
        if scale != 0.0 {
            let (high, low) = codes[g * group_codes..][..group_codes].split_at_mut(GROUP);
            for (i, x) in x.iter().enumerate() {
                // A conversion makes 0 of what is no number. A scale of few bits may be rounded down so far that the
                // quotient is larger than the largest code.
                let code = ((x / scale).round_ties_even() as i32).clamp(-how.largest(), how.largest());
                match how {
                    RowCodes::Int8 => high[i] = (code as i8).cast_unsigned(),
                    RowCodes::Int15 => {
                        let upper = (code + 64) >> 7;
                        high[i] = (upper as i8).cast_unsigned();
                        low[i] = ((code - 128 * upper) as i8).cast_unsigned();
                    }
                }
                sum += code;
            }
        }
        scales[g * 4..][..4].copy_from_slice(&scale.to_le_bytes());
        sums[g * 4..][..4].copy_from_slice(&(scale * sum as f32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::access::IntRow;

    const BOTH: [RowCodes; 2] = [RowCodes::Int8, RowCodes::Int15];

    fn quantized(x: &[f32], how: RowCodes) -> Vec<u8> {
        let mut out = vec![0xaa; how.row_bytes(x.len())];
        quantize_row(x, how, &mut out);
        out
    }

    #[test]
    fn layout_of_a_row() {
        let mut x = vec![0.0; 40];
        (x[0], x[1], x[32], x[39]) = (127.0, -1.5, -2.0, 1.0);
        let bytes = quantized(&x, RowCodes::Int8);
        assert_eq!(bytes.len(), 2 * 40);
        let row = IntRow::new(&bytes, 0, 40, RowCodes::Int8);
        assert_eq!((row.code(0), row.code(1)), (127, -2), "a tie goes to the even code");
        assert_eq!((row.code(32), row.code(39)), (-127, 64), "63.5 goes to 64");
        assert!((40..64).all(|i| row.code(i) == 0), "filled up with zeros");
        assert_eq!((row.scales, row.sums), (&[1.0, 2.0 / 127.0][..], &[125.0, 2.0 / 127.0 * -63.0][..]));

        x[0] = 16256.0;
        let bytes = quantized(&x, RowCodes::Int15);
        assert_eq!(bytes.len(), 2 * 72);
        assert_eq!((bytes[0], bytes[32]), (127, 0), "high codes, then low ones");
        assert_eq!((bytes[1], bytes[33].cast_signed()), (0, -2));
        let row = IntRow::new(&bytes, 0, 40, RowCodes::Int15);
        assert_eq!((row.code(0), row.code(1)), (16256, -2));
        assert_eq!((row.code(32), row.code(39)), (-16256, 8128));
        assert_eq!(
            (row.scales, row.sums),
            (&[1.0, 2.0 / 16256.0][..], &[16254.0, 2.0 / 16256.0 * -8128.0][..])
        );
    }

    #[test]
    fn zeros_and_what_is_not_a_number() {
        for how in BOTH {
            assert!(quantized(&[0.0; 32], how).iter().all(|&b| b == 0));
            let tiny = quantized(&[1e-45; 32], how);
            assert!(tiny[..tiny.len() - 4].iter().all(|&b| b == 0), "no division by a scale of 0");
            for bad in [f32::NAN, f32::INFINITY] {
                let bytes = quantized(&[1.0, bad, 2.0], how);
                assert!(!IntRow::new(&bytes, 0, 3, how).scales[0].is_finite(), "{bad} shows");
            }
        }
    }

    proptest! {
        #[test]
        fn error_is_at_most_half_a_step(
            x in proptest::collection::vec(prop_oneof![-1e3f32..1e3, -1e-3f32..1e-3, Just(0.0)], 1..200),
            exponent in -60i32..60,
            how in prop_oneof![Just(RowCodes::Int8), Just(RowCodes::Int15)],
        ) {
            let x: Vec<f32> = x.into_iter().map(|x| x * 2f32.powi(exponent)).collect();
            let bytes = quantized(&x, how);
            let row = IntRow::new(&bytes, 0, x.len(), how);
            for (i, &x) in x.iter().enumerate() {
                let (q, d) = (f64::from(row.code(i)), f64::from(row.scales[i / 32]));
                // The quotient is rounded to f32 (half of 2^-23 of the largest code) before it is rounded to a code.
                let allowed = d * (0.5 + f64::from(how.largest()) * 2f64.powi(-24)) + f64::from(f32::MIN_POSITIVE);
                prop_assert!((f64::from(x) - q * d).abs() <= allowed, "{x} became {q} * {d}");
            }
            for g in 0..x.len().div_ceil(32) {
                let sum: i32 = (0..32).map(|i| row.code(g * 32 + i)).sum();
                prop_assert!((0..32).all(|i| row.code(g * 32 + i).abs() <= how.largest()));
                prop_assert_eq!(row.sums[g], row.scales[g] * sum as f32);
            }
        }
    }
}
