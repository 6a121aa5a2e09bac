//! How far a port may be from its reference, op by op, and why.

use portolan_device::DType;

use super::host::Case;
use crate::{OpKind, Variant};

/// An error allowed in f32, relative to the largest element of the output's row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The most.
    pub limit: f32,
    /// Why not less.
    pub reason: &'static str,
}

/// The unit roundoff of a type: half the distance from one to the next number.
pub const fn roundoff(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    }
}

/// What is allowed of a variant's outputs where activations are of a type of 16 bits. A result that differs in its last
/// bits of f32 may round to the neighbour; where an op rounds within (the sum before its norm, the rotated key before it
/// is cached) that goes through once more; and numbers rounded before they are multiplied err at random, so that
/// their sum is off by about one more of them relative to its size.
pub fn of_variant(op: OpKind, variant: &Variant, activation: DType) -> f32 {
    let roundings = match op {
        _ if of(op).limit == 0.0 => 0.0,
        OpKind::QuantizeRows | OpKind::RopeTable => 0.0,
        OpKind::AddRmsNorm | OpKind::RopeAppend | OpKind::GateUp => 4.0,
        // Rotation adds up what rounding the norms does to two elements.
        OpKind::NormRopeAppend => 6.0,
        _ => 2.0,
    };
    let within = if variant.rounds_weights { 4.0 } else { 0.0 };
    of(op).limit + (roundings + within) * roundoff(activation)
}

/// What is allowed of an op's outputs in f32.
pub const fn of(op: OpKind) -> Tolerance {
    let (limit, reason) = match op {
        OpKind::Add | OpKind::Mul => (0.0, "one rounding, which leaves no choice"),
        OpKind::SelectRows | OpKind::CacheAppend => (0.0, "a copy, rounded to nearest even"),
        OpKind::Argmax => (0.0, "an index"),
        OpKind::QuantizeRows => {
            (1e-6, "codes within half a step of x; a scale within an ulp or two of max|x|/largest")
        }
        OpKind::Embed => (1e-6, "scale * code + bias, fused or not"),
        OpKind::RmsNorm | OpKind::AddRmsNorm => {
            (1e-6, "the sum of squares in another order, and an estimate of 1/sqrt within a few ulp")
        }
        OpKind::RopeTable => (2e-6, "a sine of another library, of the same f32 angle"),
        OpKind::Rope | OpKind::RopeAppend => (1e-6, "two products and a sum, fused or not"),
        OpKind::NormRopeAppend => (3e-6, "the norm's error in each of two elements, then rope's"),
        OpKind::Activate => (1e-6, "an exponential of another library"),
        OpKind::Matmul | OpKind::Qkv => (
            5e-6,
            "up to 1280 products summed in another order, and scale and bias of a group taken out of the sum",
        ),
        OpKind::GateUp => (1e-5, "two matmuls, of which one goes through a function of slope up to 3"),
        OpKind::Attention => (
            5e-6,
            "scores of a few units, each a sum in another order, through an exponential of another library",
        ),
    };
    Tolerance { limit, reason }
}

/// What is allowed of a cache's elements that an op writes: a value that differs in its last bits in f32 may round
/// to the neighbour in the cache's type.
pub fn of_cache(case: &Case, activation: DType) -> f32 {
    let op = case.op.kind();
    // A rotated key that was normed first has been rounded once more, in both elements that make it.
    let roundings = if op == OpKind::NormRopeAppend { 5.0 } else { 2.0 };
    let within = roundings * roundoff(activation);
    match case.cache.as_ref().map(|c| c.dtype) {
        _ if of(op).limit == 0.0 => 0.0,
        Some(DType::F16) => within + 1.0 / 1024.0,
        Some(DType::BF16) => within + 1.0 / 128.0,
        _ => within + of(op).limit,
    }
}
