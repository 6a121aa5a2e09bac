//! Dot products of bytes with the instruction that AVX-512 has for them (VNNI), in vectors of 256 bits.

use std::arch::x86_64::*;

use super::{
    super::kind::Kind,
    codes::{Unit, four},
};

/// As [`super::codes::dot`], and the same integers.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::cpu::fast) unsafe fn dot<K: Kind, const PLANES: usize>(
    codes: &Unit,
    xs: *const u8,
    u: usize,
) -> __m256i {
    // Two chains a plane: the instruction's latency is five times what it takes to begin the next.
    let mut chains = [[_mm256_setzero_si256(); 2]; PLANES];
    for (i, &(magnitudes, numbers)) in codes.iter().enumerate().take(K::UNIT) {
        for (plane, sums) in chains.iter_mut().enumerate() {
            // SAFETY: element `4j` of a plane; four bytes from there.
            let x = unsafe { four::<K>(xs.add(32 * plane + 4 * (u * K::UNIT + i)), numbers) };
            sums[i % 2] = _mm256_dpbusd_epi32(sums[i % 2], magnitudes, x);
        }
    }
    let planes = chains.map(|sums| _mm256_add_epi32(sums[0], sums[1]));
    match planes[..] {
        [high, low] => _mm256_add_epi32(_mm256_slli_epi32::<7>(high), low),
        _ => planes[0],
    }
}
