//! What kernels of GPUs take before any limit of their own, and the types of what they read.

use portolan_device::DType;

pub(super) use crate::takes::{
    Answer, attention, cache_append, check, embed, floats, matmul, matmul_integers, pages, rms_norm, rope,
    weights,
};
use crate::{Launch, ValueType, View};

/// The type of a value's elements on the launch's device.
pub(super) fn value_dtype(view: &View, launch: &Launch) -> DType {
    match view.dtype {
        ValueType::Activation => launch.activation,
        ValueType::I32 | ValueType::Q8Rows | ValueType::Q15Rows | ValueType::F32 => DType::F32,
    }
}
