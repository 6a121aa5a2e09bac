//! What the kernels take from aarch64 with NEON, which every such processor has.

use super::Names;

pub(in crate::cpu::fast) mod codes;
pub(in crate::cpu::fast) mod lanes;
pub(in crate::cpu::fast) mod pack;
pub(in crate::cpu::fast) mod round;

/// Features of the processor that all kernels are compiled for.
pub(in crate::cpu::fast) const FEATURES: &[&str] = &["neon"];

/// Names of the variants.
pub(in crate::cpu::fast) const NAMES: Names = Names {
    floats: "neon",
    dense: "neon-f32",
    decoded: "neon-decoded",
    int15: "neon-int15",
    int8: "neon-int8",
};
