//! The scales and biases of a record, eight rows at a time.

use std::arch::x86_64::*;

use half::{bf16, f16};
use portolan_device::DType;

use super::{
    kind::Kind,
    rows8::{BLOCK, Scales},
    simd::load8,
};

/// Eight scales or biases of an affine group.
///
/// # Safety
/// Eight elements of `meta` can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_meta(meta: DType, p: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match meta {
            DType::F16 => load8(p.cast::<f16>()),
            DType::BF16 => load8(p.cast::<bf16>()),
            _ => load8(p.cast::<f32>()),
        }
    }
}

/// Eight bytes as i32.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load_u8(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
}

/// `2^(code - 127)`; 255 is NaN. Code 0 is the subnormal `2^-127`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn e8m0(codes: __m256i) -> __m256 {
    let normal = _mm256_slli_epi32::<23>(codes);
    let zero = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
    let bits = _mm256_blendv_epi8(normal, _mm256_set1_epi32(1 << 22), zero);
    let nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(1 << 22))))
}

/// Sign, four bits of exponent with a bias of 7, three of mantissa; 127 and 255 are NaN. Shifted into place the
/// exponent is off by `127 - 7`, which a product puts right, for subnormals too.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn e4m3(codes: __m256i) -> __m256 {
    let magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)));
    let scaled = _mm256_mul_ps(
        _mm256_castsi256_ps(_mm256_slli_epi32::<20>(magnitude)),
        _mm256_set1_ps(f32::from_bits((127 + 120) << 23)),
    );
    let nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
    _mm256_or_ps(_mm256_or_ps(scaled, _mm256_castsi256_ps(sign)), nan)
}

/// Scale and bias of the eight rows in group `g` of the record whose scales begin at `tail`.
///
/// # Safety
/// There is such a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scales<K: Kind>(tail: *const u8, g: usize) -> (__m256, __m256) {
    let none = _mm256_setzero_ps();
    // SAFETY: the offsets of the module `rows8`.
    unsafe {
        match K::SCALES {
            Scales::Affine(meta) => {
                let (scale, bias) = (load_meta(meta, tail), load_meta(meta, tail.add(BLOCK * meta.size())));
                if K::BITS < 8 {
                    return (scale, bias);
                }
                // The codes are stored minus 128.
                (scale, _mm256_fmadd_ps(scale, _mm256_set1_ps(128.0), bias))
            }
            Scales::Minima => {
                let p = tail.add(4 * BLOCK + g * 2 * BLOCK);
                let scale = _mm256_cvtepi32_ps(load_u8(p));
                let min = _mm256_cvtepi32_ps(load_u8(p.add(BLOCK)));
                let d_min = _mm256_xor_ps(load8(tail.add(2 * BLOCK).cast::<f16>()), _mm256_set1_ps(-0.0));
                (_mm256_mul_ps(load8(tail.cast::<f16>()), scale), _mm256_mul_ps(d_min, min))
            }
            Scales::Centred => {
                let p = tail.add(2 * BLOCK + g * BLOCK);
                let scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
                (_mm256_mul_ps(load8(tail.cast::<f16>()), _mm256_cvtepi32_ps(scale)), none)
            }
            // Codes stand for twice their number.
            Scales::E8M0 => (_mm256_mul_ps(e8m0(load_u8(tail)), _mm256_set1_ps(0.5)), none),
            Scales::E4M3 => (_mm256_mul_ps(e4m3(load_u8(tail.add(g * BLOCK))), _mm256_set1_ps(0.5)), none),
        }
    }
}
