use super::{super::isa::FEATURES, *};
use crate::{Activation, CacheKind, Decline};

fn weight(encoding: Encoding, shape: &[usize]) -> WeightSpec {
    WeightSpec { encoding, layout: Layout::Packed(super::super::rows8::NAME), shape: shape.to_vec() }
}

const AFFINE: Encoding = Encoding::Affine { bits: 4, group: 32, meta: DType::F16 };

/// What the first variant of an op answers that asks for no more than the features of all.
#[track_caller]
fn check(
    op: &Op,
    input: (ValueType, usize),
    weights: &[WeightSpec],
    features: &[&str],
    expected: Result<(), Decline>,
) {
    let mut caps = Device::cpu(&CpuOptions { threads: 1 }).unwrap().caps().clone();
    caps.features = features.iter().map(|&f| f.to_owned()).collect();
    let cache = Some((CacheKind::Paged { kv_heads: 2, k_dim: 20, v_dim: 20, window: None }, DType::F16));
    let spec =
        OpSpec { op, rows: 3, activation: DType::F32, input: input.0, input_cols: input.1, weights, cache };
    let variants = super::super::variants(op.kind());
    let variant = variants.iter().find(|v| !v.name.starts_with("avx512")).unwrap();
    assert_eq!((variant.takes)(&spec, &caps), expected, "{spec}");
}

#[test]
fn reasons_to_decline() {
    let here = FEATURES;
    let rounded = (ValueType::Q15Rows, 64);
    let plain = WeightSpec { layout: Layout::Planes, ..weight(AFFINE, &[8, 64]) };
    let bias = |n| WeightSpec { layout: Layout::Planes, ..weight(Encoding::Dense(DType::BF16), &[n]) };
    let one_bit = Encoding::Affine { bits: 1, group: 32, meta: DType::F16 };
    let good = weight(AFFINE, &[8, 64]);
    let one = std::slice::from_ref(&good);
    let matmul = |input, w: &[WeightSpec], expected| check(&Op::Matmul, input, w, here, expected);

    matmul(rounded, one, Ok(()));
    matmul(rounded, &[good.clone(), bias(8)], Ok(()));
    matmul(rounded, &[good.clone(), bias(9)], Err(Decline::Shape));
    matmul((ValueType::Activation, 64), one, Err(Decline::Dtype));
    matmul((ValueType::Q8Rows, 64), one, Err(Decline::Dtype));
    matmul((ValueType::Q15Rows, 96), one, Err(Decline::Shape));
    matmul(rounded, &[plain], Err(Decline::Dtype));
    matmul(rounded, &[weight(one_bit, &[8, 64])], Err(Decline::Dtype));
    matmul(rounded, &[weight(AFFINE, &[2, 8, 64])], Err(Decline::Shape));
    matmul(rounded, &[], Err(Decline::Shape));
    check(&Op::Matmul, rounded, one, &here[1..], Err(Decline::Arch));

    let gate_up = |f, w: &[WeightSpec], expected| check(&Op::GateUp(f), rounded, w, here, expected);
    gate_up(Activation::Silu, &[good.clone(), good.clone()], Ok(()));
    gate_up(Activation::Gelu, &[good.clone(), good.clone()], Err(Decline::Dtype));
    gate_up(Activation::Silu, &[good.clone(), weight(AFFINE, &[16, 64])], Err(Decline::Shape));

    // A head of 20 elements is no multiple of 8.
    let attention = Op::Attention { heads: 4, scale: 1.0, window: None };
    check(&attention, (ValueType::Activation, 80), &[], here, Err(Decline::Shape));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn instructions_that_the_processor_lacks_are_declined() {
    let all = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni"];
    let vnni = super::super::variants(crate::OpKind::Matmul)[0];
    assert_eq!(vnni.name, "avx512vnni-int15");
    let good = [weight(AFFINE, &[8, 64])];
    let ask = |features: &[&str]| {
        let mut caps = Device::cpu(&CpuOptions { threads: 1 }).unwrap().caps().clone();
        caps.features = features.iter().map(|&f| f.to_owned()).collect();
        let (op, input) = (&Op::Matmul, ValueType::Q15Rows);
        let spec = OpSpec {
            op,
            rows: 3,
            activation: DType::F32,
            input,
            input_cols: 64,
            weights: &good,
            cache: None,
        };
        (vnni.takes)(&spec, &caps)
    };
    assert_eq!(ask(&all), Ok(()));
    for lacking in 0..all.len() {
        let mut rest = all.to_vec();
        rest.remove(lacking);
        assert_eq!(ask(&rest), Err(Decline::Arch), "without {}", all[lacking]);
    }
}

#[test]
fn layouts_are_offered_where_they_can_be_made() {
    let caps = Device::cpu(&CpuOptions { threads: 1 }).unwrap().caps().clone();
    if !here() {
        return;
    }
    let packed = vec![Layout::Packed("rows8")];
    assert_eq!(super::super::layouts(AFFINE, &[7, 64], &caps), packed);
    assert_eq!(super::super::layouts(AFFINE, &[7, 48], &caps), []);
    assert_eq!(super::super::layouts(AFFINE, &[64], &caps), []);
    assert_eq!(super::super::layouts(AFFINE, &[2, 8, 64], &caps), []);
    assert_eq!(super::super::layouts(Encoding::Dense(DType::F16), &[8, 64], &caps), []);
    assert!(super::super::repack(packed[0]).is_some_and(|r| r.layout() == packed[0]));
    assert!(super::super::repack(Layout::Planes).is_none());
}
