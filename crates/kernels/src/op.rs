//! The ops. Shapes are written `[rows, columns]`; T is the number of rows of a step, R that of selected rows.

use std::{fmt, sync::Arc};

use crate::{rope::RopeFrequencies, row_codes::RowCodes};

/// How rope pairs up the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `i` with element `i + rot/2` (GPT-NeoX, Hugging Face).
    Halves,
    /// Element `2i` with element `2i + 1` (the RoFormer paper).
    Interleaved,
}

/// An elementwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x/2 * (1 + erf(x / sqrt 2))`.
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// `max(x, 0)^2`.
    Relu2,
}

/// An op with its attributes. Sizes that follow from the inputs are not repeated here.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Row `ids[t]` of a table. Weights: table `[vocab, dim]`. Output: `[T, dim]`.
    Embed,
    /// `x / sqrt(mean(x^2) + eps) * w` over each `width` columns. Input `[_, n*width]`. Weights: `[width]`.
    RmsNorm {
        /// Columns that are normalised together: the whole row, or a head.
        width: usize,
        /// Added to the mean square.
        eps: f32,
    },
    /// `y = x W^T (+ b)`. Input `[_, k]`. Weights: W `[n, k]`, and b `[n]` if there are two. Output `[_, n]`.
    Matmul,
    /// Cosines and sines of a step's positions. Output `[T, rot]`: `rot/2` cosines, then `rot/2` sines.
    RopeTable {
        /// Frequencies and scaling.
        rope: Arc<RopeFrequencies>,
    },
    /// Rotates the first `rot` elements of each head. Inputs: x `[T, heads*head_dim]`, table `[T, rot]`.
    Rope {
        /// Heads in a row of x.
        heads: usize,
        /// Elements a head.
        head_dim: usize,
        /// Elements of a head that are rotated.
        rot: usize,
        /// Which elements pair up.
        style: RopeStyle,
    },
    /// Writes k and v rows to the pages of their sequences, at their positions. Inputs: k `[T, kv_heads*k_dim]`,
    /// v `[T, kv_heads*v_dim]`. No output; the cache changes.
    CacheAppend,
    /// Softmax attention of each row over the positions `<=` its own in its sequence's pages. Input: q
    /// `[T, heads*k_dim]`. Output `[T, heads*v_dim]`.
    Attention {
        /// Query heads; a multiple of the cache's kv heads.
        heads: usize,
        /// Factor on q·k.
        scale: f32,
        /// A row at position p sees positions `p - window + 1 ..= p`.
        window: Option<usize>,
    },
    /// An elementwise function.
    Activate(Activation),
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// The rows that want logits. Input `[T, c]`. Output `[R, c]`.
    SelectRows,
    /// Rounds each 32 elements of a row to integers with one f32 scale, and keeps the sum of the rounded elements, which
    /// the bias of an affine weight multiplies. Output: a value of type [`RowCodes::value_type`].
    QuantizeRows(RowCodes),
    /// The smallest index of a row's largest element. Input `[R, vocab]` f32. Output `[R, 1]` i32.
    Argmax,

    /// Fused: `s = a + b; n = rms_norm(s)`. Inputs: a, b. Weights: `[width]`. Outputs: s, n.
    AddRmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Fused: `act(x Wg^T) * (x Wu^T)`. Weights: Wg `[n, k]`, Wu `[n, k]`. Output `[_, n]`.
    GateUp(Activation),
    /// Fused: rope of q and of k, and the append of k and v. Inputs: q, k, v, table. Output: rotated q.
    RopeAppend {
        /// Query heads.
        heads: usize,
        /// Elements of a head that are rotated.
        rot: usize,
        /// Which elements pair up.
        style: RopeStyle,
    },
    /// Fused: three matmuls of one input. Input `[_, k]`. Weights: Wq `[nq, k]`, Wk `[nk, k]`, Wv `[nv, k]`, then bq `[nq]`,
    /// bk `[nk]`, bv `[nv]` if there are six. Outputs, of one type: q `[_, nq]`, k `[_, nk]`, v `[_, nv]`.
    Qkv,
    /// Fused: `rms_norm` of each head of q and of k, then [`Op::RopeAppend`]. Inputs: q, k, v, table. Weights: that of q's
    /// norm `[k_dim]`, that of k's `[k_dim]`. Output: rotated q.
    NormRopeAppend {
        /// Added to the mean square.
        eps: f32,
        /// Query heads.
        heads: usize,
        /// Elements of a head that are rotated.
        rot: usize,
        /// Which elements pair up.
        style: RopeStyle,
    },
}

/// An op without its attributes: a row of the port chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum OpKind {
    Embed,
    RmsNorm,
    Matmul,
    RopeTable,
    Rope,
    CacheAppend,
    Attention,
    Activate,
    Add,
    Mul,
    SelectRows,
    QuantizeRows,
    Argmax,
    AddRmsNorm,
    GateUp,
    RopeAppend,
    Qkv,
    NormRopeAppend,
}

impl OpKind {
    /// Every op, in the order of the chart: primitives first.
    pub const ALL: [OpKind; 18] = [
        OpKind::Embed,
        OpKind::RmsNorm,
        OpKind::Matmul,
        OpKind::RopeTable,
        OpKind::Rope,
        OpKind::CacheAppend,
        OpKind::Attention,
        OpKind::Activate,
        OpKind::Add,
        OpKind::Mul,
        OpKind::SelectRows,
        OpKind::QuantizeRows,
        OpKind::Argmax,
        OpKind::AddRmsNorm,
        OpKind::GateUp,
        OpKind::RopeAppend,
        OpKind::Qkv,
        OpKind::NormRopeAppend,
    ];

    /// The name in the chart, in messages and, in capitals, in `PORTOLAN_PORT_<OP>`.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::RmsNorm => "rms_norm",
            OpKind::Matmul => "matmul",
            OpKind::RopeTable => "rope_table",
            OpKind::Rope => "rope",
            OpKind::CacheAppend => "cache_append",
            OpKind::Attention => "attention",
            OpKind::Activate => "activate",
            OpKind::Add => "add",
            OpKind::Mul => "mul",
            OpKind::SelectRows => "select_rows",
            OpKind::QuantizeRows => "quantize_rows",
            OpKind::Argmax => "argmax",
            OpKind::AddRmsNorm => "add_rms_norm",
            OpKind::GateUp => "gate_up",
            OpKind::RopeAppend => "rope_append",
            OpKind::Qkv => "qkv",
            OpKind::NormRopeAppend => "norm_rope_append",
        }
    }

    /// Whether the op has a decomposition into simpler ops.
    pub const fn is_fused(self) -> bool {
        matches!(
            self,
            OpKind::AddRmsNorm | OpKind::GateUp | OpKind::RopeAppend | OpKind::Qkv | OpKind::NormRopeAppend
        )
    }

    /// What it computes, in a line of the chart.
    pub const fn summary(self) -> &'static str {
        match self {
            OpKind::Embed => "rows of the embedding table",
            OpKind::RmsNorm => "root-mean-square norm of a row or of each head",
            OpKind::Matmul => "x W^T, with or without a bias",
            OpKind::RopeTable => "cosines and sines of a step's positions",
            OpKind::Rope => "rotary position embedding",
            OpKind::CacheAppend => "k and v rows into the pages of their sequences",
            OpKind::Attention => "softmax attention over page tables",
            OpKind::Activate => "elementwise function",
            OpKind::Add => "elementwise sum",
            OpKind::Mul => "elementwise product",
            OpKind::SelectRows => "the rows that want logits",
            OpKind::QuantizeRows => "rows rounded to integers in groups of 32",
            OpKind::Argmax => "index of the largest element of a row",
            OpKind::AddRmsNorm => "add, then rms_norm",
            OpKind::GateUp => "two matmuls, an activation and their product",
            OpKind::RopeAppend => "rope of q and k, then cache_append",
            OpKind::Qkv => "three matmuls of one input: q, k and v",
            OpKind::NormRopeAppend => "rms_norm of each head of q and of k, then rope_append",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op {
    /// The row of the chart.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Embed => OpKind::Embed,
            Op::RmsNorm { .. } => OpKind::RmsNorm,
            Op::Matmul => OpKind::Matmul,
            Op::RopeTable { .. } => OpKind::RopeTable,
            Op::Rope { .. } => OpKind::Rope,
            Op::CacheAppend => OpKind::CacheAppend,
            Op::Attention { .. } => OpKind::Attention,
            Op::Activate(_) => OpKind::Activate,
            Op::Add => OpKind::Add,
            Op::Mul => OpKind::Mul,
            Op::SelectRows => OpKind::SelectRows,
            Op::QuantizeRows(_) => OpKind::QuantizeRows,
            Op::Argmax => OpKind::Argmax,
            Op::AddRmsNorm { .. } => OpKind::AddRmsNorm,
            Op::GateUp(_) => OpKind::GateUp,
            Op::RopeAppend { .. } => OpKind::RopeAppend,
            Op::Qkv => OpKind::Qkv,
            Op::NormRopeAppend { .. } => OpKind::NormRopeAppend,
        }
    }
}
