//! The inner loop over a block of the layout [`super::rows8`] and a few int8 rows.
//!
//! For each element of the result the order of the sum is one and the same for one row and for many: along k, a
//! scale group at a time, exact integers within it. So a row's result does not depend on the rows beside it.

use std::arch::x86_64::*;

use portolan_device::DType;
use portolan_weights::SUPER_GROUP;

use super::{
    codes::{dot, sum16},
    kind::{Affine, Kind, MxFp4, NvFp4, Q2K, Q3K, Q4K, Q5K, Q6K},
    rows8::{Format, SUB, Scales},
    scales::scales,
};

/// Rows of type `Q8Rows`, as a tile reads them.
#[derive(Clone, Copy)]
pub(super) struct QRows {
    /// First byte of the first row.
    pub(super) ptr: *const u8,
    /// Groups of 32 a row.
    pub(super) groups: usize,
}

// SAFETY: a pointer to an input, which nobody writes while the launch runs.
unsafe impl Sync for QRows {}

impl QRows {
    /// Bytes of a row of `groups` groups.
    pub(super) fn stride(groups: usize) -> usize {
        groups * 40
    }

    /// The rows from `row` on.
    ///
    /// # Safety
    /// There are more than `row` rows.
    pub(super) unsafe fn skip(self, row: usize) -> Self {
        // SAFETY: the caller's promise.
        QRows { ptr: unsafe { self.ptr.add(row * Self::stride(self.groups)) }, groups: self.groups }
    }
}

/// Most blocks of a strip.
pub(super) const STRIP: usize = 8;

/// The results of `R` rows with the blocks of a strip.
pub(super) type Sums<const R: usize> = [[__m256; R]; STRIP];

/// Multiplies some blocks, one after the other in memory, with `R` rows.
pub(super) type Tile<const R: usize> = unsafe fn(&Geometry, *const u8, usize, QRows, &mut Sums<R>);

/// Sizes of a format that a tile would else work out again for each block.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    subs: usize,
    code_bytes: usize,
    scale_bytes: usize,
}

/// The tiles of an encoding for one, two and four rows.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) geometry: Geometry,
    pub(super) one: Tile<1>,
    pub(super) two: Tile<2>,
    pub(super) four: Tile<4>,
}

impl Tiles {
    /// For a format of [`Format::of`].
    pub(super) fn of(format: Format) -> Self {
        fn make<K: Kind>(format: Format) -> Tiles {
            let code_bytes = format.code_bytes();
            let scale_bytes = format.record_bytes() - code_bytes;
            let geometry = Geometry { subs: format.subs, code_bytes, scale_bytes };
            Tiles { geometry, one: strip::<K, 1>, two: strip::<K, 2>, four: strip::<K, 4> }
        }
        fn affine<const BITS: usize>(format: Format, meta: DType) -> Tiles {
            match meta {
                DType::F16 => make::<Affine<BITS, 1>>(format),
                DType::BF16 => make::<Affine<BITS, 2>>(format),
                _ => make::<Affine<BITS, 0>>(format),
            }
        }
        match (format.scales, format.bits) {
            (Scales::Affine(meta), 2) => affine::<2>(format, meta),
            (Scales::Affine(meta), 3) => affine::<3>(format, meta),
            (Scales::Affine(meta), 4) => affine::<4>(format, meta),
            (Scales::Affine(meta), 5) => affine::<5>(format, meta),
            (Scales::Affine(meta), 6) => affine::<6>(format, meta),
            (Scales::Affine(meta), _) => affine::<8>(format, meta),
            (Scales::Minima, 2) => make::<Q2K>(format),
            (Scales::Minima, 4) => make::<Q4K>(format),
            (Scales::Minima, _) => make::<Q5K>(format),
            (Scales::Centred, 3) => make::<Q3K>(format),
            (Scales::Centred, _) => make::<Q6K>(format),
            (Scales::E8M0, _) => make::<MxFp4>(format),
            (Scales::E4M3, _) => make::<NvFp4>(format),
        }
    }
}

/// The products of some blocks of eight weight rows with `R` rows.
///
/// # Safety
/// At `w` lie so many blocks for rows of `32 * x.groups` elements, of the format that the geometry is of; `x` has `R`
/// rows; the processor has the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip<K: Kind, const R: usize>(
    geometry: &Geometry,
    w: *const u8,
    blocks: usize,
    x: QRows,
    out: &mut Sums<R>,
) {
    let mut codes = w;
    for out in out.iter_mut().take(blocks) {
        // SAFETY: the caller's promise.
        (*out, codes) = unsafe { tile::<K, R>(geometry, codes, x) };
    }
}

/// The products of one block, and where the next one begins.
///
/// # Safety
/// As [`strip`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<K: Kind, const R: usize>(
    geometry: &Geometry,
    w: *const u8,
    x: QRows,
) -> ([__m256; R], *const u8) {
    let stride = QRows::stride(x.groups);
    let (subs, code_bytes) = match K::SCALES {
        Scales::Affine(_) => (geometry.subs, geometry.code_bytes),
        Scales::Minima | Scales::Centred => (SUPER_GROUP / SUB, SUPER_GROUP * K::BITS),
        Scales::E8M0 | Scales::E4M3 => (1, SUB * K::BITS),
    };
    let scale_bytes = geometry.scale_bytes;
    let mut acc = [_mm256_setzero_ps(); R];
    // The codes of a sub-group; the scales that a record shares; the sub-groups that the record still has.
    let mut codes = w;
    // SAFETY: within the first record.
    let mut tail = unsafe { w.add(code_bytes) };
    let mut left = subs;
    for group in 0..x.groups {
        // SAFETY: `codes` and `tail` walk over the records of one block, `group` over the groups of a row of x; the
        // offsets are those of the module `rows8` (weights) and of `Q8Rows` (x).
        unsafe {
            let xs = x.ptr.add(group * SUB);
            let xd = x.ptr.add(x.groups * SUB + group * 4);
            let xsum = x.ptr.add(x.groups * (SUB + 4) + group * 4);
            for h in 0..K::HALVES {
                let (scale, bias) = scales::<K>(tail, (subs - left) * K::HALVES + h);
                let sums = dot::<K, R>(codes, xs, stride, h);
                for r in 0..R {
                    let d = _mm256_broadcast_ss(&*xd.add(r * stride).cast::<f32>());
                    let scaled = _mm256_mul_ps(scale, d);
                    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), scaled, acc[r]);
                    match K::SCALES {
                        Scales::Affine(_) | Scales::Minima if K::HALVES == 1 => {
                            let sum = _mm256_broadcast_ss(&*xsum.add(r * stride).cast::<f32>());
                            acc[r] = _mm256_fmadd_ps(bias, sum, acc[r]);
                        }
                        Scales::Minima => {
                            // x keeps sums of 32 elements; here those of the rounded 16.
                            let sum = _mm256_set1_ps(sum16(xs.add(r * stride + h * 16)));
                            acc[r] = _mm256_fmadd_ps(bias, _mm256_mul_ps(sum, d), acc[r]);
                        }
                        _ => {}
                    }
                }
            }
            codes = codes.add(SUB * K::BITS);
            left -= 1;
            if left == 0 {
                left = subs;
                codes = codes.add(scale_bytes);
                tail = tail.wrapping_add(code_bytes + scale_bytes);
            }
        }
    }
    (acc, codes)
}
