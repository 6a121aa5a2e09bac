//! What is legal, in the layout of the planes: all that the plain kernels of the CPU take, and where other kernels begin.

use portolan_device::{DType, DeviceCaps};
use portolan_weights::{Encoding, Layout};

use crate::{
    CacheKind, Decline, Op, RowCodes, ValueType,
    chart::{OpSpec, WeightSpec},
};

pub(crate) type Answer = Result<(), Decline>;

pub(crate) fn check(holds: bool, reason: Decline) -> Answer {
    if holds { Ok(()) } else { Err(reason) }
}

/// Inputs of floats.
pub(crate) fn floats(spec: &OpSpec<'_>, _: &DeviceCaps) -> Answer {
    check(matches!(spec.input, ValueType::Activation | ValueType::F32), Decline::Dtype)
}

fn weight(w: &WeightSpec) -> Answer {
    let numbers = match w.encoding {
        Encoding::Dense(dtype) => dtype.is_float(),
        Encoding::Foreign(_) => false,
        _ => true,
    };
    check(numbers && w.layout == Layout::Planes, Decline::Dtype)?;
    let k = w.shape.last().copied().unwrap_or(0);
    check(k.is_multiple_of(w.encoding.row_multiple()), Decline::Shape)
}

pub(crate) fn weights(spec: &OpSpec<'_>) -> Answer {
    spec.weights.iter().try_for_each(weight)
}

fn columns_agree(spec: &OpSpec<'_>) -> Answer {
    let k = spec.weights.first().and_then(|w| w.shape.last()).copied();
    check(k == Some(spec.input_cols), Decline::Shape)
}

pub(crate) fn embed(spec: &OpSpec<'_>, _: &DeviceCaps) -> Answer {
    weights(spec)
}

pub(crate) fn rms_norm(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    floats(spec, caps)?;
    weights(spec)?;
    let Op::RmsNorm { width, .. } = *spec.op else { return Err(Decline::Shape) };
    check(width > 0 && spec.input_cols.is_multiple_of(width), Decline::Shape)
}

pub(crate) fn matmul(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    floats(spec, caps)?;
    weights(spec)?;
    columns_agree(spec)
}

pub(crate) fn matmul_integers(spec: &OpSpec<'_>, _: &DeviceCaps) -> Answer {
    check(RowCodes::of(spec.input).is_some(), Decline::Dtype)?;
    weights(spec)?;
    columns_agree(spec)
}

pub(crate) fn rope_table(spec: &OpSpec<'_>, _: &DeviceCaps) -> Answer {
    check(matches!(spec.op, Op::RopeTable { .. }), Decline::Shape)
}

pub(crate) fn rope(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    floats(spec, caps)?;
    let Op::Rope { heads, head_dim, rot, .. } = *spec.op else { return Err(Decline::Shape) };
    let fits = rot.is_multiple_of(2) && rot <= head_dim && heads * head_dim == spec.input_cols;
    check(fits, Decline::Shape)
}

pub(crate) fn pages(spec: &OpSpec<'_>) -> Result<(usize, usize), Decline> {
    match spec.cache {
        Some((CacheKind::Paged { kv_heads, k_dim, .. }, DType::F32 | DType::F16 | DType::BF16)) => {
            Ok((kv_heads, k_dim))
        }
        Some((CacheKind::Paged { .. }, _)) => Err(Decline::Dtype),
        _ => Err(Decline::Shape),
    }
}

pub(crate) fn cache_append(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    floats(spec, caps)?;
    let (kv_heads, k_dim) = pages(spec)?;
    check(kv_heads * k_dim == spec.input_cols, Decline::Shape)
}

pub(crate) fn attention(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    floats(spec, caps)?;
    let (kv_heads, k_dim) = pages(spec)?;
    let Op::Attention { heads, .. } = *spec.op else { return Err(Decline::Shape) };
    let fits = kv_heads > 0 && heads.is_multiple_of(kv_heads) && heads * k_dim == spec.input_cols;
    check(fits, Decline::Shape)
}
