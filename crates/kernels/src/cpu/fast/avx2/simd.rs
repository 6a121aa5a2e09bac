//! Small pieces of AVX2 that several kernels share.

use std::arch::x86_64::*;

use half::{bf16, f16};
use portolan_device::DeviceCaps;

use crate::{Activation, Decline};

/// Whether the processor has what these kernels are compiled for. Every `takes` here asks it first, and that is
/// what makes the calls into `target_feature` functions sound.
pub(super) fn available(caps: &DeviceCaps) -> Result<(), Decline> {
    let has = ["avx2", "fma", "f16c"].iter().all(|f| caps.has_feature(f));
    if has { Ok(()) } else { Err(Decline::Arch) }
}

/// An element of a dense weight or of a cache that can be read eight at a time as f32.
pub(super) trait Lanes: bytemuck::Pod + Send + Sync {
    /// 0 f32, 1 f16, 2 bf16: a constant for [`load8`], since a trait's method cannot have target features.
    const KIND: u8;
    /// One element.
    fn to_f32(self) -> f32;
    /// Rounded to nearest even.
    fn from_f32(x: f32) -> Self;
}

impl Lanes for f32 {
    const KIND: u8 = 0;
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(x: f32) -> Self {
        x
    }
}

impl Lanes for f16 {
    const KIND: u8 = 1;
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
}

impl Lanes for bf16 {
    const KIND: u8 = 2;
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
}

/// Eight elements as f32.
///
/// # Safety
/// Eight elements can be read at `p`, aligned or not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load8<T: Lanes>(p: *const T) -> __m256 {
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

/// The first `n < 8` of eight elements, zeros after them.
///
/// # Safety
/// `n` elements can be read at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load_tail<T: Lanes>(p: *const T, n: usize) -> __m256 {
    let mut lanes = [0.0f32; 8];
    for (i, lane) in lanes.iter_mut().enumerate().take(n) {
        // SAFETY: `i < n`.
        *lane = unsafe { p.add(i).read_unaligned() }.to_f32();
    }
    // SAFETY: an array of eight.
    unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
}

/// Rounds eight f32 to the element type and stores them.
///
/// # Safety
/// Eight elements can be written at `p`, aligned or not.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn store8<T: Lanes>(p: *mut T, x: __m256) {
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
fn to_bf16(x: __m256) -> __m128i {
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

/// The sum of the eight lanes, in one fixed order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sum8(x: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest of the eight lanes; a NaN may be lost.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn max8(x: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// `exp(x)`, within 2 units in the last place; 0 below -87.3 (no subnormals), infinity above 88.7, NaN of NaN.
///
/// `exp(x) = 2^n * exp(r)` with `n` the nearest integer to `x / ln 2`, so `|r| <= ln 2 / 2`. `ln 2` is
/// subtracted in two parts (Cody and Waite) so that `r` is nearly exact, and `exp(r)` is a Taylor polynomial of
/// degree 7, whose error on that interval is `0.3466^8 / 8! = 5e-9`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn exp8(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let low = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(-87.3));
    // Infinity comes of itself from here; the order of the operands keeps a NaN.
    let x = _mm256_min_ps(_mm256_set1_ps(89.0), x);
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693_359_4), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.121_944_4e-4), r);
    let mut p = _mm256_set1_ps(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    let p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r), one);
    // 2^n in two factors, since n reaches 128 where the result is still finite.
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
    let y = _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)));
    _mm256_andnot_ps(low, y)
}

/// `x / (1 + exp(-x))`: within 4 units in the last place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn silu8(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
    _mm256_div_ps(x, _mm256_add_ps(one, exp8(minus)))
}

/// The functions that [`activate8`] has.
pub(super) fn takes_activation(f: Activation) -> Result<(), Decline> {
    match f {
        Activation::Silu | Activation::GeluTanh | Activation::Relu2 => Ok(()),
        Activation::Gelu => Err(Decline::Dtype),
    }
}

/// An elementwise function, within 8 units in the last place.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn activate8(f: Activation, x: __m256) -> __m256 {
    match f {
        Activation::Silu => silu8(x),
        // x/2 * (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
        Activation::GeluTanh | Activation::Gelu => {
            let minus_2u = _mm256_mul_ps(
                _mm256_mul_ps(x, _mm256_set1_ps(-1.595_769)),
                _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044_715), _mm256_set1_ps(1.0)),
            );
            _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0), exp8(minus_2u)))
        }
        Activation::Relu2 => {
            // The operand order keeps a NaN.
            let x = _mm256_max_ps(_mm256_setzero_ps(), x);
            _mm256_mul_ps(x, x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    fn apply(f: impl Fn(__m256) -> __m256, x: f32) -> f32 {
        let mut out = [0.0; 8];
        // SAFETY: an array of eight.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), f(_mm256_set1_ps(x))) };
        assert!(out.iter().all(|o| o.to_bits() == out[0].to_bits()));
        out[0]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn exp(x: f32) -> f32 {
        apply(|v| exp8(v), x)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn silu(x: f32) -> f32 {
        apply(|v| silu8(v), x)
    }

    #[test]
    fn exp_and_silu_are_within_their_stated_error() {
        if !super::super::tests::here() {
            return;
        }
        let (mut worst_exp, mut worst_silu) = (0.0f64, 0.0f64);
        for i in -870_000..=887_000 {
            let x = i as f32 * 1e-4;
            let ulps =
                |y: f32, exact: f64| (f64::from(y) - exact).abs() / (exact.abs() * f64::from(f32::EPSILON));
            // SAFETY: the features are there.
            let (e, s) = unsafe { (exp(x), silu(x)) };
            let d = f64::from(x);
            worst_exp = worst_exp.max(ulps(e, d.exp()));
            if x > -80.0 && x != 0.0 {
                worst_silu = worst_silu.max(ulps(s, d / (1.0 + (-d).exp())));
            }
        }
        assert!(worst_exp <= 2.0, "exp: {worst_exp}");
        assert!(worst_silu <= 4.0, "silu: {worst_silu}");
    }

    #[test]
    fn stores_round_as_half_does() {
        if !super::super::tests::here() {
            return;
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn check<T: Lanes>(x: &[f32; 8]) {
            let mut out = [T::from_f32(0.0); 8];
            // SAFETY: arrays of eight.
            unsafe { store8(out.as_mut_ptr(), load8(x.as_ptr())) };
            for (&x, &out) in x.iter().zip(&out) {
                let bytes = |t: T| bytemuck::bytes_of(&t).to_vec();
                if x.is_nan() {
                    assert!(out.to_f32().is_nan());
                } else {
                    assert_eq!(bytes(out), bytes(T::from_f32(x)), "{x}");
                }
            }
        }
        let mut rng = super::super::tests::Rng::new(9);
        for i in 0..100_000u32 {
            // Any bits, and those around a tie.
            let x: [f32; 8] = std::array::from_fn(|lane| {
                let bits = rng.bits() as u32;
                f32::from_bits(if i % 2 == 0 { bits } else { (bits & !0xffff) | (0x7fff + lane as u32 % 3) })
            });
            // SAFETY: the features are there.
            unsafe {
                check::<f32>(&x);
                check::<f16>(&x);
                check::<bf16>(&x);
            }
        }
    }

    #[test]
    fn exp_at_its_edges() {
        if !super::super::tests::here() {
            return;
        }
        // SAFETY: the features are there.
        let exp = |x| unsafe { exp(x) };
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(88.7).is_finite());
        assert!(exp(f32::NAN).is_nan());
        // SAFETY: the features are there.
        assert_eq!(unsafe { silu(-200.0) }.abs(), 0.0);
    }
}
