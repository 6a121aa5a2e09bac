//! How far a port may be from its reference, op by op, and why.

use portolan_device::DType;

use super::host::Case;
use crate::OpKind;

/// An error allowed in f32, relative to the largest element of the output's row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The most.
    pub limit: f32,
    /// Why not less.
    pub reason: &'static str,
}

/// What is allowed of an op's outputs.
pub const fn of(op: OpKind) -> Tolerance {
    let (limit, reason) = match op {
        OpKind::Add | OpKind::Mul => (0.0, "one rounding, which leaves no choice"),
        OpKind::SelectRows | OpKind::CacheAppend => (0.0, "a copy, rounded to nearest even"),
        OpKind::Argmax => (0.0, "an index"),
        OpKind::QuantizeRows => {
            (1e-6, "codes within half a step of x; a scale within an ulp or two of max|x|/127")
        }
        OpKind::Embed => (1e-6, "scale * code + bias, fused or not"),
        OpKind::RmsNorm | OpKind::AddRmsNorm => {
            (1e-6, "the sum of squares in another order, and an estimate of 1/sqrt within a few ulp")
        }
        OpKind::RopeTable => (2e-6, "a sine of another library, of the same f32 angle"),
        OpKind::Rope | OpKind::RopeAppend => (1e-6, "two products and a sum, fused or not"),
        OpKind::Activate => (1e-6, "an exponential of another library"),
        OpKind::Matmul => (
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
pub fn of_cache(case: &Case) -> f32 {
    let op = case.op.kind();
    match case.cache.as_ref().map(|c| c.dtype) {
        _ if of(op).limit == 0.0 => 0.0,
        Some(DType::F16) => 1.0 / 1024.0,
        Some(DType::BF16) => 1.0 / 128.0,
        _ => of(op).limit,
    }
}
