//! The codes of a sub-group: unpacked, and multiplied with rows of integers.

use std::arch::x86_64::*;

use super::super::kind::{Code, Kind};

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

/// Codes of one scale's quads, or of half of them, in registers: what rows of x are multiplied with one after the other.
pub(in crate::cpu::fast) type Unit = [(__m256i, __m256i); 8];

/// Quads of unit `u` of the sub-group at `p`: the first [`Kind::UNIT`] of the result, in the order in which they are stored.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn unit<K: Kind>(p: *const u8, u: usize) -> Unit {
    let mut unit = [(_mm256_setzero_si256(), _mm256_setzero_si256()); 8];
    for (i, quad_of) in unit.iter_mut().enumerate().take(K::UNIT) {
        // SAFETY: the caller's promise.
        *quad_of = unsafe { quad::<K>(p, u * K::UNIT + i) };
    }
    unit
}

/// Four int8 of x to meet a quad of codes, which take their signs.
///
/// # Safety
/// Four bytes can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn four<K: Kind>(p: *const u8, numbers: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    let four = _mm256_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() });
    match K::CODE {
        Code::Unsigned => four,
        _ => _mm256_sign_epi8(four, numbers),
    }
}

/// The products of eight quads of codes that have no sign with a plane of x, summed in 16 bits.
///
/// In two chains, in assembly: the compiler would make a tree of the sums, and takes more registers for it than there are.
///
/// # Safety
/// 32 bytes can be read at `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains(codes: &Unit, x: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let product = |i: usize| unsafe {
        let four = _mm256_set1_epi32(x.add(4 * i).cast::<i32>().read_unaligned());
        _mm256_maddubs_epi16(codes[i].0, four)
    };
    let (mut even, mut odd) = (product(0), product(1));
    macro_rules! add {
        ($chain:ident, $i:literal) => {
            // SAFETY: reads four bytes of `x`, and writes nothing but the two registers.
            unsafe {
                std::arch::asm!(
                    "vpbroadcastd {four}, dword ptr [{x} + 4 * {i}]",
                    "vpmaddubsw {four}, {codes}, {four}",
                    "vpaddw {chain}, {chain}, {four}",
                    four = out(ymm_reg) _,
                    x = in(reg) x,
                    i = const $i,
                    codes = in(ymm_reg) codes[$i].0,
                    chain = inlateout(ymm_reg) $chain,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
        };
    }
    add!(even, 2);
    add!(odd, 3);
    add!(even, 4);
    add!(odd, 5);
    add!(even, 6);
    add!(odd, 7);
    _mm256_add_epi16(even, odd)
}

/// Integer dot products of unit `u` with a row in `PLANES` planes.
///
/// # Safety
/// `PLANES` times 32 int8 can be read at `xs`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn dot<K: Kind, const PLANES: usize>(
    codes: &Unit,
    xs: *const u8,
    u: usize,
) -> __m256i {
    let mut total = _mm256_setzero_si256();
    for first in (0..K::UNIT).step_by(K::QUADS_IN_I16) {
        for plane in 0..PLANES {
            // SAFETY: a plane's 32 bytes.
            let xs = unsafe { xs.add(32 * plane) };
            let pairs = if K::CODE == Code::Unsigned && K::QUADS_IN_I16 == 8 && K::UNIT == 8 {
                // SAFETY: as above; all quads of a plane are in one sum.
                unsafe { chains(codes, xs) }
            } else {
                let mut pairs = _mm256_setzero_si256();
                for i in first..first + K::QUADS_IN_I16 {
                    let (magnitudes, numbers) = codes[i];
                    // SAFETY: element `4j` of a plane; four bytes from there.
                    let x = unsafe { four::<K>(xs.add(4 * (u * K::UNIT + i)), numbers) };
                    let products = _mm256_maddubs_epi16(magnitudes, x);
                    pairs = if i == first { products } else { _mm256_add_epi16(pairs, products) };
                }
                pairs
            };
            // The last plane counts once, the one before it 128 times.
            let weight = _mm256_set1_epi16(if plane + 1 == PLANES { 1 } else { 128 });
            let sums = _mm256_madd_epi16(pairs, weight);
            total = if first + plane == 0 { sums } else { _mm256_add_epi32(total, sums) };
        }
    }
    total
}

/// The sum of 16 codes of a row in `PLANES` planes.
///
/// # Safety
/// 16 bytes of each plane can be read, 32 apart, from `p` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn sum16<const PLANES: usize>(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match PLANES {
            1 => sum16_bytes(p) as f32,
            _ => (128 * sum16_bytes(p) + sum16_bytes(p.add(32))) as f32,
        }
    }
}

/// The sum of 16 int8.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum16_bytes(p: *const u8) -> i32 {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    let pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
    let fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    let twos = _mm_add_epi32(fours, _mm_srli_si128::<8>(fours));
    let one = _mm_add_epi32(twos, _mm_srli_si128::<4>(twos));
    _mm_cvtsi128_si32(one)
}
