//! Weights of one dimension: the factors of a norm, a bias.

use half::{bf16, f16};
use portolan_device::DType;
use portolan_weights::{Encoding, Layout, WeightTensor, decode_row};

use super::{
    lanes::{load8, store8},
    simd::Lanes,
};
use crate::{
    Decline,
    chart::WeightSpec,
    cpu::access::{planes, read, with_scratch},
};

/// A vector of `len` plain elements or of any encoding.
pub(super) fn takes_vector(weight: &WeightSpec, len: usize) -> Result<(), Decline> {
    if weight.layout != Layout::Planes || matches!(weight.encoding, Encoding::Foreign(_)) {
        return Err(Decline::Dtype);
    }
    if let Encoding::Dense(dtype) = weight.encoding
        && !dtype.is_float()
    {
        return Err(Decline::Dtype);
    }
    if weight.shape.iter().product::<usize>() == len { Ok(()) } else { Err(Decline::Shape) }
}

/// Runs `f` with the values of a vector: in place where they are f32, in the thread's scratch otherwise.
pub(super) fn with_vector<R>(weight: &WeightTensor, f: impl FnOnce(&[f32]) -> R) -> R {
    let len = weight.shape.iter().product();
    match weight.encoding {
        Encoding::Dense(DType::F32) => f(read(&weight.planes[0], len)),
        Encoding::Dense(DType::F16) => widened(read::<f16>(&weight.planes[0], len), f),
        Encoding::Dense(DType::BF16) => widened(read::<bf16>(&weight.planes[0], len), f),
        _ => with_scratch(len, |values| {
            decode_row(&planes(weight), 0, values);
            f(values)
        }),
    }
}

/// As [`with_vector`], with no values where there is no weight.
pub(super) fn with_bias<R>(weight: Option<&WeightTensor>, f: impl FnOnce(&[f32]) -> R) -> R {
    match weight {
        Some(weight) => with_vector(weight, f),
        None => f(&[]),
    }
}

fn widened<T: Lanes, R>(from: &[T], f: impl FnOnce(&[f32]) -> R) -> R {
    with_scratch(from.len(), |values| {
        // SAFETY: whoever calls a kernel of this module has seen the features.
        unsafe { widen(from, values) };
        f(values)
    })
}

/// Elements as f32; the lengths are one.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) fn widen<T: Lanes>(from: &[T], to: &mut [f32]) {
    let (from_eights, from_rest) = from.as_chunks::<8>();
    let (eights, rest) = to.as_chunks_mut::<8>();
    for (to, from) in eights.iter_mut().zip(from_eights) {
        // SAFETY: arrays of eight.
        unsafe { store8(to.as_mut_ptr(), load8(from.as_ptr())) };
    }
    for (to, from) in rest.iter_mut().zip(from_rest) {
        *to = from.to_f32();
    }
}
