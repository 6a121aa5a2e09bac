//! Eight f32 as two vectors of NEON: what the kernels are written with. `avx2/lanes.rs` has the same names, and each
//! function here gives the bits that it gives there; a NaN alone may have others.

use std::arch::{aarch64::*, asm};

use super::super::simd::Lanes;

/// Eight f32.
#[derive(Clone, Copy)]
pub(in crate::cpu::fast) struct F32x8(float32x4_t, float32x4_t);
/// Eight i32.
#[derive(Clone, Copy)]
pub(in crate::cpu::fast) struct I32x8(pub(super) int32x4_t, pub(super) int32x4_t);
/// Four f32.
pub(in crate::cpu::fast) type F32x4 = float32x4_t;

impl F32x8 {
    /// The two vectors.
    pub(super) fn halves(self) -> [float32x4_t; 2] {
        [self.0, self.1]
    }
}

/// Zeros.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn zero8() -> F32x8 {
    all8(0.0)
}

/// Eight times `x`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn all8(x: f32) -> F32x8 {
    F32x8(vdupq_n_f32(x), vdupq_n_f32(x))
}

/// `a + b`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn add8(a: F32x8, b: F32x8) -> F32x8 {
    F32x8(vaddq_f32(a.0, b.0), vaddq_f32(a.1, b.1))
}

/// `a - b`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn sub8(a: F32x8, b: F32x8) -> F32x8 {
    F32x8(vsubq_f32(a.0, b.0), vsubq_f32(a.1, b.1))
}

/// `a * b`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn mul8(a: F32x8, b: F32x8) -> F32x8 {
    F32x8(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1))
}

/// `a / b`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn div8(a: F32x8, b: F32x8) -> F32x8 {
    F32x8(vdivq_f32(a.0, b.0), vdivq_f32(a.1, b.1))
}

/// `a * b + c`, rounded once.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn fma8(a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
    F32x8(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1))
}

/// `c - a * b`, rounded once.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn fnma8(a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
    F32x8(vfmsq_f32(c.0, a.0, b.0), vfmsq_f32(c.1, a.1, b.1))
}

/// `a > b ? a : b`. The instruction for a maximum would keep a NaN of either side.
#[inline]
#[target_feature(enable = "neon")]
fn larger4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// Lane by lane `a > b ? a : b`: b where one of them is a NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn larger8(a: F32x8, b: F32x8) -> F32x8 {
    F32x8(larger4(a.0, b.0), larger4(a.1, b.1))
}

/// Lane by lane `a < b ? a : b`: b where one of them is a NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn smaller8(a: F32x8, b: F32x8) -> F32x8 {
    let smaller = |a, b| vbslq_f32(vcltq_f32(a, b), a, b);
    F32x8(smaller(a.0, b.0), smaller(a.1, b.1))
}

/// `-x`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn neg8(x: F32x8) -> F32x8 {
    F32x8(vnegq_f32(x.0), vnegq_f32(x.1))
}

/// `|x|`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn abs8(x: F32x8) -> F32x8 {
    F32x8(vabsq_f32(x.0), vabsq_f32(x.1))
}

/// Rounded to integers, ties to even.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn round8(x: F32x8) -> F32x8 {
    F32x8(vrndnq_f32(x.0), vrndnq_f32(x.1))
}

/// `y`, but 0 where `x < low`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn clear_below8(y: F32x8, x: F32x8, low: f32) -> F32x8 {
    let low = vdupq_n_f32(low);
    let clear = |y, x| vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, low)));
    F32x8(clear(y.0, x.0), clear(y.1, x.1))
}

/// `p * 2^n` for integers `n` of -252 to 254, in two factors.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn times_power8(p: F32x8, n: F32x8) -> F32x8 {
    let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
    let times = |p, n| {
        let n = vcvtnq_s32_f32(n);
        let half = vshrq_n_s32::<1>(n);
        vmulq_f32(vmulq_f32(p, power(half)), power(vsubq_s32(n, half)))
    };
    F32x8(times(p.0, n.0), times(p.1, n.1))
}

/// Whether any of 32 is a NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn any_nan32(v: &[F32x8; 4]) -> bool {
    let number = v.map(|v| vandq_u32(vceqq_f32(v.0, v.0), vceqq_f32(v.1, v.1)));
    let number = vandq_u32(vandq_u32(number[0], number[1]), vandq_u32(number[2], number[3]));
    vminvq_u32(number) == 0
}

/// The integers as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn to_f32x8(x: I32x8) -> F32x8 {
    F32x8(vcvtq_f32_s32(x.0), vcvtq_f32_s32(x.1))
}

/// Eight f16 as f32. Instructions that every aarch64 has; their intrinsics ask for a later Rust than this crate.
#[inline]
#[target_feature(enable = "neon")]
fn from_f16(x: uint16x8_t) -> F32x8 {
    let (low, high);
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {x:v}.4h",
            "fcvtl2 {high:v}.4s, {x:v}.8h",
            x = in(vreg) x,
            low = out(vreg) low,
            high = out(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    F32x8(low, high)
}

/// Eight f32 rounded to f16, ties to even.
#[inline]
#[target_feature(enable = "neon")]
fn to_f16(x: F32x8) -> uint16x8_t {
    let packed;
    // SAFETY: as in `from_f16`.
    unsafe {
        asm!(
            "fcvtn {packed:v}.4h, {low:v}.4s",
            "fcvtn2 {packed:v}.8h, {high:v}.4s",
            low = in(vreg) x.0,
            high = in(vreg) x.1,
            packed = out(vreg) packed,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    packed
}

/// Eight elements as f32.
///
/// # Safety
/// Eight elements can be read at `p`, aligned or not.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn load8<T: Lanes>(p: *const T) -> F32x8 {
    // SAFETY: the caller's promise; loads of any alignment.
    unsafe {
        match T::KIND {
            0 => F32x8(vld1q_f32(p.cast()), vld1q_f32(p.cast::<f32>().add(4))),
            1 => from_f16(vld1q_u16(p.cast())),
            _ => {
                let x = vld1q_u16(p.cast());
                let wide = |x| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(x)));
                F32x8(wide(vget_low_u16(x)), wide(vget_high_u16(x)))
            }
        }
    }
}

/// Rounds eight f32 to the element type and stores them.
///
/// # Safety
/// Eight elements can be written at `p`, aligned or not.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn store8<T: Lanes>(p: *mut T, x: F32x8) {
    // SAFETY: the caller's promise; stores of any alignment.
    unsafe {
        match T::KIND {
            0 => {
                vst1q_f32(p.cast(), x.0);
                vst1q_f32(p.cast::<f32>().add(4), x.1);
            }
            1 => vst1q_u16(p.cast(), to_f16(x)),
            _ => vst1q_u16(p.cast(), vcombine_u16(to_bf16(x.0), to_bf16(x.1))),
        }
    }
}

/// Four f32 rounded to bf16, ties to even; a NaN stays one.
#[inline]
#[target_feature(enable = "neon")]
fn to_bf16(x: float32x4_t) -> uint16x4_t {
    let bits = vreinterpretq_u32_f32(x);
    let upper = vshrq_n_u32::<16>(bits);
    let half = vaddq_u32(vandq_u32(upper, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
    let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, half));
    // Rounding could carry a NaN's bits away.
    let quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
    vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet))
}

/// The first of the eight lanes.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn first8(x: F32x8) -> f32 {
    vgetq_lane_f32::<0>(x.0)
}

/// The sum of the eight lanes, in one fixed order.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn sum8(x: F32x8) -> f32 {
    let four = vaddq_f32(x.0, x.1);
    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
}

/// The largest of the eight lanes; a NaN may be lost.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn max8(x: F32x8) -> f32 {
    let four = larger4(x.0, x.1);
    let (low, high) = (vget_low_f32(four), vget_high_f32(four));
    let two = vbsl_f32(vcgt_f32(low, high), low, high);
    let (a, b) = (vget_lane_f32::<0>(two), vget_lane_f32::<1>(two));
    if a > b { a } else { b }
}

/// The sums of the lanes of four vectors. The order is fixed, and not that of [`sum8`].
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn sums_of_four8([a, b, c, d]: [F32x8; 4]) -> F32x4 {
    let halves = |a, b, c, d| {
        // Two steps that halve and interleave.
        let ab = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b)));
        let cd = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(c, d), vzip2q_f32(c, d)));
        vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(ab, cd)), vreinterpretq_f32_f64(vzip2q_f64(ab, cd)))
    };
    vaddq_f32(halves(a.0, b.0, c.0, d.0), halves(a.1, b.1, c.1, d.1))
}

/// Writes four times a factor.
///
/// # Safety
/// Four elements can be written at `p`, aligned or not.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn store_scaled4(p: *mut f32, x: F32x4, scale: f32) {
    // SAFETY: the caller's promise; a store of any alignment.
    unsafe { vst1q_f32(p, vmulq_n_f32(x, scale)) }
}

/// Sixteen elements as those of even and those of odd index, both in one order: that of [`in_unzip_order8`].
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn unzip8(low: F32x8, high: F32x8) -> (F32x8, F32x8) {
    let even = F32x8(vuzp1q_f32(low.0, low.1), vuzp1q_f32(high.0, high.1));
    let odd = F32x8(vuzp2q_f32(low.0, low.1), vuzp2q_f32(high.0, high.1));
    (even, odd)
}

/// The inverse of [`unzip8`].
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn zip8(even: F32x8, odd: F32x8) -> (F32x8, F32x8) {
    let both = |even, odd| F32x8(vzip1q_f32(even, odd), vzip2q_f32(even, odd));
    (both(even.0, odd.0), both(even.1, odd.1))
}

/// Eight elements in the order that [`unzip8`] gives: as they are.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn in_unzip_order8(x: F32x8) -> F32x8 {
    x
}

/// Asks for a line of memory before it is read: a hint, for any address.
#[inline]
pub(in crate::cpu::fast) fn prefetch(p: *const u8) {
    // SAFETY: a hint, which reads nothing.
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
}

/// Eight bytes as i32.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn load_u8(p: *const u8) -> I32x8 {
    // SAFETY: the caller's promise.
    let x = vmovl_u8(unsafe { vld1_u8(p) });
    let wide = |x| vreinterpretq_s32_u32(vmovl_u16(x));
    I32x8(wide(vget_low_u16(x)), wide(vget_high_u16(x)))
}

/// Eight int8 as i32.
///
/// # Safety
/// They can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn load_i8(p: *const u8) -> I32x8 {
    // SAFETY: the caller's promise.
    let x = vmovl_s8(unsafe { vld1_s8(p.cast()) });
    I32x8(vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x)))
}

/// Eight times `x`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn all_i32x8(x: i32) -> I32x8 {
    I32x8(vdupq_n_s32(x), vdupq_n_s32(x))
}

/// `2^(code - 127)`; 255 is NaN. Code 0 is the subnormal `2^-127`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn e8m0(codes: I32x8) -> F32x8 {
    let one = |codes| {
        let subnormal = vdupq_n_s32(1 << 22);
        let bits = vbslq_s32(vceqzq_s32(codes), subnormal, vshlq_n_s32::<23>(codes));
        let nan = vreinterpretq_s32_u32(vceqq_s32(codes, vdupq_n_s32(255)));
        vreinterpretq_f32_s32(vorrq_s32(bits, vandq_s32(nan, subnormal)))
    };
    F32x8(one(codes.0), one(codes.1))
}

/// Sign, four bits of exponent with a bias of 7, three of mantissa; 127 and 255 are NaN. Shifted into place the
/// exponent is off by `127 - 7`, which a product puts right, for subnormals too.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) fn e4m3(codes: I32x8) -> F32x8 {
    let one = |codes| {
        let magnitude = vandq_s32(codes, vdupq_n_s32(0x7f));
        let sign = vshlq_n_s32::<24>(vandq_s32(codes, vdupq_n_s32(0x80)));
        let scaled = vreinterpretq_f32_s32(vshlq_n_s32::<20>(magnitude));
        let scaled = vreinterpretq_s32_f32(vmulq_n_f32(scaled, f32::from_bits((127 + 120) << 23)));
        let nan = vreinterpretq_s32_u32(vceqq_s32(magnitude, vdupq_n_s32(0x7f)));
        vreinterpretq_f32_s32(vorrq_s32(vorrq_s32(scaled, sign), nan))
    };
    F32x8(one(codes.0), one(codes.1))
}
