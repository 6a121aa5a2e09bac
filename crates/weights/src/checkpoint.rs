//! A checkpoint: what every tensor in it is and where its bytes lie. Opening one reads headers only.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{Encoding, Result, file::WeightFile, gguf};

/// Whose names and conventions a checkpoint follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Hugging Face transformers: `model.layers.0.self_attn.q_proj.weight`.
    Hf,
    /// MLX: the same names with `.scales` and `.biases`, experts stacked.
    Mlx,
    /// GGUF: `blk.0.attn_q.weight`, with llama's q and k rows permuted.
    Gguf,
}

/// The bytes of one plane in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into [`Checkpoint::files`].
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// How a tensor's planes are had from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Each plane is a span, in the order of [`Encoding::planes`].
    Planes(Vec<Span>),
    /// GGUF blocks that hold scales and codes together; taken apart while loading.
    Blocks {
        /// Where they lie.
        span: Span,
        /// Their format.
        format: gguf::BlockFormat,
    },
}

/// What a tensor is, and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file: `P.weight` for an MLX module `P`, with its scales and biases folded in.
    pub name: String,
    /// Outermost dimension first: `[rows, k]`; a norm is `[k]`; stacked experts are `[e, rows, k]`.
    pub shape: Vec<usize>,
    /// How its numbers are stored, once loaded.
    pub encoding: Encoding,
    /// Where they are.
    pub source: Source,
}

/// Number of elements, of a shape that a tensor can have. The bound is on the product without zeros, so that
/// no later arithmetic on a part of the shape overflows either.
pub(crate) fn count_elements(shape: &[usize]) -> Option<usize> {
    let fits = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))?;
    (fits <= 1 << 48).then(|| shape.iter().product())
}

impl TensorInfo {
    /// Elements a row: the last dimension (1 for a scalar).
    pub fn k(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of the other dimensions.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The spans of the file that it is read from.
    pub fn spans(&self) -> &[Span] {
        match &self.source {
            Source::Planes(spans) => spans,
            Source::Blocks { span, .. } => std::slice::from_ref(span),
        }
    }

    /// Index of the file that its codes lie in.
    pub(crate) fn first_file(&self) -> Option<usize> {
        self.spans().first().map(|s| s.file)
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        self.spans().iter().map(|s| s.len).sum()
    }

    /// Bytes over all planes once loaded.
    pub fn bytes(&self) -> usize {
        self.rows() * self.encoding.row_bytes_total(self.k())
    }
}

/// Where the model's configuration is.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// `config.json`, parsed (with Python's `Infinity` and `NaN` allowed, as transformers writes them).
    Json(serde_json::Value),
    /// A GGUF file's metadata.
    Gguf(gguf::Metadata),
    /// A lone `.safetensors` file with no `config.json` beside it.
    None,
}

/// A checkpoint whose headers have been read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// What was opened: a folder or a file.
    pub path: PathBuf,
    /// The files that hold tensors.
    pub files: Vec<PathBuf>,
    /// Whose conventions it follows.
    pub dialect: Dialect,
    /// Every tensor by its name in the file.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Its configuration.
    pub config: ConfigSource,
    /// `__metadata__` of the safetensors files (an alias of a shared tensor may stand there).
    pub metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens its files, in the order of [`Checkpoint::files`].
    pub(crate) fn open_files(&self) -> Result<Vec<WeightFile>> {
        self.files.iter().map(|file| WeightFile::open(file)).collect()
    }

    /// Opens a folder, a `.gguf` file or a `.safetensors` file. Reads headers, not tensors.
    pub fn open(path: &Path) -> Result<Self> {
        crate::read::open(path)
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Whether a tensor of that name is there.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor that stands for `name` where a writer kept one copy of two equal tensors and noted the other
    /// name in `__metadata__` (safetensors' `save_model` does).
    pub fn alias(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str).filter(|kept| self.contains(kept))
    }

    /// Bytes of all tensor files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().filter_map(|f| std::fs::metadata(f).ok()).map(|m| m.len()).sum()
    }
}
