//! What `quantize_rows` makes of a matrix, against what `mx.quantize` made of it, to the bit; and that what was
//! quantized and decoded quantizes to itself.

use portolan_device::DType;
use portolan_testkit::{Tensors, oracle};
use portolan_weights::{BlockScale, Element, Encoding, Planes, decode_rows, quantize_rows};
use proptest::prelude::*;

const MXFP4: Encoding = Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 };

const fn affine(bits: u8, group: u16, meta: DType) -> Encoding {
    Encoding::Affine { bits, group, meta }
}

/// The planes of some rows.
fn quantized(encoding: Encoding, k: usize, values: &[f32]) -> Vec<Vec<u8>> {
    let rows = values.len() / k;
    let mut planes: Vec<Vec<u8>> =
        encoding.planes().iter().map(|&p| vec![0xa5; rows * encoding.row_bytes(p, k)]).collect();
    let mut out: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
    quantize_rows(encoding, k, values, &mut out).unwrap();
    planes
}

fn decoded(encoding: Encoding, k: usize, planes: &[Vec<u8>], rows: usize) -> Vec<f32> {
    let mut all: [&[u8]; 4] = [&[]; 4];
    all.iter_mut().zip(planes).for_each(|(slot, plane)| *slot = plane);
    let mut values = vec![0.0; rows * k];
    decode_rows(&Planes { encoding, k, planes: all }, 0, &mut values);
    values
}

#[track_caller]
fn check(vectors: &Tensors, dtype: &str, name: &str, encoding: Encoding) {
    let (w, shape) = (vectors.f32(&format!("{dtype}.w")), vectors.shape(&format!("{dtype}.w")));
    let found = quantized(encoding, shape[1], &w);
    for (plane, part) in found.iter().zip(["weight", "scales", "biases"]) {
        let name = format!("{dtype}.{name}.{part}");
        assert!(*plane == vectors.bytes(&name), "{name} differs from MLX's");
    }
}

#[test]
fn mlx_quantizes_to_the_same_bits() {
    let Some(dir) = oracle("quant/mlx-quantize") else { return };
    let vectors = Tensors::open(dir.join("vectors.safetensors"));
    let mut done = 0;
    for (dtype, meta) in [("bf16", DType::BF16), ("f16", DType::F16), ("f32", DType::F32)] {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let name = format!("affine-b{bits}-g{group}");
                if vectors.has(&format!("{dtype}.{name}.weight")) {
                    check(&vectors, dtype, &name, affine(bits, group, meta));
                    done += 1;
                }
            }
        }
        check(&vectors, dtype, "mxfp4-b4-g32", MXFP4);
    }
    assert_eq!(done, 30, "settings found in the file");
}

/// The least error that a group leaves: half a step, and what rounding scale and bias to the type of scales adds.
#[track_caller]
fn check_error(bits: u8, values: &[f32]) {
    let encoding = affine(bits, 32, DType::F32);
    let planes = quantized(encoding, 32, values);
    let found = decoded(encoding, 32, &planes, values.len() / 32);
    for (group, found) in values.chunks(32).zip(found.chunks(32)) {
        let (min, max) = group.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        // The step may grow by the rounding of the edge to a whole number of steps, at most by a half of one in q0.
        let step = ((max - min) / ((1u32 << bits) - 1) as f32).max(1e-7);
        for (&w, &f) in group.iter().zip(found) {
            // The far end may be clamped by as much as the edge was moved.
            assert!((w - f).abs() <= step * 1.51 + 1e-6, "{bits} bits: {w} became {f}, step {step}");
        }
    }
}

proptest! {
    #[test]
    fn errors_are_within_a_step(values in prop::collection::vec(-8.0f32..8.0, 64), bits in 0usize..6) {
        check_error([2, 3, 4, 5, 6, 8][bits], &values);
    }

    #[test]
    fn zero_is_exact_where_it_lies_within_a_group(mut values in prop::collection::vec(-4.0f32..4.0, 32)) {
        values[7] = 0.0;
        values[8] = -5.0;
        values[9] = 4.5;
        for bits in [3, 4, 5, 6, 8] {
            let encoding = affine(bits, 32, DType::F32);
            let found = decoded(encoding, 32, &quantized(encoding, 32, &values), 1);
            prop_assert!(found[7].abs() <= 1e-6, "{bits} bits: zero became {}", found[7]);
        }
        let found = decoded(MXFP4, 32, &quantized(MXFP4, 32, &values), 1);
        prop_assert_eq!(found[7], 0.0);
    }

    /// Numbers that MXFP4 holds already, with the largest code in use, are kept.
    #[test]
    fn mxfp4_of_mxfp4_is_itself(codes in prop::collection::vec(0u8..16, 32), exponent in -20i32..20) {
        const LUT: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let mut values: Vec<f32> = codes
            .iter()
            .map(|&c| LUT[usize::from(c & 7)] * if c & 8 != 0 { -1.0 } else { 1.0 } * 2f32.powi(exponent))
            .collect();
        values[0] = 6.0 * 2f32.powi(exponent);
        let found = decoded(MXFP4, 32, &quantized(MXFP4, 32, &values), 1);
        prop_assert!(found.iter().zip(&values).all(|(a, b)| a == b), "{values:?} became {found:?}");
    }
}
