//! The scales and biases of a record, eight rows at a time.

use half::{bf16, f16};
use portolan_device::DType;

use super::{
    kind::Kind,
    lanes::{F32x8, all8, e4m3, e8m0, fma8, load_i8, load_u8, load8, mul8, neg8, to_f32x8, zero8},
    rows8::{BLOCK, Scales},
};

/// Eight scales or biases of an affine group.
///
/// # Safety
/// Eight elements of `meta` can be read at `p`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn load_meta(meta: DType, p: *const u8) -> F32x8 {
    // SAFETY: the caller's promise.
    unsafe {
        match meta {
            DType::F16 => load8(p.cast::<f16>()),
            DType::BF16 => load8(p.cast::<bf16>()),
            _ => load8(p.cast::<f32>()),
        }
    }
}

/// Scale and bias of the eight rows in group `g` of the record whose scales begin at `tail`.
///
/// # Safety
/// There is such a group.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn scales<K: Kind>(tail: *const u8, g: usize) -> (F32x8, F32x8) {
    let none = zero8();
    // SAFETY: the offsets of the module `rows8`.
    unsafe {
        match K::SCALES {
            Scales::Affine(meta) => {
                let (scale, bias) = (load_meta(meta, tail), load_meta(meta, tail.add(BLOCK * meta.size())));
                if K::BITS < 8 {
                    return (scale, bias);
                }
                // The codes are stored minus 128.
                (scale, fma8(scale, all8(128.0), bias))
            }
            Scales::Minima => {
                let p = tail.add(4 * BLOCK + g * 2 * BLOCK);
                let scale = to_f32x8(load_u8(p));
                let min = to_f32x8(load_u8(p.add(BLOCK)));
                let d_min = neg8(load8(tail.add(2 * BLOCK).cast::<f16>()));
                (mul8(load8(tail.cast::<f16>()), scale), mul8(d_min, min))
            }
            Scales::Centred => {
                let p = tail.add(2 * BLOCK + g * BLOCK);
                (mul8(load8(tail.cast::<f16>()), to_f32x8(load_i8(p))), none)
            }
            // Codes stand for twice their number.
            Scales::E8M0 => (mul8(e8m0(load_u8(tail)), all8(0.5)), none),
            Scales::E4M3 => (mul8(e4m3(load_u8(tail.add(g * BLOCK))), all8(0.5)), none),
        }
    }
}
