use super::{super::rows8::Format, *};
use crate::{Activation, cpu::access::Q8Row};

/// Rows of k in int8, as [`crate::Op::QuantizeRows`] lays them out, with the sums of the rounded numbers.
fn q8_rows(codes: &[i8], scales: &[f32], k: usize) -> Vec<u8> {
    let groups = k.div_ceil(32);
    let mut out = Vec::new();
    for (codes, scales) in codes.chunks(k).zip(scales.chunks(groups)) {
        out.extend(codes.iter().map(|&c| c as u8));
        out.resize(out.len().next_multiple_of(40 * groups) - 8 * groups, 0);
        out.extend(scales.iter().flat_map(|s| s.to_le_bytes()));
        let sums = codes
            .chunks(32)
            .zip(scales)
            .map(|(c, s)| s * c.iter().map(|&c| i32::from(c)).sum::<i32>() as f32);
        out.extend(sums.flat_map(f32::to_le_bytes));
    }
    out
}

/// `x w^T` in f64 from int8 rows and decoded weights, with the sum of the magnitudes of what goes into it: scale and
/// bias of an affine group go in one by one, and may be much larger than the weight that they come to.
fn reference(encoding: Encoding, bytes: &[u8], rows: usize, w: &[f32], k: usize) -> Vec<(f64, f64)> {
    let parts = if let Encoding::Affine { bits, .. } = encoding { 0.1 * f64::from(1 << bits) } else { 0.0 };
    let mut out = Vec::new();
    for row in 0..rows {
        let x = Q8Row::new(bytes, row, k);
        for w in w.chunks(k) {
            let add = |(sum, size): (f64, f64), (i, &w): (usize, &f32)| {
                let x = f64::from(x.codes[i]) * f64::from(x.scales[i / 32]);
                (sum + f64::from(w) * x, size + (f64::from(w.abs()) + parts) * x.abs())
            };
            out.push(w.iter().enumerate().fold((0.0, 0.0), add));
        }
    }
    out
}

/// Of the sum of the magnitudes: f32 keeps 6e-8, and a few groups are added.
const TOLERANCE: f64 = 1e-6;

/// What a row is rounded to: -128 does not occur.
fn any_code(rng: &mut Rng) -> i8 {
    ((rng.bits() % 255) as i16 - 127) as i8
}

#[track_caller]
fn check(
    encoding: Encoding,
    n: usize,
    k: usize,
    rng: &mut Rng,
    code: fn(&mut Rng) -> u8,
    x: fn(&mut Rng) -> i8,
) {
    let most = 7;
    let weight = Weight::new(encoding, n, k, rng, code);
    let codes: Vec<i8> = (0..most * k).map(|_| x(rng)).collect();
    let scales: Vec<f32> = (0..most * k.div_ceil(32)).map(|_| rng.float().abs() * 0.02 + 1e-3).collect();
    let bytes = q8_rows(&codes, &scales, k);
    let expected = reference(encoding, &bytes, most, &weight.decoded(), k);

    let bed = Bed::new(&[0; 7], 1);
    let x = bed.view(ValueType::Q8Rows, k, most, &bytes);
    let mut whole: Vec<f32> = Vec::new();
    for (rows, threads) in [(7, 2), (7, 1), (1, 2), (2, 2), (3, 1), (4, 3), (5, 2)] {
        let y = bed.view(ValueType::Activation, n, most, &[]);
        let launch = bed.launch(Op::Matmul, &[&x], &[&bed.weight(&weight)], None, &y);
        bed.run("avx2-int8", &launch, rows, threads);
        let y = floats_of(&y, rows);
        if whole.is_empty() {
            for (i, (&y, &(expected, size))) in y.iter().zip(&expected).enumerate() {
                let error = (f64::from(y) - expected).abs();
                let (row, col) = (i / n, i % n);
                assert!(
                    error <= TOLERANCE * size,
                    "{encoding} {n}x{k} [{row}, {col}]: {y}, not {expected} of {size}"
                );
            }
            whole = y;
        } else {
            let bits = |v: &[f32]| v.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&y), bits(&whole[..rows * n]), "{encoding}: {rows} rows on {threads} threads");
        }
    }
}

#[test]
fn matmul_of_every_encoding_is_right_and_independent_of_rows_and_threads() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(1);
    for encoding in encodings() {
        for (n, records) in [(1, 1), (7, 3), (8, 1), (20, 2), (67, 1)] {
            let k = records * Format::of(encoding).unwrap().elements();
            check(encoding, n, k, &mut rng, |r| r.bits() as u8, any_code);
        }
    }
}

#[test]
fn nvfp4_rows_of_an_odd_number_of_groups() {
    if !here() {
        return;
    }
    let encoding = Encoding::FloatBlock { element: Element::E2M1, group: 16, scale: BlockScale::E4M3 };
    for k in [16, 48, 144] {
        check(encoding, 9, k, &mut Rng::new(2), |r| r.bits() as u8, any_code);
    }
}

#[test]
fn sums_of_16_bits_do_not_overflow_at_the_extremes() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(3);
    for encoding in encodings() {
        let k = 2 * Format::of(encoding).unwrap().elements();
        for code in [|_: &mut Rng| 0xff, |_: &mut Rng| 0x00, |_: &mut Rng| 0x77, |_: &mut Rng| 0x88] {
            for x in [|_: &mut Rng| 127, |_: &mut Rng| -127] {
                check(encoding, 8, k, &mut rng, code, x);
            }
        }
    }
}

#[test]
fn a_packed_row_decodes_to_what_it_was() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(4);
    for encoding in encodings() {
        let format = Format::of(encoding).unwrap();
        let (rows, k) = (21, 3 * format.elements());
        let weight = Weight::random(encoding, rows, k, &mut rng);
        let (packed, decoded) = (weight.packed(), weight.decoded());
        let bytes = format.block_bytes(k);
        for row in 0..rows {
            let mut y = vec![f32::NAN; k];
            let block = &packed[row / 8 * bytes..(row / 8 + 1) * bytes];
            super::super::embed::decode_lane(&format, encoding, block, row % 8, &mut y);
            assert_eq!(y, decoded[row * k..(row + 1) * k], "{encoding} row {row}");
        }
    }
}

#[test]
fn gate_up_is_two_matmuls_and_an_activation() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(5);
    let encoding = Encoding::Affine { bits: 4, group: 32, meta: DType::F16 };
    let (rows, n, k) = (7, 43, 96);
    let [gate, up] = [0, 1].map(|_| Weight::random(encoding, n, k, &mut rng));
    let codes: Vec<i8> = (0..rows * k).map(|_| any_code(&mut rng)).collect();
    let bytes = q8_rows(&codes, &vec![0.01; rows * k / 32], k);
    let bed = Bed::new(&[0; 7], 1);
    let x = bed.view(ValueType::Q8Rows, k, rows, &bytes);
    let (gate, up) = (bed.weight(&gate), bed.weight(&up));
    let out = || bed.view(ValueType::Activation, n, rows, &[]);
    let (g, u, y) = (out(), out(), out());
    bed.run("avx2-int8", &bed.launch(Op::Matmul, &[&x], &[&gate], None, &g), rows, 1);
    bed.run("avx2-int8", &bed.launch(Op::Matmul, &[&x], &[&up], None, &u), rows, 1);
    bed.run("avx2-int8", &bed.launch(Op::GateUp(Activation::Silu), &[&x], &[&gate, &up], None, &y), rows, 2);
    let (g, u, y) = (floats_of(&g, rows), floats_of(&u, rows), floats_of(&y, rows));
    for ((&g, &u), &y) in g.iter().zip(&u).zip(&y) {
        let (g, u) = (f64::from(g), f64::from(u));
        let expected = g / (1.0 + (-g).exp()) * u;
        // The sums are the same bits; the function is within 4 units in the last place.
        assert!(
            (f64::from(y) - expected).abs() <= 5.0 * f64::from(f32::EPSILON) * expected.abs(),
            "{y} {expected}"
        );
    }
}
