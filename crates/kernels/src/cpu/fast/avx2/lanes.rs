//! Vectors of eight f32 in AVX2: what the kernels are written with. `neon/lanes.rs` has the same names.

use std::arch::x86_64::*;

use super::super::simd::Lanes;

/// Eight f32.
pub(in crate::cpu::fast) type F32x8 = __m256;
/// Eight i32.
pub(in crate::cpu::fast) type I32x8 = __m256i;
/// Four f32.
pub(in crate::cpu::fast) type F32x4 = __m128;

/// Zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn zero8() -> F32x8 {
    _mm256_setzero_ps()
}

/// Eight times `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn all8(x: f32) -> F32x8 {
    _mm256_set1_ps(x)
}

/// `a + b`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn add8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_add_ps(a, b)
}

/// `a - b`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn sub8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_sub_ps(a, b)
}

/// `a * b`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn mul8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_mul_ps(a, b)
}

/// `a / b`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn div8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_div_ps(a, b)
}

/// `a * b + c`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn fma8(a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
    _mm256_fmadd_ps(a, b, c)
}

/// `c - a * b`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn fnma8(a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
    _mm256_fnmadd_ps(a, b, c)
}

/// Lane by lane `a > b ? a : b`: b where one of them is a NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn larger8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_max_ps(a, b)
}

/// Lane by lane `a < b ? a : b`: b where one of them is a NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn smaller8(a: F32x8, b: F32x8) -> F32x8 {
    _mm256_min_ps(a, b)
}

/// `-x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn neg8(x: F32x8) -> F32x8 {
    _mm256_xor_ps(x, _mm256_set1_ps(-0.0))
}

/// `|x|`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn abs8(x: F32x8) -> F32x8 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
}

/// Rounded to integers, ties to even.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn round8(x: F32x8) -> F32x8 {
    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// `y`, but 0 where `x < low`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn clear_below8(y: F32x8, x: F32x8, low: f32) -> F32x8 {
    _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(low)), y)
}

/// `p * 2^n` for integers `n` of -252 to 254, in two factors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn times_power8(p: F32x8, n: F32x8) -> F32x8 {
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
    _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)))
}

/// Whether any of 32 is a NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn any_nan32(v: &[F32x8; 4]) -> bool {
    let nan = v.map(|v| _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
    let nan = _mm256_or_ps(_mm256_or_ps(nan[0], nan[1]), _mm256_or_ps(nan[2], nan[3]));
    _mm256_movemask_ps(nan) != 0
}

/// The integers as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn to_f32x8(x: I32x8) -> F32x8 {
    _mm256_cvtepi32_ps(x)
}

/// Eight elements as f32.
///
/// # Safety
/// Eight elements can be read at `p`, aligned or not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn load8<T: Lanes>(p: *const T) -> F32x8 {
    // SAFETY: the caller's promise; unaligned loads.
    unsafe {
        match T::KIND {
            0 => _mm256_loadu_ps(p.cast()),
            1 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            _ => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
    }
}

/// Rounds eight f32 to the element type and stores them.
///
/// # Safety
/// Eight elements can be written at `p`, aligned or not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn store8<T: Lanes>(p: *mut T, x: F32x8) {
    // SAFETY: the caller's promise; unaligned stores.
    unsafe {
        match T::KIND {
            0 => _mm256_storeu_ps(p.cast(), x),
            1 => _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)),
            _ => _mm_storeu_si128(p.cast(), to_bf16(x)),
        }
    }
}

/// Eight f32 rounded to bf16, ties to even; a NaN stays one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_bf16(x: F32x8) -> __m128i {
    let bits = _mm256_castps_si256(x);
    let upper = _mm256_srli_epi32::<16>(bits);
    let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
    // Rounding could carry a NaN's bits away.
    let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
    let wide = _mm256_blendv_epi8(rounded, quiet, nan);
    // The pack works within halves.
    let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(wide, wide));
    _mm256_castsi256_si128(packed)
}

/// The first of the eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn first8(x: F32x8) -> f32 {
    _mm256_cvtss_f32(x)
}

/// The sum of the eight lanes, in one fixed order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn sum8(x: F32x8) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest of the eight lanes; a NaN may be lost.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn max8(x: F32x8) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// The sums of the lanes of four vectors. The order is fixed, and not that of [`sum8`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn sums_of_four8([a, b, c, d]: [F32x8; 4]) -> F32x4 {
    // Two steps that halve and interleave, then the halves.
    let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    let first = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
    let sums = _mm256_add_ps(first, _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums))
}

/// Writes four times a factor.
///
/// # Safety
/// Four elements can be written at `p`, aligned or not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn store_scaled4(p: *mut f32, x: F32x4, scale: f32) {
    // SAFETY: the caller's promise; an unaligned store.
    unsafe { _mm_storeu_ps(p, _mm_mul_ps(x, _mm_set1_ps(scale))) }
}

/// Sixteen elements as those of even and those of odd index, both in one order: that of [`in_unzip_order8`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn unzip8(low: F32x8, high: F32x8) -> (F32x8, F32x8) {
    (_mm256_shuffle_ps::<0b10_00_10_00>(low, high), _mm256_shuffle_ps::<0b11_01_11_01>(low, high))
}

/// The inverse of [`unzip8`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn zip8(even: F32x8, odd: F32x8) -> (F32x8, F32x8) {
    (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd))
}

/// Eight elements in the order that [`unzip8`] gives.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn in_unzip_order8(x: F32x8) -> F32x8 {
    // A shuffle of two vectors takes two pairs from each half of each: 0 1 4 5 2 3 6 7.
    _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(x)))
}

/// Asks for a line of memory before it is read: a hint, for any address.
#[inline]
pub(in crate::cpu::fast) fn prefetch(p: *const u8) {
    // SAFETY: a hint, which every x86-64 processor has, and which reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// Eight bytes as i32.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn load_u8(p: *const u8) -> I32x8 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
}

/// `2^(code - 127)`; 255 is NaN. Code 0 is the subnormal `2^-127`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn e8m0(codes: I32x8) -> F32x8 {
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
pub(in crate::cpu::fast) fn e4m3(codes: I32x8) -> F32x8 {
    let magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)));
    let scaled = _mm256_mul_ps(
        _mm256_castsi256_ps(_mm256_slli_epi32::<20>(magnitude)),
        _mm256_set1_ps(f32::from_bits((127 + 120) << 23)),
    );
    let nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
    _mm256_or_ps(_mm256_or_ps(scaled, _mm256_castsi256_ps(sign)), nan)
}

/// Eight int8 as i32.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) unsafe fn load_i8(p: *const u8) -> I32x8 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())) }
}

/// Eight times `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::fast) fn all_i32x8(x: i32) -> I32x8 {
    _mm256_set1_epi32(x)
}
