//! Rows rounded to integers, which matmuls of quantized weights multiply without making anything f32 again.

use crate::ValueType;

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// How a row is rounded to integers.
///
/// A row is cut into groups of 32 elements, the last one filled up with zeros. A group has a scale `d`, its largest
/// magnitude over [`RowCodes::largest`], and codes, each the element over `d` rounded to the nearest integer, ties to even.
/// In memory a row is the codes of all groups, then an f32 scale a group, then an f32 sum a group: the scale times the sum
/// of the codes. A group of zeros, or of numbers so small that `d` is 0, has codes and scale 0; a NaN makes the scale NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowCodes {
    /// One int8 an element: 40 bytes a group. The rounding of a model's rows shows in its logits.
    Int8,
    /// 15 bits an element, as 128 times a high int8 plus a low one in `-64..64`: the 32 high ones of a group, then its 32 low
    /// ones; 72 bytes a group. What the rounding leaves is small beside the order of f32 sums.
    Int15,
}

impl RowCodes {
    /// Planes of int8 that a code is split over.
    pub const fn planes(self) -> usize {
        match self {
            RowCodes::Int8 => 1,
            RowCodes::Int15 => 2,
        }
    }

    /// The largest magnitude of a code.
    pub const fn largest(self) -> i32 {
        match self {
            RowCodes::Int8 => 127,
            RowCodes::Int15 => 127 * 128,
        }
    }

    /// Bytes of a row of `cols` elements.
    pub const fn row_bytes(self, cols: usize) -> usize {
        cols.div_ceil(GROUP) * (GROUP * self.planes() + 8)
    }

    /// The type of a value that has such rows.
    pub const fn value_type(self) -> ValueType {
        match self {
            RowCodes::Int8 => ValueType::Q8Rows,
            RowCodes::Int15 => ValueType::Q15Rows,
        }
    }

    /// None for a type that has no such rows.
    pub const fn of(dtype: ValueType) -> Option<RowCodes> {
        match dtype {
            ValueType::Q8Rows => Some(RowCodes::Int8),
            ValueType::Q15Rows => Some(RowCodes::Int15),
            ValueType::Activation | ValueType::F32 | ValueType::I32 => None,
        }
    }
}
