use portolan_device::DType;

use crate::{BlockScale, Element, Encoding, Foreign};

/// A format of blocks that can be taken apart without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
#[non_exhaustive]
pub enum BlockFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    MXFP4,
    NVFP4,
}

/// The types that are read, for messages.
pub(crate) const SUPPORTED: &str = "F32, F16, BF16, F64, I8, I16, I32, I64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, \
     Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4, NVFP4";

/// How a GGUF tensor type is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorType {
    Plain(Encoding),
    Blocks(BlockFormat),
}

impl TensorType {
    /// From the number in the file; an error is its name.
    pub(crate) fn from_id(id: u32) -> Result<Self, String> {
        use BlockFormat::*;
        let dense = |dtype| TensorType::Plain(Encoding::Dense(dtype));
        let foreign = |kind| TensorType::Plain(Encoding::Foreign(kind));
        Ok(match id {
            0 => dense(DType::F32),
            1 => dense(DType::F16),
            2 => TensorType::Blocks(Q4_0),
            3 => TensorType::Blocks(Q4_1),
            6 => TensorType::Blocks(Q5_0),
            7 => TensorType::Blocks(Q5_1),
            8 => TensorType::Blocks(Q8_0),
            10 => TensorType::Blocks(Q2_K),
            11 => TensorType::Blocks(Q3_K),
            12 => TensorType::Blocks(Q4_K),
            13 => TensorType::Blocks(Q5_K),
            14 => TensorType::Blocks(Q6_K),
            24 => dense(DType::I8),
            25 => foreign(Foreign::I16),
            26 => dense(DType::I32),
            27 => foreign(Foreign::I64),
            28 => foreign(Foreign::F64),
            30 => dense(DType::BF16),
            39 => TensorType::Blocks(MXFP4),
            40 => TensorType::Blocks(NVFP4),
            other => return Err(unread_name(other)),
        })
    }
}

/// The name of a type that is not read.
fn unread_name(id: u32) -> String {
    let name = match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return format!("number {id}"),
    };
    name.to_owned()
}

impl BlockFormat {
    /// As the field names it.
    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Q4_0 => "Q4_0",
            BlockFormat::Q4_1 => "Q4_1",
            BlockFormat::Q5_0 => "Q5_0",
            BlockFormat::Q5_1 => "Q5_1",
            BlockFormat::Q8_0 => "Q8_0",
            BlockFormat::Q2_K => "Q2_K",
            BlockFormat::Q3_K => "Q3_K",
            BlockFormat::Q4_K => "Q4_K",
            BlockFormat::Q5_K => "Q5_K",
            BlockFormat::Q6_K => "Q6_K",
            BlockFormat::MXFP4 => "MXFP4",
            BlockFormat::NVFP4 => "NVFP4",
        }
    }

    /// Elements a block; a row's length is a multiple of it.
    pub const fn elements(self) -> usize {
        match self {
            BlockFormat::Q4_0
            | BlockFormat::Q4_1
            | BlockFormat::Q5_0
            | BlockFormat::Q5_1
            | BlockFormat::Q8_0
            | BlockFormat::MXFP4 => 32,
            BlockFormat::NVFP4 => 64,
            BlockFormat::Q2_K
            | BlockFormat::Q3_K
            | BlockFormat::Q4_K
            | BlockFormat::Q5_K
            | BlockFormat::Q6_K => 256,
        }
    }

    /// Bytes a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q2_K => 84,
            BlockFormat::Q3_K => 110,
            BlockFormat::Q4_K => 144,
            BlockFormat::Q5_K => 176,
            BlockFormat::Q6_K => 210,
            BlockFormat::MXFP4 => 17,
            BlockFormat::NVFP4 => 36,
        }
    }

    /// Bytes of a row of `k` elements.
    pub const fn row_bytes(self, k: usize) -> usize {
        k / self.elements() * self.bytes()
    }

    /// The encoding that a tensor of it is kept in.
    pub const fn encoding(self) -> Encoding {
        match self {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 => affine_f16(4),
            BlockFormat::Q5_0 | BlockFormat::Q5_1 => affine_f16(5),
            BlockFormat::Q8_0 => affine_f16(8),
            BlockFormat::Q2_K => Encoding::TwoLevel { bits: 2, group: 16, minima: true },
            BlockFormat::Q3_K => Encoding::TwoLevel { bits: 3, group: 16, minima: false },
            BlockFormat::Q4_K => Encoding::TwoLevel { bits: 4, group: 32, minima: true },
            BlockFormat::Q5_K => Encoding::TwoLevel { bits: 5, group: 32, minima: true },
            BlockFormat::Q6_K => Encoding::TwoLevel { bits: 6, group: 16, minima: false },
            BlockFormat::MXFP4 => {
                Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 }
            }
            BlockFormat::NVFP4 => {
                Encoding::FloatBlock { element: Element::E2M1, group: 16, scale: BlockScale::E4M3 }
            }
        }
    }
}

const fn affine_f16(bits: u8) -> Encoding {
    Encoding::Affine { bits, group: 32, meta: DType::F16 }
}
