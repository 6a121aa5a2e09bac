//! A group of 32 elements rounded to integers.

use std::arch::x86_64::*;

use super::super::lanes::F32x8;

/// Rounds 32 elements over `d` to integers of at most `largest`, writes them in `PLANES` planes of 32 bytes, and gives their
/// sum.
///
/// # Safety
/// `32 * PLANES` bytes can be written at `to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn round32<const PLANES: usize>(
    v: &[F32x8; 4],
    d: f32,
    largest: i16,
    to: *mut u8,
) -> i32 {
    let by = _mm256_set1_ps(d);
    let (most, least) = (_mm256_set1_epi16(largest), _mm256_set1_epi16(-largest));
    // Without a scale all codes are 0: a quotient of 0/0 is cleared, and one of a tiny x by 0 as well. What is no number
    // becomes the least of integers and is cleared too.
    let some = _mm256_cmp_ps::<_CMP_NEQ_OQ>(by, _mm256_setzero_ps());
    let q = v.map(|v| {
        let q = _mm256_and_ps(_mm256_div_ps(v, by), some);
        let number = _mm256_cmp_ps::<_CMP_ORD_Q>(q, q);
        _mm256_cvtps_epi32(_mm256_and_ps(q, number))
    });
    let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
    let words = words.map(|w| _mm256_max_epi16(_mm256_min_epi16(w, most), least));
    if PLANES == 1 {
        // SAFETY: 32 bytes.
        unsafe { store_bytes(words, to) };
    } else {
        let high = words.map(|w| _mm256_srai_epi16::<7>(_mm256_add_epi16(w, _mm256_set1_epi16(64))));
        let low = [0, 1].map(|i| _mm256_sub_epi16(words[i], _mm256_slli_epi16::<7>(high[i])));
        // SAFETY: twice 32 bytes.
        unsafe {
            store_bytes(high, to);
            store_bytes(low, to.add(32));
        }
    }
    let ones = _mm256_set1_epi16(1);
    let sums = words.map(|w| _mm256_madd_epi16(w, ones));
    let sums = _mm256_add_epi32(sums[0], sums[1]);
    let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let two = _mm_add_epi32(four, _mm_srli_si128::<8>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128::<4>(two)))
}

/// Writes 32 numbers, as two packs of words left them, as bytes in their order.
///
/// # Safety
/// 32 bytes can be written at `to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_bytes(words: [__m256i; 2], to: *mut u8) {
    // The packs work within halves: put the eight groups of four in order again.
    let bytes = _mm256_packs_epi16(words[0], words[1]);
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), bytes) }
}
