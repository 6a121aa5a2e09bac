//! What the kernels take from x86-64 with AVX2, FMA and F16C.

use super::Names;

pub(in crate::cpu::fast) mod codes;
pub(in crate::cpu::fast) mod lanes;
pub(in crate::cpu::fast) mod pack;
pub(in crate::cpu::fast) mod round;
pub(in crate::cpu::fast) mod vnni;
pub(in crate::cpu::fast) mod wide;

/// Features of the processor that all kernels are compiled for.
pub(in crate::cpu::fast) const FEATURES: &[&str] = &["avx2", "fma", "f16c"];

/// Names of the variants.
pub(in crate::cpu::fast) const NAMES: Names = Names {
    floats: "avx2",
    dense: "avx2-f32",
    decoded: "avx2-decoded",
    int15: "avx2-int15",
    int8: "avx2-int8",
};
