//! The tile of AVX-512 VNNI for four and eight rows: two blocks of weights at a time, a half of a vector of 512 bits each.
//!
//! Lane by lane it does what [`super::super::tile`] does, in the same order: the bits are the same. One and two rows wait for
//! memory, and stay with vectors of 256 bits.

use std::arch::x86_64::*;

use portolan_weights::SUPER_GROUP;

use super::{
    super::{
        kind::{Code, Kind},
        rows8::{SUB, Scales},
        scales::scales,
        tile::{Geometry, IntRows, Sums, vnni},
    },
    codes::{sum16, unit},
    lanes::F32x8,
};

/// Codes of a unit of two blocks: magnitudes, and which of them are negative.
type Unit = [(__m512i, __mmask64); 8];

#[inline]
#[target_feature(enable = "avx512f")]
fn both(low: F32x8, high: F32x8) -> __m512 {
    let (low, high) = (_mm512_castps256_ps512(low), _mm256_castps_pd(high));
    _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castps_pd(low), high))
}

/// Scales and biases of group `g` of two records.
///
/// # Safety
/// They have such a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn two_scales<K: Kind>([a, b]: [*const u8; 2], g: usize) -> (__m512, __m512) {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (scales::<K>(a, g), scales::<K>(b, g)) };
    (both(a.0, b.0), both(a.1, b.1))
}

/// Unit `u` of the sub-groups at `a` and `b`.
///
/// # Safety
/// A sub-group's codes can be read at both.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn units<K: Kind>(a: *const u8, b: *const u8, u: usize) -> Unit {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (unit::<K>(a, u), unit::<K>(b, u)) };
    let join = |low, high| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    let mut units = [(_mm512_setzero_si512(), 0); 8];
    for (out, (a, b)) in units.iter_mut().zip(a.into_iter().zip(b)).take(K::UNIT) {
        let negative = match K::CODE {
            Code::Unsigned => 0,
            _ => _mm512_movepi8_mask(join(a.1, b.1)),
        };
        *out = (join(a.0, b.0), negative);
    }
    units
}

/// As [`super::vnni::dot`], for two blocks. Codes without a sign meet x in memory, and in assembly: the compiler would load
/// the numbers of many rows ahead, and put them by for want of registers.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn dot<K: Kind, const PLANES: usize>(codes: &Unit, xs: *const u8, u: usize) -> __m512i {
    let mut chains = [[_mm512_setzero_si512(); 2]; PLANES];
    for (plane, sums) in chains.iter_mut().enumerate() {
        let x = xs.wrapping_add(32 * plane + 4 * u * K::UNIT);
        macro_rules! add {
            ($($i:literal)*) => {$(
                if $i < K::UNIT {
                    // SAFETY: element `4j` of a plane, and four bytes from there; nothing is written but a register.
                    unsafe {
                        match K::CODE {
                            Code::Unsigned => std::arch::asm!(
                                "vpdpbusd {sum}, {codes}, dword ptr [{x} + 4 * {i}]{{1to16}}",
                                sum = inlateout(zmm_reg) sums[$i % 2],
                                codes = in(zmm_reg) codes[$i].0,
                                x = in(reg) x,
                                i = const $i,
                                options(pure, readonly, nostack, preserves_flags),
                            ),
                            _ => {
                                let x = _mm512_set1_epi32(x.add(4 * $i).cast::<i32>().read_unaligned());
                                let x = _mm512_mask_sub_epi8(x, codes[$i].1, _mm512_setzero_si512(), x);
                                sums[$i % 2] = _mm512_dpbusd_epi32(sums[$i % 2], codes[$i].0, x);
                            }
                        }
                    }
                }
            )*};
        }
        add!(0 1 2 3 4 5 6 7);
    }
    let planes = chains.map(|sums| _mm512_add_epi32(sums[0], sums[1]));
    match planes[..] {
        [high, low] => _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low),
        _ => planes[0],
    }
}

/// The products of some blocks of eight weight rows with `R` rows.
///
/// # Safety
/// As of the tiles of 256 bits.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::cpu::fast) unsafe fn strip<K: Kind, const R: usize, const PLANES: usize>(
    geometry: &Geometry,
    w: *const u8,
    blocks: usize,
    x: IntRows,
    out: &mut Sums<R>,
) {
    let block_bytes = x.groups / geometry.subs * (geometry.code_bytes + geometry.scale_bytes);
    let (pairs, last) = out[..blocks].as_chunks_mut::<2>();
    let mut at = w;
    for pair in pairs {
        // SAFETY: two of the blocks that there are.
        unsafe {
            *pair = tile::<K, R, PLANES>(geometry, [at, at.add(block_bytes)], x);
            at = at.add(2 * block_bytes);
        }
    }
    if let [last] = last {
        // SAFETY: the last of them.
        *last = unsafe { vnni::tile::<K, R, PLANES>(geometry, at, x) }.0;
    }
}

/// The products of two blocks.
///
/// # Safety
/// As [`strip`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<K: Kind, const R: usize, const PLANES: usize>(
    geometry: &Geometry,
    blocks: [*const u8; 2],
    x: IntRows,
) -> [[F32x8; R]; 2] {
    let (stride, scale_bytes) = (x.stride, geometry.scale_bytes);
    let (subs, code_bytes) = match K::SCALES {
        Scales::Affine(_) => (geometry.subs, geometry.code_bytes),
        Scales::Minima | Scales::Centred => (SUPER_GROUP / SUB, SUPER_GROUP * K::BITS),
        Scales::E8M0 | Scales::E4M3 => (1, SUB * K::BITS),
    };
    let mut acc = [_mm512_setzero_ps(); R];
    let (mut codes, mut left) = (blocks, subs);
    let mut tails = blocks.map(|block| block.wrapping_add(code_bytes));
    for group in 0..x.groups {
        // SAFETY: `codes` and `tails` walk over the records of a block each, `group` over the groups of a row of x; the offsets
        // are those of the module `rows8` (weights) and of `RowCodes` (x).
        unsafe {
            let xs = x.ptr.add(group * SUB * PLANES);
            let xd = x.ptr.add(x.groups * SUB * PLANES + group * 4);
            let xsum = xd.add(x.groups * 4);
            let mut factors = two_scales::<K>(tails, (subs - left) * K::HALVES);
            for u in 0..8 / K::UNIT {
                if K::HALVES == 2 && u > 0 {
                    factors = two_scales::<K>(tails, (subs - left) * K::HALVES + u);
                }
                let (scale, bias) = factors;
                let units = units::<K>(codes[0], codes[1], u);
                let mut next = dot::<K, PLANES>(&units, xs, u);
                for r in 0..R {
                    let sums = _mm512_cvtepi32_ps(next);
                    if r + 1 < R {
                        next = dot::<K, PLANES>(&units, xs.add((r + 1) * stride), u);
                    }
                    let d = _mm512_set1_ps(*xd.add(r * stride).cast::<f32>());
                    match K::SCALES {
                        Scales::Affine(_) | Scales::Minima if K::HALVES == 1 && u == 0 => {
                            let sum = _mm512_set1_ps(*xsum.add(r * stride).cast::<f32>());
                            acc[r] = _mm512_fmadd_ps(bias, sum, acc[r]);
                        }
                        Scales::Minima if K::HALVES == 2 => {
                            let sum = _mm512_set1_ps(sum16::<PLANES>(xs.add(r * stride + u * 16)));
                            acc[r] = _mm512_fmadd_ps(bias, _mm512_mul_ps(sum, d), acc[r]);
                        }
                        _ => {}
                    }
                    acc[r] = _mm512_fmadd_ps(sums, _mm512_mul_ps(scale, d), acc[r]);
                }
            }
            codes = codes.map(|codes| codes.add(SUB * K::BITS));
            left -= 1;
            if left == 0 {
                left = subs;
                codes = codes.map(|codes| codes.wrapping_add(scale_bytes));
                tails = tails.map(|tail| tail.wrapping_add(code_bytes + scale_bytes));
            }
        }
    }
    let mut out = [[_mm256_setzero_ps(); R]; 2];
    for (r, acc) in acc.into_iter().enumerate() {
        out[0][r] = _mm512_castps512_ps256(acc);
        out[1][r] = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(acc)));
    }
    out
}
