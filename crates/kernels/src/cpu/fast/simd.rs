//! Small pieces that several kernels share, made of the [`super::lanes`] of the processor.

use half::{bf16, f16};
use portolan_device::DeviceCaps;

use super::{isa::FEATURES, lanes::*};
use crate::{Activation, Decline, OpSpec, ValueType};

/// Whether the processor has what these kernels are compiled for. Every `takes` here asks it first, and that is
/// what makes the calls into `target_feature` functions sound.
pub(super) fn available(caps: &DeviceCaps) -> Result<(), Decline> {
    if FEATURES.iter().all(|f| caps.has_feature(f)) { Ok(()) } else { Err(Decline::Arch) }
}

/// As [`available`], and whether the input is f32.
pub(super) fn takes_floats(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    available(caps)?;
    match spec.input {
        ValueType::Activation | ValueType::F32 => Ok(()),
        _ => Err(Decline::Dtype),
    }
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

/// The first `n < 8` of eight elements, zeros after them.
///
/// # Safety
/// `n` elements can be read at `p`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn load_tail<T: Lanes>(p: *const T, n: usize) -> F32x8 {
    let mut lanes = [0.0f32; 8];
    for (i, lane) in lanes.iter_mut().enumerate().take(n) {
        // SAFETY: `i < n`.
        *lane = unsafe { p.add(i).read_unaligned() }.to_f32();
    }
    // SAFETY: an array of eight.
    unsafe { load8(lanes.as_ptr()) }
}

/// `exp(x)`, within 2 units in the last place; 0 below -87.3 (no subnormals), infinity above 88.7, NaN of NaN.
///
/// `exp(x) = 2^n * exp(r)` with `n` the nearest integer to `x / ln 2`, so `|r| <= ln 2 / 2`. `ln 2` is
/// subtracted in two parts (Cody and Waite) so that `r` is nearly exact, and `exp(r)` is a Taylor polynomial of
/// degree 7, whose error on that interval is `0.3466^8 / 8! = 5e-9`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) fn exp8(x: F32x8) -> F32x8 {
    let one = all8(1.0);
    let whole = x;
    // Infinity comes of itself from here; the order of the operands keeps a NaN.
    let x = smaller8(all8(89.0), x);
    let n = round8(mul8(x, all8(std::f32::consts::LOG2_E)));
    let r = fnma8(n, all8(0.693_359_4), x);
    let r = fnma8(n, all8(-2.121_944_4e-4), r);
    let mut p = all8(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = fma8(p, r, all8(c));
    }
    let p = add8(fma8(mul8(p, r), r, r), one);
    // 2^n in two factors, since n reaches 128 where the result is still finite.
    clear_below8(times_power8(p, n), whole, -87.3)
}

/// `x / (1 + exp(-x))`: within 4 units in the last place.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) fn silu8(x: F32x8) -> F32x8 {
    let one = all8(1.0);
    let minus = neg8(x);
    div8(x, add8(one, exp8(minus)))
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
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) fn activate8(f: Activation, x: F32x8) -> F32x8 {
    match f {
        Activation::Silu => silu8(x),
        // x/2 * (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
        Activation::GeluTanh | Activation::Gelu => {
            let minus_2u = mul8(mul8(x, all8(-1.595_769)), fma8(mul8(x, x), all8(0.044_715), all8(1.0)));
            div8(x, add8(all8(1.0), exp8(minus_2u)))
        }
        Activation::Relu2 => {
            // The operand order keeps a NaN.
            let x = larger8(zero8(), x);
            mul8(x, x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn apply(f: impl Fn(F32x8) -> F32x8, x: f32) -> f32 {
        let mut out = [0.0; 8];
        // SAFETY: an array of eight.
        unsafe { store8(out.as_mut_ptr(), f(all8(x))) };
        assert!(out.iter().all(|o| o.to_bits() == out[0].to_bits()));
        out[0]
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn exp(x: f32) -> f32 {
        apply(|v| exp8(v), x)
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
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
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
        #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
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
