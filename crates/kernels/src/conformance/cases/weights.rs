//! Weights of every encoding, of random numbers.

use portolan_device::DType;
use portolan_weights::{BlockScale, Element, Encoding, Plane, SUPER_GROUP, decode_row};

use crate::conformance::{
    host::{Weight, encode},
    rng::Rng,
};

/// The plain types.
pub const DENSE: [Encoding; 3] =
    [Encoding::Dense(DType::F32), Encoding::Dense(DType::F16), Encoding::Dense(DType::BF16)];

/// MXFP4, MXFP8 and NVFP4.
const FLOAT_BLOCKS: [Encoding; 3] = [
    Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 },
    Encoding::FloatBlock { element: Element::E4M3, group: 32, scale: BlockScale::E8M0 },
    Encoding::FloatBlock { element: Element::E2M1, group: 16, scale: BlockScale::E4M3 },
];

/// Q2_K to Q6_K: bits, group, minima.
const TWO_LEVEL: [(u8, u16, bool); 5] =
    [(2, 16, true), (3, 16, false), (4, 32, true), (5, 32, true), (6, 16, false)];

/// Every encoding that checkpoints come to.
pub fn encodings() -> Vec<Encoding> {
    let mut all = DENSE.to_vec();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            for meta in [DType::F16, DType::BF16, DType::F32] {
                all.push(Encoding::Affine { bits, group, meta });
            }
        }
    }
    all.push(Encoding::Affine { bits: 1, group: 128, meta: DType::F16 });
    all.push(Encoding::Affine { bits: 4, group: 16, meta: DType::F16 });
    all.extend(TWO_LEVEL.map(|(bits, group, minima)| Encoding::TwoLevel { bits, group, minima }));
    all.extend(FLOAT_BLOCKS);
    all
}

/// A weight of random codes; its elements are of the order of 1, about half of its scales are negative.
pub fn random(rng: &mut Rng, encoding: Encoding, shape: &[usize]) -> Weight {
    let k = shape.last().copied().unwrap_or(1);
    let rows: usize = shape.iter().rev().skip(1).product();
    let planes = encoding.planes().iter().map(|&plane| random_plane(rng, encoding, plane, rows, k)).collect();
    Weight { encoding, shape: shape.to_vec(), planes }
}

fn random_plane(rng: &mut Rng, encoding: Encoding, plane: Plane, rows: usize, k: usize) -> Vec<u8> {
    let bytes = rows * encoding.row_bytes(plane, k);
    let mut small = |floor: usize, count: usize| -> Vec<u8> {
        (0..bytes).map(|_| (floor + rng.below(count)) as u8).collect()
    };
    match (encoding, plane) {
        (Encoding::Dense(dtype), _) => encode(dtype, &rng.units(rows * k)),
        (Encoding::FloatBlock { element: Element::E4M3, .. }, Plane::Codes) => {
            let mut codes = small(0, 256);
            // 0x7f and 0xff are NaN.
            codes.iter_mut().filter(|c| **c & 0x7f == 0x7f).for_each(|c| *c &= 0xfe);
            codes
        }
        (_, Plane::Codes) => small(0, 256),
        (Encoding::Affine { bits, meta, .. }, Plane::Scales | Plane::Biases) => {
            let step = 2.0 / f32::from(1u16 << bits);
            let mut number = || {
                let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
                let size = 1.0 + 0.5 * rng.unit();
                if plane == Plane::Scales { sign * size * step } else { sign * size }
            };
            encode(meta, &(0..bytes / meta.size()).map(|_| number()).collect::<Vec<_>>())
        }
        (Encoding::TwoLevel { minima: false, .. }, Plane::Scales) => small(0, 256),
        (Encoding::TwoLevel { .. }, Plane::Scales | Plane::Biases) => small(0, 64),
        (Encoding::TwoLevel { bits, minima, .. }, _) => {
            let step = 1.0 / (32.0 * f32::from(1u16 << bits));
            let number = |i: usize, rng: &mut Rng| {
                let size = 1.0 + 0.5 * rng.unit();
                // `dmin` multiplies no code.
                if minima && i % 2 == 1 { size / 64.0 } else { size * step }
            };
            encode(DType::F16, &(0..bytes / 2).map(|i| number(i, rng)).collect::<Vec<_>>())
        }
        // Elements of E4M3 go up to 448.
        (Encoding::FloatBlock { element: Element::E4M3, .. }, _) => small(116, 5),
        (Encoding::FloatBlock { scale: BlockScale::E8M0, .. }, _) => small(122, 5),
        (Encoding::FloatBlock { scale: BlockScale::E4M3, .. }, _) => small(0x20, 0x18),
        _ => small(0, 256),
    }
}

/// The root of the mean square of a weight's elements.
pub fn rms(weight: &Weight) -> f32 {
    let mut row = vec![0.0; weight.cols()];
    let mut sum = 0.0;
    for i in 0..weight.rows() {
        decode_row(&weight.planes(), i, &mut row);
        sum += row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    }
    (sum / (weight.rows() * weight.cols()).max(1) as f64).sqrt() as f32
}

/// The shortest row that an encoding allows; for plain types that a quantized one would.
pub fn shortest_row(encoding: Encoding) -> usize {
    match encoding {
        Encoding::TwoLevel { .. } => SUPER_GROUP,
        other => other.row_multiple().max(16),
    }
}
