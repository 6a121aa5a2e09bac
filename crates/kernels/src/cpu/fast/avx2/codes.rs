//! The codes of a sub-group: unpacked, and multiplied with int8 rows.

use std::arch::x86_64::*;

use super::kind::{Code, Kind};

/// The codes of quad `j` of a part of `bits` bits that begins at `p`.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn part(bits: usize, p: *const u8, j: usize) -> __m256i {
    let mask = _mm256_set1_epi8(((1u32 << bits) - 1) as i8);
    // SAFETY: a part of `bits` bits takes `bits` vectors.
    let load = |i: usize| unsafe { _mm256_loadu_si256(p.add(32 * i).cast()) };
    match bits {
        4 if j < 4 => _mm256_and_si256(load(j), mask),
        4 => _mm256_and_si256(_mm256_srli_epi16::<4>(load(j - 4)), mask),
        2 => {
            let v = load(j / 4);
            _mm256_and_si256(
                match j % 4 {
                    0 => v,
                    1 => _mm256_srli_epi16::<2>(v),
                    2 => _mm256_srli_epi16::<4>(v),
                    _ => _mm256_srli_epi16::<6>(v),
                },
                mask,
            )
        }
        _ => {
            let v = load(0);
            _mm256_and_si256(
                match j {
                    0 => v,
                    1 => _mm256_srli_epi16::<1>(v),
                    2 => _mm256_srli_epi16::<2>(v),
                    3 => _mm256_srli_epi16::<3>(v),
                    4 => _mm256_srli_epi16::<4>(v),
                    5 => _mm256_srli_epi16::<5>(v),
                    6 => _mm256_srli_epi16::<6>(v),
                    _ => _mm256_srli_epi16::<7>(v),
                },
                mask,
            )
        }
    }
}

/// Quad `j` of the sub-group at `p`: magnitudes, and the numbers themselves where they have a sign.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quad<K: Kind>(p: *const u8, j: usize) -> (__m256i, __m256i) {
    // SAFETY: the caller's promise.
    let codes = unsafe {
        match K::BITS {
            3 => _mm256_or_si256(part(2, p, j), _mm256_slli_epi16::<2>(part(1, p.add(64), j))),
            5 => _mm256_or_si256(part(4, p, j), _mm256_slli_epi16::<4>(part(1, p.add(128), j))),
            6 => _mm256_or_si256(part(4, p, j), _mm256_slli_epi16::<4>(part(2, p.add(128), j))),
            8 => _mm256_loadu_si256(p.add(32 * j).cast()),
            bits => part(bits, p, j),
        }
    };
    match K::CODE {
        Code::Unsigned => (codes, codes),
        Code::Signed => (_mm256_abs_epi8(codes), codes),
        Code::Centred(centre) => {
            let signed = _mm256_sub_epi8(codes, _mm256_set1_epi8(centre));
            (_mm256_abs_epi8(signed), signed)
        }
        Code::E2M1 => {
            // Twice 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
            let magnitudes =
                _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12));
            let numbers = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
            ));
            (_mm256_shuffle_epi8(magnitudes, codes), _mm256_shuffle_epi8(numbers, codes))
        }
    }
}

/// Integer dot products of a sub-group (or half `h` of it) with `R` rows.
///
/// # Safety
/// A sub-group's codes can be read at `codes`, and 32 int8 at each of `xs + r * stride`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot<K: Kind, const R: usize>(
    codes: *const u8,
    xs: *const u8,
    stride: usize,
    h: usize,
) -> [__m256i; R] {
    let ones = _mm256_set1_epi16(1);
    let mut total = [_mm256_setzero_si256(); R];
    let mut pairs = [_mm256_setzero_si256(); R];
    let quads = 8 / K::HALVES;
    for i in 0..quads {
        // Quads i and i + 4 share a vector of 4-bit codes: take them one after the other.
        let j = if K::HALVES == 1 && K::BITS == 4 { i / 2 + i % 2 * 4 } else { h * 4 + i };
        // SAFETY: the caller's promise.
        let (magnitudes, numbers) = unsafe { quad::<K>(codes, j) };
        for r in 0..R {
            // SAFETY: element `4j` of row `r`; four bytes from there.
            let four = unsafe { xs.add(r * stride + 4 * j).cast::<i32>().read_unaligned() };
            let four = _mm256_set1_epi32(four);
            let signed = match K::CODE {
                Code::Unsigned => four,
                _ => _mm256_sign_epi8(four, numbers),
            };
            let products = _mm256_maddubs_epi16(magnitudes, signed);
            pairs[r] = if i % K::QUADS_IN_I16 == 0 { products } else { _mm256_add_epi16(pairs[r], products) };
            if i % K::QUADS_IN_I16 == K::QUADS_IN_I16 - 1 {
                let sums = _mm256_madd_epi16(pairs[r], ones);
                total[r] = if i < K::QUADS_IN_I16 { sums } else { _mm256_add_epi32(total[r], sums) };
            }
        }
    }
    total
}

/// The sum of 16 int8.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sum16(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    let pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
    let fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    let twos = _mm_add_epi32(fours, _mm_srli_si128::<8>(fours));
    let one = _mm_add_epi32(twos, _mm_srli_si128::<4>(twos));
    _mm_cvtsi128_si32(one) as f32
}
