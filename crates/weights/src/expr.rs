//! Weight expressions: how a model's weight is made from a checkpoint's tensors.

use portolan_device::DType;

use crate::{Checkpoint, Encoding, Result};

/// How a weight is made. Resolved against a checkpoint before anything is read.
///
/// Rows are the product of all dimensions but the last, so every operation here moves whole rows and works on
/// packed encodings without decoding them. Only [`Expr::Dequantize`] decodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A tensor of the checkpoint.
    Source(String),
    /// One after another along the first dimension. All agree in encoding and in the other dimensions.
    Concat(Vec<Expr>),
    /// As a new first dimension: experts that a file holds one by one.
    Stack(Vec<Expr>),
    /// Undoes GGUF's reordering of q and k rows for interleaved rope. Within each head of `d` rows, row
    /// `j` of the result (`j < d/2`: the first half, else the second) is the file's row `2j`, `2(j - d/2) + 1`.
    UnpermuteHeads {
        /// What to reorder; `[heads * d, k]` or `[heads * d]`.
        of: Box<Expr>,
        /// Number of heads in it.
        heads: usize,
    },
    /// Rows `start..start + len` of the first dimension.
    Rows {
        /// What to cut.
        of: Box<Expr>,
        /// First index along the first dimension.
        start: usize,
        /// How many.
        len: usize,
    },
    /// Decoded (or converted) to plain elements of `dtype`.
    Dequantize {
        /// What to decode.
        of: Box<Expr>,
        /// f32, f16 or bf16.
        dtype: DType,
    },
}

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its encoding.
    pub encoding: Encoding,
    /// Bytes over all planes.
    pub bytes: usize,
    /// Names of the checkpoint's tensors that it reads.
    pub sources: Vec<String>,
}

impl Expr {
    /// A tensor of the checkpoint.
    pub fn source(name: impl Into<String>) -> Self {
        Expr::Source(name.into())
    }

    /// This, decoded to f32: what norms and biases ask for.
    pub fn f32(self) -> Self {
        Expr::Dequantize { of: Box::new(self), dtype: DType::F32 }
    }

    /// Shape, encoding and size; an error names the tensor that is missing or does not fit.
    pub fn resolve(&self, checkpoint: &Checkpoint) -> Result<Resolved> {
        let mut names = Vec::new();
        crate::resolve::source_names(self, &mut names);
        let name = names.first().copied().unwrap_or("of no source");
        Ok(crate::resolve::resolve(self, checkpoint, name)?.resolved())
    }
}
