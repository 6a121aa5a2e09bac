//! What becomes of one matrix.

use portolan_device::DType;
use portolan_weights::{BlockScale, Element, Encoding, Foreign};

use super::options::{ConvertOptions, QuantMode};

/// What happens to a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum How {
    /// Codes and scales of the source under another spelling: every number decodes to the same.
    Lossless,
    /// Plain numbers, as they are.
    Kept,
    /// Plain numbers in another type, rounded.
    Rounded,
    /// Plain numbers, quantized.
    Quantized,
    /// Quantized numbers, decoded and quantized again: the errors of both add up.
    Requantized,
    /// Quantized numbers, decoded, and rounded to a plain type.
    Decoded,
}

impl How {
    /// As a plan has it.
    pub const fn name(self) -> &'static str {
        match self {
            How::Lossless => "lossless",
            How::Kept => "kept",
            How::Rounded => "rounded",
            How::Quantized => "quantized",
            How::Requantized => "requantized",
            How::Decoded => "decoded",
        }
    }
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) to: Encoding,
    pub(super) how: How,
    /// Why it is not what was asked.
    pub(super) note: Option<String>,
}

impl Choice {
    fn new(to: Encoding, how: How) -> Self {
        Choice { to, how, note: None }
    }
}

pub(super) const MXFP4: Encoding =
    Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 };

/// The usual affine encoding, for questions about bits and group alone.
pub(super) const fn affine(bits: u8, group: u16) -> Encoding {
    Encoding::Affine { bits, group, meta: DType::BF16 }
}

/// The plain type that goes with an encoding: its own, or that of its scales; none for what holds no weights.
pub(super) const fn plain_type(encoding: Encoding) -> Option<DType> {
    match encoding {
        Encoding::Dense(dtype) if dtype.is_float() => Some(dtype),
        Encoding::Foreign(Foreign::F64) => Some(DType::F32),
        Encoding::Affine { meta, .. } => Some(meta),
        // Their scales are f16 in the file.
        Encoding::TwoLevel { .. } => Some(DType::F16),
        Encoding::FloatBlock { .. } => Some(DType::BF16),
        _ => None,
    }
}

/// A tensor that is written as plain numbers.
pub(super) fn plain(from: Encoding, dtype: DType) -> Choice {
    let to = Encoding::Dense(dtype);
    let how = match from {
        _ if from == to => How::Kept,
        _ if from.is_quantized() => How::Decoded,
        _ => How::Rounded,
    };
    Choice::new(to, how)
}

/// A matrix with rows of `k`, stored as `from`, whose plain type is `dtype`. `keep` are the bits asked for this module
/// alone.
pub(super) fn matrix(
    from: Encoding,
    dtype: DType,
    k: usize,
    options: &ConvertOptions,
    keep: Option<u8>,
) -> Choice {
    let (mode, bits, group) = match keep {
        Some(16) => return plain(from, dtype),
        Some(bits) => (Some(QuantMode::Affine), Some(bits), options.group_size),
        None => (options.mode, options.bits, options.group_size),
    };
    let explicit = keep.is_some() || options.is_explicit();
    // What was asked for is what the source has: its own codes are better than any made from them.
    if from.is_quantized() && spelled_by_mlx(from) && agrees(from, mode, bits, group) {
        return Choice::new(from, How::Lossless);
    }
    let to = match (from, mode) {
        (_, Some(QuantMode::MxFp4)) => MXFP4,
        // MLX has no scales within scales; the same width in the smallest groups comes nearest.
        (Encoding::TwoLevel { bits, .. }, _) if !explicit => {
            Encoding::Affine { bits, group: 32, meta: dtype }
        }
        _ => Encoding::Affine { bits: bits.unwrap_or(4), group: group.unwrap_or(64), meta: dtype },
    };
    if !k.is_multiple_of(to.group()) {
        let note = format!("rows of {k} are no multiple of the group of {}", to.group());
        return Choice { note: Some(note), ..plain(from, dtype) };
    }
    Choice::new(to, if from.is_quantized() { How::Requantized } else { How::Quantized })
}

/// Whether MLX has this encoding.
const fn spelled_by_mlx(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::Affine { .. } | Encoding::FloatBlock { .. })
}

/// Whether the settings that were given, if any, are those of an encoding.
fn agrees(from: Encoding, mode: Option<QuantMode>, bits: Option<u8>, group: Option<u16>) -> bool {
    let of_mode = match mode {
        None => true,
        Some(QuantMode::Affine) => matches!(from, Encoding::Affine { .. }),
        Some(QuantMode::MxFp4) => from == MXFP4,
    };
    of_mode
        && bits.is_none_or(|bits| usize::from(bits) == from.code_bits())
        && group.is_none_or(|group| usize::from(group) == from.group())
}
