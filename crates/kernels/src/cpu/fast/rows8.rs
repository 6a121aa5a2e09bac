//! The layout `rows8`: eight rows of a matrix interleaved, so that one vector holds a lane a row.
//!
//! A matrix is cut into *blocks* of eight rows (the last one padded with rows of zeros), a block into *records*
//! along k. A record holds the codes of its sub-groups of 32 elements and then what scales them:
//!
//! ```text
//! affine, a group of 32, 64 or 128   codes            scale[8] bias[8]              (of type meta)
//! two-level, 256 elements            codes            d[8] (dmin[8])  then a group: scale[8] (min[8])
//! e2m1, 32 elements                  codes            scale[8], or scale[8] scale[8] with groups of 16
//! ```
//!
//! The codes of a sub-group take `32 * bits` bytes. They are eight *quads*: quad `j` has the codes of elements
//! `4j..4j+4` of the eight rows, `[row][element]`, 32 codes in all. A quad of 8 bits is a vector as it stands
//! (stored minus 128, so signed). Quads of 1, 2 or 4 bits share vectors: with 4 bits vector `i` has quad `i` in
//! its low and quad `i + 4` in its high nibbles; with 2 bits it has quads `4i..4i+4`, lowest first; with 1 bit
//! the one vector has quad `j` in bit `j`. Codes of 3, 5 and 6 bits are split in a low part of 2, 4 and 4 bits and
//! a high part of 1, 1 and 2 bits, low part first.
//!
//! So a vector of codes meets one 32-bit broadcast of four int8 activations, and sums over k stay in the lane of
//! their row: there is nothing to add across lanes, and the scales of eight rows are one vector.

use portolan_device::DType;
use portolan_weights::{BlockScale, Element, Encoding, SUPER_GROUP};

/// The layout's name.
pub(super) const NAME: &str = "rows8";
/// Rows of a block.
pub(super) const BLOCK: usize = 8;
/// Elements that share a scale of a `Q8Rows` value.
pub(super) const SUB: usize = 32;

/// What follows the codes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// A scale and a bias a row, of this type.
    Affine(DType),
    /// `d`, `dmin` a row; then a scale and a minimum a group and row.
    Minima,
    /// `d` a row; then a scale a group and row.
    Centred,
    /// A power of two a row.
    E8M0,
    /// Two small floats a row.
    E4M3,
}

/// How an encoding is stored in this layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Bits of a code.
    pub(super) bits: usize,
    /// Sub-groups of a record.
    pub(super) subs: usize,
    /// Elements a scale.
    pub(super) group: usize,
    /// What follows the codes.
    pub(super) scales: Scales,
}

impl Format {
    /// None for an encoding that has no such layout.
    pub(super) fn of(encoding: Encoding) -> Option<Format> {
        let (bits, group, elements, scales) = match encoding {
            Encoding::Affine { bits: bits @ (2..=6 | 8), group: group @ (32 | 64 | 128), meta }
                if meta.is_float() =>
            {
                (bits, group, group as usize, Scales::Affine(meta))
            }
            Encoding::TwoLevel { bits: bits @ (2 | 4 | 5), group: group @ (16 | 32), minima: true } => {
                (bits, group, SUPER_GROUP, Scales::Minima)
            }
            Encoding::TwoLevel { bits: bits @ (3 | 6), group: group @ 16, minima: false } => {
                (bits, group, SUPER_GROUP, Scales::Centred)
            }
            Encoding::FloatBlock { element: Element::E2M1, group: group @ 32, scale: BlockScale::E8M0 } => {
                (4, group, SUB, Scales::E8M0)
            }
            Encoding::FloatBlock { element: Element::E2M1, group: group @ 16, scale: BlockScale::E4M3 } => {
                (4, group, SUB, Scales::E4M3)
            }
            _ => return None,
        };
        Some(Format { bits: bits as usize, subs: elements / SUB, group: group as usize, scales })
    }

    /// Elements of a record.
    pub(super) fn elements(&self) -> usize {
        self.subs * SUB
    }

    /// Bytes of a record's codes.
    pub(super) fn code_bytes(&self) -> usize {
        self.subs * SUB * self.bits
    }

    /// Scales of a record and row.
    pub(super) fn groups(&self) -> usize {
        self.elements() / self.group
    }

    /// Bytes of a record.
    pub(super) fn record_bytes(&self) -> usize {
        let scales = match self.scales {
            Scales::Affine(meta) => 2 * meta.size(),
            Scales::Minima => 4 + 2 * self.groups(),
            Scales::Centred => 2 + self.groups(),
            Scales::E8M0 | Scales::E4M3 => self.groups(),
        };
        self.code_bytes() + BLOCK * scales
    }

    /// Records of a row of `k` elements.
    pub(super) fn records(&self, k: usize) -> usize {
        k.div_ceil(self.elements())
    }

    /// Bytes of a block of rows of `k` elements.
    pub(super) fn block_bytes(&self, k: usize) -> usize {
        self.records(k) * self.record_bytes()
    }
}

/// Bits of the low and of the high part of a code; a code of one part has no high one.
pub(super) const fn parts(bits: usize) -> (usize, usize) {
    match bits {
        3 => (2, 1),
        5 => (4, 1),
        6 => (4, 2),
        bits => (bits, 0),
    }
}

/// Byte and shift of a code within its part: quad `j`, byte `lane` of the quad's vector.
#[inline]
pub(super) const fn place(part_bits: usize, j: usize, lane: usize) -> (usize, usize) {
    let quads = 8 / part_bits;
    match part_bits {
        4 => (j % 4 * 32 + lane, j / 4 * 4),
        _ => (j / quads * 32 + lane, j % quads * part_bits),
    }
}
