//! Cases of matmul, gate_up and qkv.

use portolan_device::DType;
use portolan_weights::{BlockScale, Element, Encoding};

use super::{
    ROWS, case, made, selected, value,
    weights::{encodings, random, rms, shortest_row},
};
use crate::{
    Activation, Op, ValueType,
    conformance::{host::Case, rng::Rng},
};

/// Weight rows and multiples of the shortest row: a single row of weights, odd ones, one more than a block.
const SIZES: [(usize, usize); 4] = [(1, 1), (17, 2), (8, 3), (41, 1)];

/// Row lengths of plain weights, which need be a multiple of nothing.
const DENSE_COLUMNS: [usize; 4] = [1, 100, 257, 64];

fn columns(encoding: Encoding, index: usize) -> usize {
    match encoding {
        Encoding::Dense(_) => DENSE_COLUMNS[index],
        other => shortest_row(other) * SIZES[index].1,
    }
}

/// An error of a sum of `k` products is held against what such a sum comes to.
fn magnitude(case: &Case, k: usize) -> f32 {
    const RMS_OF_X: f32 = 0.577;
    (k as f32).sqrt() * RMS_OF_X * case.weights.first().map_or(0.0, rms)
}

fn one(encoding: Encoding, rows: usize, n: usize, k: usize, input: ValueType, index: usize) -> Case {
    let name = format!("{encoding} {input:?} rows={rows} n={n} k={k}");
    let mut rng = Rng::named(&name);
    let x = value(&mut rng, rows, k, input);
    // The head's output is f32 on every device.
    let output = if index % 3 == 2 { ValueType::F32 } else { ValueType::Activation };
    let mut case = case(name, Op::Matmul, rows, vec![x], vec![made(n, output)]);
    case.weights.push(random(&mut rng, encoding, &[n, k]));
    if index % 2 == 1 {
        let types = [DType::F32, DType::BF16, DType::F16];
        case.weights.push(random(&mut rng, Encoding::Dense(types[index / 2 % 3]), &[n]));
        case.name += " bias";
    }
    case.magnitude = magnitude(&case, k);
    if index % 5 == 4 { selected(case) } else { case }
}

pub(super) fn matmul() -> Vec<Case> {
    let mut cases = Vec::new();
    for encoding in encodings() {
        for input in [ValueType::Activation, ValueType::Q8Rows, ValueType::Q15Rows] {
            cases.push(one(encoding, 0, 5, columns(encoding, 1), input, 0));
            for rows in ROWS {
                for (i, (n, _)) in SIZES.into_iter().enumerate() {
                    cases.push(one(encoding, rows, n, columns(encoding, i), input, cases.len()));
                }
            }
        }
    }
    // Beyond every tile: more rows, more weight rows and longer sums than any block.
    let quantized = [
        Encoding::Affine { bits: 4, group: 32, meta: DType::F16 },
        Encoding::Affine { bits: 8, group: 64, meta: DType::BF16 },
        Encoding::TwoLevel { bits: 6, group: 16, minima: false },
    ];
    for encoding in super::weights::DENSE.into_iter().chain(quantized) {
        for input in [ValueType::Activation, ValueType::Q8Rows, ValueType::Q15Rows] {
            cases.push(one(encoding, 131, 147, 1280, input, cases.len()));
        }
    }
    // More rows than any variant for fewer takes.
    for encoding in
        [Encoding::Dense(DType::BF16), Encoding::Dense(DType::F16), quantized[0], quantized[1], quantized[2]]
    {
        cases.push(one(encoding, 401, 139, 512, ValueType::Activation, cases.len()));
    }
    cases
}

pub(super) fn gate_up() -> Vec<Case> {
    let functions = [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu2];
    let mut cases = Vec::new();
    for encoding in encodings() {
        for input in [ValueType::Activation, ValueType::Q8Rows, ValueType::Q15Rows] {
            // Few encodings in all row counts at whose borders variants change.
            let common = matches!(
                encoding,
                Encoding::Dense(DType::BF16 | DType::F16) | Encoding::Affine { bits: 4, group: 64, .. }
            );
            let rows: &[usize] = if common { &[0, 1, 2, 3, 6, 12, 17, 40, 401] } else { &[0, 1, 3, 17] };
            for &rows in rows {
                let (n, _) = SIZES[cases.len() % 4];
                let (k, f) = (columns(encoding, cases.len() % 4), functions[cases.len() % 4]);
                let name = format!("{f:?} {encoding} {input:?} rows={rows} n={n} k={k}");
                let mut rng = Rng::named(&name);
                let x = value(&mut rng, rows, k, input);
                let mut case = case(name, Op::GateUp(f), rows, vec![x], vec![made(n, ValueType::Activation)]);
                case.weights = vec![random(&mut rng, encoding, &[n, k]), random(&mut rng, encoding, &[n, k])];
                // The product of two such sums; relu2 makes it a third power.
                let size = magnitude(&case, k);
                case.magnitude = if f == Activation::Relu2 { size.powi(3) } else { size.powi(2) };
                cases.push(case);
            }
        }
    }
    cases
}

/// Rows of the three matrices: fewer than a block takes, whole blocks, blocks that are not full, and so many that a wave
/// takes several.
const PARTS: [[usize; 3]; 4] = [[1, 3, 2], [32, 16, 16], [41, 8, 17], [4096, 512, 520]];

pub(super) fn qkv() -> Vec<Case> {
    // How a row of a matrix is summed is matmul's affair; here it is enough to see each kind of encoding.
    let quantized = [
        Encoding::Affine { bits: 4, group: 64, meta: DType::BF16 },
        Encoding::Affine { bits: 4, group: 32, meta: DType::F16 },
        Encoding::Affine { bits: 3, group: 32, meta: DType::F32 },
        Encoding::Affine { bits: 8, group: 64, meta: DType::BF16 },
        Encoding::TwoLevel { bits: 4, group: 32, minima: true },
        Encoding::TwoLevel { bits: 6, group: 16, minima: false },
        Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 },
    ];
    let mut cases = Vec::new();
    for encoding in super::weights::DENSE.into_iter().chain(quantized) {
        for rows in [0, 1, 2] {
            for (i, parts) in PARTS.into_iter().enumerate() {
                // Large matrices are cut as in a model whatever their encoding is; a few will do.
                let large = parts[0] > 1000;
                if large && !matches!(encoding, Encoding::Affine { group: 64, .. }) {
                    continue;
                }
                let k = columns(encoding, i);
                let biased = (cases.len() + rows) % 3 == 1;
                let suffix = if biased { " bias" } else { "" };
                let name = format!("{encoding} rows={rows} n={parts:?} k={k}{suffix}");
                let mut rng = Rng::named(&name);
                let x = value(&mut rng, rows, k, ValueType::Activation);
                let outputs = parts.map(|n| made(n, ValueType::Activation)).to_vec();
                let mut case = case(name, Op::Qkv, rows, vec![x], outputs);
                case.weights = parts.map(|n| random(&mut rng, encoding, &[n, k])).to_vec();
                if biased {
                    let dtype = [DType::F32, DType::BF16, DType::F16][i % 3];
                    case.weights.extend(parts.map(|n| random(&mut rng, Encoding::Dense(dtype), &[n])));
                }
                case.magnitude = magnitude(&case, k);
                cases.push(if i == 1 { selected(case) } else { case });
            }
        }
    }
    cases
}
