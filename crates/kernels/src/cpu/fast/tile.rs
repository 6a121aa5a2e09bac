//! The inner loop over a block of the layout [`super::rows8`] and a few rows of integers.
//!
//! For each element of the result the order of the sum is one and the same for one row and for many, and for every
//! instruction set: along k, a scale group at a time, exact integers within it. So a row's result does not depend on the
//! rows beside it.

use portolan_device::DType;
use portolan_weights::SUPER_GROUP;

#[cfg(target_arch = "x86_64")]
use super::isa::{vnni::dot as dot_vnni, wide::strip as wide};
use super::{
    isa::codes::{dot, sum16, unit},
    kind::{Affine, Kind, MxFp4, NvFp4, Q2K, Q3K, Q4K, Q5K, Q6K},
    lanes::{F32x8, all8, fma8, mul8, prefetch, to_f32x8, zero8},
    rows8::{Format, SUB, Scales},
    scales::scales,
};
use crate::RowCodes;

/// Rows as [`RowCodes`] lays them out, as a tile reads them.
#[derive(Clone, Copy)]
pub(super) struct IntRows {
    /// First byte of the first row.
    pub(super) ptr: *const u8,
    /// Groups of 32 a row.
    pub(super) groups: usize,
    /// Bytes of a row.
    pub(super) stride: usize,
}

// SAFETY: a pointer to an input, which nobody writes while the launch runs.
unsafe impl Sync for IntRows {}

impl IntRows {
    /// Rows of `cols` elements that begin at `ptr`.
    pub(super) fn new(ptr: *const u8, cols: usize, how: RowCodes) -> Self {
        IntRows { ptr, groups: cols.div_ceil(SUB), stride: how.row_bytes(cols) }
    }

    /// The rows from `row` on.
    ///
    /// # Safety
    /// There are more than `row` rows.
    pub(super) unsafe fn skip(self, row: usize) -> Self {
        // SAFETY: the caller's promise.
        IntRows { ptr: unsafe { self.ptr.add(row * self.stride) }, ..self }
    }
}

/// Bytes of weights that are fetched ahead.
const AHEAD: usize = 2048;

/// Most blocks of a strip.
pub(super) const STRIP: usize = 8;

/// The results of `R` rows with the blocks of a strip.
pub(super) type Sums<const R: usize> = [[F32x8; R]; STRIP];

/// Multiplies some blocks, one after the other in memory, with `R` rows.
pub(super) type Tile<const R: usize> = unsafe fn(&Geometry, *const u8, usize, IntRows, &mut Sums<R>);

/// Sizes of a format that a tile would else work out again for each block.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) subs: usize,
    pub(super) code_bytes: usize,
    pub(super) scale_bytes: usize,
}

/// The tiles of an encoding for so many rows.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) geometry: Geometry,
    pub(super) one: Tile<1>,
    pub(super) two: Tile<2>,
    pub(super) four: Tile<4>,
    pub(super) eight: Tile<8>,
}

/// Instructions that tiles are made of.
pub(super) trait Isa {
    /// Features of the processor beside those of [`super::simd::available`].
    const FEATURES: &'static [&'static str];
    /// How rows are rounded.
    const CODES: RowCodes;
    /// int8 is faster where the processor and not its memory is the limit, and further from the exact result: it is for
    /// whoever asks.
    const IS_OPT_IN: bool = matches!(Self::CODES, RowCodes::Int8);
    /// For a format of [`Format::of`].
    fn tiles(format: Format) -> Tiles;
}

/// What all kernels are compiled for, for rows in so many planes.
pub(super) struct Base<const PLANES: usize>;

/// AVX-512's dot products of bytes, for rows in so many planes.
#[cfg(target_arch = "x86_64")]
pub(super) struct Vnni<const PLANES: usize>;

const fn codes_of(planes: usize) -> RowCodes {
    if planes == 1 { RowCodes::Int8 } else { RowCodes::Int15 }
}

/// The tiles of an [`Isa`]. A macro, since a function cannot be generic over the features that it is compiled for, and
/// the loop is fast only where all of it is compiled for the same. `$many` is what four and eight rows take.
macro_rules! isa {
    ($isa:ident, $module:ident, $needs:expr, $features:literal, $dot:ident, $many:ident) => {
        impl<const PLANES: usize> Isa for $isa<PLANES> {
            const FEATURES: &'static [&'static str] = $needs;
            const CODES: RowCodes = codes_of(PLANES);
            fn tiles(format: Format) -> Tiles {
                $module::of::<PLANES>(format)
            }
        }

        pub(super) mod $module {
            use super::*;

            fn make<K: Kind, const PLANES: usize>(format: Format) -> Tiles {
                let code_bytes = format.code_bytes();
                let scale_bytes = format.record_bytes() - code_bytes;
                let geometry = Geometry { subs: format.subs, code_bytes, scale_bytes };
                Tiles {
                    geometry,
                    one: strip::<K, 1, PLANES>,
                    two: strip::<K, 2, PLANES>,
                    four: $many::<K, 4, PLANES>,
                    eight: $many::<K, 8, PLANES>,
                }
            }

            fn affine<const BITS: usize, const PLANES: usize>(format: Format, meta: DType) -> Tiles {
                match meta {
                    DType::F16 => make::<Affine<BITS, 1>, PLANES>(format),
                    DType::BF16 => make::<Affine<BITS, 2>, PLANES>(format),
                    _ => make::<Affine<BITS, 0>, PLANES>(format),
                }
            }

            pub(super) fn of<const PLANES: usize>(format: Format) -> Tiles {
                match (format.scales, format.bits) {
                    (Scales::Affine(meta), 2) => affine::<2, PLANES>(format, meta),
                    (Scales::Affine(meta), 3) => affine::<3, PLANES>(format, meta),
                    (Scales::Affine(meta), 4) => affine::<4, PLANES>(format, meta),
                    (Scales::Affine(meta), 5) => affine::<5, PLANES>(format, meta),
                    (Scales::Affine(meta), 6) => affine::<6, PLANES>(format, meta),
                    (Scales::Affine(meta), _) => affine::<8, PLANES>(format, meta),
                    (Scales::Minima, 2) => make::<Q2K, PLANES>(format),
                    (Scales::Minima, 4) => make::<Q4K, PLANES>(format),
                    (Scales::Minima, _) => make::<Q5K, PLANES>(format),
                    (Scales::Centred, 3) => make::<Q3K, PLANES>(format),
                    (Scales::Centred, _) => make::<Q6K, PLANES>(format),
                    (Scales::E8M0, _) => make::<MxFp4, PLANES>(format),
                    (Scales::E4M3, _) => make::<NvFp4, PLANES>(format),
                }
            }

            /// The products of some blocks of eight weight rows with `R` rows.
            ///
            /// # Safety
            /// At `w` lie so many blocks for rows of `32 * x.groups` elements, of the format that the geometry is of; `x` has `R`
            /// rows; the processor has the features.
            #[target_feature(enable = $features)]
            unsafe fn strip<K: Kind, const R: usize, const PLANES: usize>(
                geometry: &Geometry,
                w: *const u8,
                blocks: usize,
                x: IntRows,
                out: &mut Sums<R>,
            ) {
                let mut codes = w;
                for out in out.iter_mut().take(blocks) {
                    // SAFETY: the caller's promise.
                    (*out, codes) = unsafe { tile::<K, R, PLANES>(geometry, codes, x) };
                }
            }

            /// The products of one block, and where the next one begins.
            ///
            /// # Safety
            /// As [`strip`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(in crate::cpu::fast) unsafe fn tile<K: Kind, const R: usize, const PLANES: usize>(
                geometry: &Geometry,
                w: *const u8,
                x: IntRows,
            ) -> ([F32x8; R], *const u8) {
                let stride = x.stride;
                let (subs, code_bytes) = match K::SCALES {
                    Scales::Affine(_) => (geometry.subs, geometry.code_bytes),
                    Scales::Minima | Scales::Centred => (SUPER_GROUP / SUB, SUPER_GROUP * K::BITS),
                    Scales::E8M0 | Scales::E4M3 => (1, SUB * K::BITS),
                };
                let scale_bytes = geometry.scale_bytes;
                let mut acc = [zero8(); R];
                // The codes of a sub-group; the scales that a record shares; the sub-groups that the record still has.
                let mut codes = w;
                // SAFETY: within the first record.
                let mut tail = unsafe { w.add(code_bytes) };
                let mut left = subs;
                for group in 0..x.groups {
                    // SAFETY: `codes` and `tail` walk over the records of one block, `group` over the groups of a row of x; the
                    // offsets are those of the module `rows8` (weights) and of `RowCodes` (x).
                    unsafe {
                        let xs = x.ptr.add(group * SUB * PLANES);
                        let xd = x.ptr.add(x.groups * SUB * PLANES + group * 4);
                        let xsum = xd.add(x.groups * 4);
                        if R <= 2 {
                            // Few rows wait for the weights. The processor itself fetches ahead no further than the end of a page.
                            for line in (0..SUB * K::BITS).step_by(64) {
                                prefetch(codes.wrapping_add(AHEAD + line));
                            }
                        }
                        let mut factors = scales::<K>(tail, (subs - left) * K::HALVES);
                        for u in 0..8 / K::UNIT {
                            if K::HALVES == 2 && u > 0 {
                                factors = scales::<K>(tail, (subs - left) * K::HALVES + u);
                            }
                            let (scale, bias) = factors;
                            let unit = unit::<K>(codes, u);
                            // The products of a row are under way before those of the one ahead are added up: what a processor
                            // looks ahead is less than a row's whole chain.
                            let mut next = $dot::<K, PLANES>(&unit, xs, u);
                            for r in 0..R {
                                let sums = to_f32x8(next);
                                if r + 1 < R {
                                    next = $dot::<K, PLANES>(&unit, xs.add((r + 1) * stride), u);
                                }
                                let d = all8(*xd.add(r * stride).cast::<f32>());
                                match K::SCALES {
                                    Scales::Affine(_) | Scales::Minima if K::HALVES == 1 && u == 0 => {
                                        let sum = all8(*xsum.add(r * stride).cast::<f32>());
                                        acc[r] = fma8(bias, sum, acc[r]);
                                    }
                                    Scales::Minima if K::HALVES == 2 => {
                                        // x keeps sums of 32 elements; here those of the rounded 16.
                                        let sum = all8(sum16::<PLANES>(xs.add(r * stride + u * 16)));
                                        acc[r] = fma8(bias, mul8(sum, d), acc[r]);
                                    }
                                    _ => {}
                                }
                                acc[r] = fma8(sums, mul8(scale, d), acc[r]);
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
        }
    };
}

#[cfg(target_arch = "x86_64")]
isa!(Base, base, &[], "avx2,fma,f16c", dot, strip);
#[cfg(target_arch = "x86_64")]
isa!(
    Vnni,
    vnni,
    &["avx512f", "avx512bw", "avx512vl", "avx512vnni"],
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni",
    dot_vnni,
    wide
);
#[cfg(target_arch = "aarch64")]
isa!(Base, base, &[], "neon", dot, strip);
