//! The codes of a sub-group: unpacked, and multiplied with rows of integers.
//!
//! Products are those of `vmull_s8` and `vmlal_s8`. `sdot` would take one instruction for four of them, but Rust has it
//! (`vdotq_s32`) in its nightly versions alone.

use std::arch::aarch64::*;

use super::super::{
    kind::{Code, Kind},
    lanes::I32x8,
};

/// 32 bytes: four of each of eight rows.
#[derive(Clone, Copy)]
struct Bytes(uint8x16_t, uint8x16_t);

/// 32 numbers: a quad.
#[derive(Clone, Copy)]
pub(in crate::cpu::fast) struct Quad(int8x16_t, int8x16_t);

/// Codes of one scale's quads, or of half of them, in registers: what rows of x are multiplied with one after the other.
pub(in crate::cpu::fast) type Unit = [Quad; 8];

#[inline]
#[target_feature(enable = "neon")]
fn shr<const N: i32>(v: Bytes) -> Bytes {
    Bytes(vshrq_n_u8::<N>(v.0), vshrq_n_u8::<N>(v.1))
}

/// `low | high << N`.
#[inline]
#[target_feature(enable = "neon")]
fn join<const N: i32>(low: Bytes, high: Bytes) -> Bytes {
    Bytes(vorrq_u8(low.0, vshlq_n_u8::<N>(high.0)), vorrq_u8(low.1, vshlq_n_u8::<N>(high.1)))
}

/// Bytes `32 * i..32 * i + 32` from `p` on.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(p: *const u8, i: usize) -> Bytes {
    // SAFETY: the caller's promise.
    unsafe { Bytes(vld1q_u8(p.add(32 * i)), vld1q_u8(p.add(32 * i + 16))) }
}

/// The codes of quad `j` of a part of `bits` bits that begins at `p`.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn part(bits: usize, p: *const u8, j: usize) -> Bytes {
    let vector = match bits {
        4 => j % 4,
        2 => j / 4,
        _ => 0,
    };
    // SAFETY: a part of `bits` bits takes `bits` times 32 bytes.
    let v = unsafe { load(p, vector) };
    let v = match (bits, j) {
        (4, 4..) => return shr::<4>(v),
        (2, 1 | 5) | (1, 2) => shr::<2>(v),
        (2, 2 | 6) | (1, 4) => shr::<4>(v),
        (2, 3 | 7) | (1, 6) => shr::<6>(v),
        (1, 1) => shr::<1>(v),
        (1, 3) => shr::<3>(v),
        (1, 5) => shr::<5>(v),
        (1, 7) => shr::<7>(v),
        _ => v,
    };
    let mask = vdupq_n_u8((1 << bits) - 1);
    Bytes(vandq_u8(v.0, mask), vandq_u8(v.1, mask))
}

/// Quad `j` of the sub-group at `p`: the numbers that its codes stand for.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn quad<K: Kind>(p: *const u8, j: usize) -> Quad {
    // SAFETY: the caller's promise.
    let codes = unsafe {
        match K::BITS {
            3 => join::<2>(part(2, p, j), part(1, p.add(64), j)),
            5 => join::<4>(part(4, p, j), part(1, p.add(128), j)),
            6 => join::<4>(part(4, p, j), part(2, p.add(128), j)),
            8 => load(p, j),
            bits => part(bits, p, j),
        }
    };
    let number = |codes| match K::CODE {
        Code::Unsigned | Code::Signed => vreinterpretq_s8_u8(codes),
        Code::Centred(centre) => vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(centre)),
        Code::E2M1 => {
            // Twice 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, a byte each.
            let magnitudes = vcreate_s8(0x0c08_0604_0302_0100);
            vqtbl1q_s8(vcombine_s8(magnitudes, vneg_s8(magnitudes)), codes)
        }
    };
    Quad(number(codes.0), number(codes.1))
}

/// Quads of unit `u` of the sub-group at `p`: the first [`Kind::UNIT`] of the result, in the order in which they are stored.
///
/// # Safety
/// A sub-group's codes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn unit<K: Kind>(p: *const u8, u: usize) -> Unit {
    let mut unit = [Quad(vdupq_n_s8(0), vdupq_n_s8(0)); 8];
    for (i, quad_of) in unit.iter_mut().enumerate().take(K::UNIT) {
        // SAFETY: the caller's promise.
        *quad_of = unsafe { quad::<K>(p, u * K::UNIT + i) };
    }
    unit
}

/// Integer dot products of unit `u` with a row in `PLANES` planes.
///
/// # Safety
/// `PLANES` times 32 int8 can be read at `xs`.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn dot<K: Kind, const PLANES: usize>(
    codes: &Unit,
    xs: *const u8,
    u: usize,
) -> I32x8 {
    // A lane of 16 bits takes one product of a quad, where `QUADS_IN_I16` counts pairs.
    let quads = K::UNIT.min(2 * K::QUADS_IN_I16);
    let zero = vdupq_n_s32(0);
    let mut total = I32x8(zero, zero);
    for plane in 0..PLANES {
        // Two rows each, and for each of them two sums of every other product.
        let mut sums = [zero; 4];
        for first in (0..K::UNIT).step_by(quads) {
            let mut products = [vdupq_n_s16(0); 4];
            for (i, &Quad(a, b)) in codes.iter().enumerate().skip(first).take(quads) {
                // SAFETY: element `4j` of a plane; four bytes from there.
                let x = unsafe { xs.add(32 * plane + 4 * (u * K::UNIT + i)).cast::<i32>().read_unaligned() };
                let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                products[0] = vmlal_s8(products[0], vget_low_s8(a), vget_low_s8(x));
                products[1] = vmlal_high_s8(products[1], a, x);
                products[2] = vmlal_s8(products[2], vget_low_s8(b), vget_low_s8(x));
                products[3] = vmlal_high_s8(products[3], b, x);
            }
            for (sums, products) in sums.iter_mut().zip(products) {
                *sums = vpadalq_s16(*sums, products);
            }
        }
        // The last plane counts once, the one before it 128 times.
        let shifted = (vshlq_n_s32::<7>(total.0), vshlq_n_s32::<7>(total.1));
        total = I32x8(
            vaddq_s32(shifted.0, vpaddq_s32(sums[0], sums[1])),
            vaddq_s32(shifted.1, vpaddq_s32(sums[2], sums[3])),
        );
    }
    total
}

/// The sum of 16 codes of a row in `PLANES` planes.
///
/// # Safety
/// 16 bytes of each plane can be read, 32 apart, from `p` on.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::cpu::fast) unsafe fn sum16<const PLANES: usize>(p: *const u8) -> f32 {
    let mut total = 0;
    for plane in 0..PLANES {
        // SAFETY: the caller's promise.
        let bytes = unsafe { vld1q_s8(p.add(32 * plane).cast()) };
        total = 128 * total + i32::from(vaddlvq_s8(bytes));
    }
    total as f32
}
