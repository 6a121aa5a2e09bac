use super::{
    super::{isa::NAMES, rows8::Format},
    *,
};
use crate::{Activation, RowCodes, cpu::access::IntRow};

/// Rows of k codes as [`RowCodes`] lays them out, with the sums of the rounded numbers.
fn integer_rows(codes: &[i32], scales: &[f32], k: usize, how: RowCodes) -> Vec<u8> {
    let groups = k.div_ceil(32);
    let mut out = Vec::new();
    for (codes, scales) in codes.chunks(k).zip(scales.chunks(groups)) {
        for codes in codes.chunks(32) {
            let high = |c: &i32| if how == RowCodes::Int8 { *c } else { (c + 64) >> 7 };
            let mut planes = vec![0; 32 * how.planes()];
            for (i, c) in codes.iter().enumerate() {
                planes[i] = high(c) as u8;
                if how == RowCodes::Int15 {
                    planes[32 + i] = (c - 128 * high(c)) as u8;
                }
            }
            out.extend(planes);
        }
        out.extend(scales.iter().flat_map(|s| s.to_le_bytes()));
        let sums = codes.chunks(32).zip(scales).map(|(c, s)| s * c.iter().sum::<i32>() as f32);
        out.extend(sums.flat_map(f32::to_le_bytes));
    }
    out
}

/// `x w^T` in f64 from rows of integers and decoded weights, with the sum of the magnitudes of what goes into it: scale and
/// bias of an affine group go in one by one, and may be much larger than the weight that they come to.
fn reference(
    encoding: Encoding,
    (bytes, how): (&[u8], RowCodes),
    rows: usize,
    w: &[f32],
    k: usize,
) -> Vec<(f64, f64)> {
    let parts = if let Encoding::Affine { bits, .. } = encoding { 0.1 * f64::from(1 << bits) } else { 0.0 };
    let mut out = Vec::new();
    for row in 0..rows {
        let x = IntRow::new(bytes, row, k, how);
        for w in w.chunks(k) {
            let add = |(sum, size): (f64, f64), (i, &w): (usize, &f32)| {
                let x = f64::from(x.code(i)) * f64::from(x.scales[i / 32]);
                (sum + f64::from(w) * x, size + (f64::from(w.abs()) + parts) * x.abs())
            };
            out.push(w.iter().enumerate().fold((0.0, 0.0), add));
        }
    }
    out
}

/// Of the sum of the magnitudes: f32 keeps 6e-8, and a few groups are added.
const TOLERANCE: f64 = 1e-6;

/// Any code that a row is rounded to.
fn any_code(rng: &mut Rng, how: RowCodes) -> i32 {
    (rng.bits() % (2 * how.largest() as u64 + 1)) as i32 - how.largest()
}

/// The variants that this processor has, with the rows that they read.
fn variants() -> Vec<(&'static str, RowCodes)> {
    #[allow(unused_mut)]
    let mut all = vec![(NAMES.int15, RowCodes::Int15), (NAMES.int8, RowCodes::Int8)];
    #[cfg(target_arch = "x86_64")]
    {
        let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
        if ["avx512f", "avx512bw", "avx512vl", "avx512vnni"].iter().all(|f| device.caps().has_feature(f)) {
            all.extend([("avx512vnni-int15", RowCodes::Int15), ("avx512vnni-int8", RowCodes::Int8)]);
        } else {
            portolan_testkit::skipped("this processor lacks AVX-512 VNNI");
        }
    }
    all
}

#[track_caller]
fn check(
    encoding: Encoding,
    n: usize,
    k: usize,
    rng: &mut Rng,
    code: fn(&mut Rng) -> u8,
    x: fn(&mut Rng, RowCodes) -> i32,
) {
    let most = 19;
    let weight = Weight::new(encoding, n, k, rng, code);
    let decoded = weight.decoded();
    let bits = |v: &[f32]| v.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    for how in [RowCodes::Int15, RowCodes::Int8] {
        let codes: Vec<i32> = (0..most * k).map(|_| x(rng, how)).collect();
        let scales: Vec<f32> = (0..most * k.div_ceil(32)).map(|_| rng.float().abs() * 0.02 + 1e-3).collect();
        let bytes = integer_rows(&codes, &scales, k, how);
        let expected = reference(encoding, (&bytes, how), most, &decoded, k);
        let bed = Bed::new(&vec![0; most], 1);
        let x = bed.view(how.value_type(), k, most, &bytes);
        let mut whole: Vec<f32> = Vec::new();
        for (name, _) in variants().into_iter().filter(|v| v.1 == how) {
            // Tiles of eight, four, two and one rows, and what is left over by each.
            for (rows, threads) in
                [(most, 2), (7, 2), (7, 1), (1, 2), (2, 2), (3, 1), (4, 3), (5, 2), (13, 1)]
            {
                let y = bed.view(ValueType::Activation, n, most, &[]);
                let launch = bed.launch(Op::Matmul, &[&x], &[&bed.weight(&weight)], None, &y);
                bed.run(name, &launch, rows, threads);
                let y = floats_of(&y, rows);
                if whole.is_empty() {
                    for (i, (&y, &(expected, size))) in y.iter().zip(&expected).enumerate() {
                        let error = (f64::from(y) - expected).abs();
                        let (row, col) = (i / n, i % n);
                        assert!(
                            error <= TOLERANCE * size,
                            "{name} {encoding} {n}x{k} [{row}, {col}]: {y}, not {expected} of {size}"
                        );
                    }
                    whole = y;
                } else {
                    assert_eq!(
                        bits(&y),
                        bits(&whole[..rows * n]),
                        "{name} {encoding}: {rows} rows on {threads} threads"
                    );
                }
            }
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
            let extremes: [fn(&mut Rng, RowCodes) -> i32; 4] = [
                |_, how| how.largest(),
                |_, how| -how.largest(),
                // The low part at its ends.
                |_, how| (how.largest() / 2) & !127 | 63,
                |_, how| -((how.largest() / 2) & !127) - 64,
            ];
            for x in extremes {
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
        // Whole blocks and a part of one; eight records that are turned about together, and some beside them.
        let (rows, k) = (21, 11 * format.elements());
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
    let (rows, n, k) = (15, 43, 96);
    let [gate, up] = [0, 1].map(|_| Weight::random(encoding, n, k, &mut rng));
    let how = RowCodes::Int15;
    let codes: Vec<i32> = (0..rows * k).map(|_| any_code(&mut rng, how)).collect();
    let bytes = integer_rows(&codes, &vec![0.0001; rows * k / 32], k, how);
    let bed = Bed::new(&vec![0; rows], 1);
    let x = bed.view(how.value_type(), k, rows, &bytes);
    let (gate, up) = (bed.weight(&gate), bed.weight(&up));
    let out = || bed.view(ValueType::Activation, n, rows, &[]);
    let (g, u, y) = (out(), out(), out());
    bed.run(NAMES.int15, &bed.launch(Op::Matmul, &[&x], &[&gate], None, &g), rows, 1);
    bed.run(NAMES.int15, &bed.launch(Op::Matmul, &[&x], &[&up], None, &u), rows, 1);
    bed.run(NAMES.int15, &bed.launch(Op::GateUp(Activation::Silu), &[&x], &[&gate, &up], None, &y), rows, 2);
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
