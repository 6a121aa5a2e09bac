//! A group of 32 elements rounded to integers.

use std::arch::aarch64::*;

use super::super::lanes::F32x8;

/// Rounds 32 elements over `d` to integers of at most `largest`, writes them in `PLANES` planes of 32 bytes, and gives their
/// sum.
///
/// # Safety
/// `32 * PLANES` bytes can be written at `to`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn round32<const PLANES: usize>(
    v: &[F32x8; 4],
    d: f32,
    largest: i16,
    to: *mut u8,
) -> i32 {
    let by = vdupq_n_f32(d);
    let (most, least) = (vdupq_n_s16(largest), vdupq_n_s16(-largest));
    // Without a scale, or with one that is a NaN, all codes are 0. The conversion makes 0 of what is no number.
    let some = vdupq_n_u32(if d > 0.0 { u32::MAX } else { 0 });
    let code = |v| {
        let q = vandq_u32(vreinterpretq_u32_f32(vdivq_f32(v, by)), some);
        vqmovn_s32(vcvtnq_s32_f32(vreinterpretq_f32_u32(q)))
    };
    let mut sum = 0;
    for (i, v) in v.iter().enumerate() {
        let [low, high] = v.halves();
        let words = vcombine_s16(code(low), code(high));
        let words = vmaxq_s16(vminq_s16(words, most), least);
        sum += vaddlvq_s16(words);
        // SAFETY: eight bytes of each plane.
        unsafe {
            let to = to.add(8 * i).cast::<i8>();
            if PLANES == 1 {
                vst1_s8(to, vmovn_s16(words));
            } else {
                let high = vshrq_n_s16::<7>(vaddq_s16(words, vdupq_n_s16(64)));
                vst1_s8(to, vmovn_s16(high));
                vst1_s8(to.add(32), vmovn_s16(vsubq_s16(words, vshlq_n_s16::<7>(high))));
            }
        }
    }
    sum
}
