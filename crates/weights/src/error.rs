use std::{fmt, io, path::PathBuf};

use portolan_device::{DeviceError, env::BadVariable};

/// What a file is when it is not the checkpoint that its name promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotWeights {
    /// No bytes at all.
    Empty,
    /// A pointer that git-lfs leaves in place of the file when it was not asked to fetch it.
    LfsPointer,
    /// A web page, mostly the page of an error or of a login.
    Html,
    /// A format that is not read: `.bin`, `.pt`, `.onnx`, ...
    OtherFormat,
}

impl NotWeights {
    fn advice(self) -> &'static str {
        match self {
            NotWeights::Empty => "it is empty: download it again",
            NotWeights::LfsPointer => {
                "it is a git-lfs pointer, not the file itself: run `git lfs pull` in its repository, or download it again"
            }
            NotWeights::Html => {
                "it is a web page: the download got an error or login page in place of the file; download it again"
            }
            NotWeights::OtherFormat => "it is neither safetensors nor GGUF: convert it to one of the two",
        }
    }
}

impl fmt::Display for NotWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice())
    }
}

/// What can go wrong between a checkpoint on disk and its weights in memory. Paths, tensors and numbers are
/// in the fields; the message ends with what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// There is no such file or folder.
    #[error("{}: no such file or folder", path.display())]
    NotFound {
        /// As it was given.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was accessed.
        path: PathBuf,
        /// `open`, `read`, ...
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A folder without a file that this crate reads, or with more than one to choose from.
    #[error("{}: {reason}", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// What it holds in place of them, and what to do.
        reason: String,
    },
    /// A file that is no checkpoint at all.
    #[error("{}: {what}", path.display())]
    NotACheckpoint {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: NotWeights,
    },
    /// The file ends before what its header promises.
    #[error("{}: truncated: {part} ends at byte {expected}, but the file has {size} bytes (its header ends at byte {header_end}). Download it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// `the header`, or the tensor that lies beyond the end.
        part: String,
        /// One past the header's last byte, as far as it is known.
        header_end: u64,
        /// Least size that the file would need.
        expected: u64,
        /// Its size.
        size: u64,
    },
    /// More bytes than the header accounts for.
    #[error("{}: {} bytes follow the last tensor: the header accounts for {expected} bytes, the file has {size}. Download it again", path.display(), size - expected)]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// One past the last tensor's last byte.
        expected: u64,
        /// The file's size.
        size: u64,
    },
    /// The first eight bytes of a safetensors file give a length that no header has.
    #[error("{}: the header's length field says {declared} bytes; at most {limit} are read. This is not a safetensors file, or it is damaged: download it again", path.display())]
    HeaderLength {
        /// The file.
        path: PathBuf,
        /// The length it gives.
        declared: u64,
        /// The longest header that is read.
        limit: u64,
    },
    /// A header (safetensors or GGUF) or an index whose content makes no sense.
    #[error("{}: bad header: {reason}. Download it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where in the header.
        reason: String,
    },
    /// A GGUF version or byte order that is not read.
    #[error("{}: GGUF version {version} is not read ({reason})", path.display())]
    GgufVersion {
        /// The file.
        path: PathBuf,
        /// As it stands in the file.
        version: u32,
        /// What to do about it.
        reason: &'static str,
    },
    /// `config.json` or an index that is not JSON.
    #[error("{}: not valid JSON: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, column and what was expected there.
        reason: String,
    },
    /// One name for two tensors.
    #[error("tensor '{tensor}' stands twice: in {} and in {}. Remove one of the files, or download again", first.display(), second.display())]
    DuplicateTensor {
        /// Its name.
        tensor: String,
        /// Where it was first seen.
        first: PathBuf,
        /// And again.
        second: PathBuf,
    },
    /// A tensor whose offsets overlap another's, leave a gap, or run backwards.
    #[error("{}: tensor '{tensor}' has offsets {begin}..{end}, {reason}. Download it again", path.display())]
    Offsets {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its first byte, counted from the end of the header.
        begin: u64,
        /// One past its last.
        end: u64,
        /// What is wrong with that.
        reason: String,
    },
    /// A tensor whose bytes do not hold its shape.
    #[error("{}: tensor '{tensor}' of shape {shape:?} and type {dtype} takes {}, but {found} bytes are given. Download it again", path.display(), expected.map_or("more bytes than can be counted".to_owned(), |n| format!("{n} bytes")))]
    TensorSize {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its type in the file.
        dtype: Box<str>,
        /// Bytes by shape and type; none when that overflows.
        expected: Option<u64>,
        /// Bytes by its offsets.
        found: u64,
    },
    /// An element type that is not read.
    #[error("{}: tensor '{tensor}' has type {dtype}, which is not read; supported: {supported}", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type as its format names it.
        dtype: String,
        /// The types that are read.
        supported: &'static str,
    },
    /// Files that an index or a name asks for and that are not there; all of them.
    #[error("{}: {} of {total} files are missing: {}. Download them", path.display(), missing.len(), listed(missing, MOST_SHARDS_LISTED))]
    MissingShards {
        /// The folder.
        path: PathBuf,
        /// Their names.
        missing: Vec<String>,
        /// How many the checkpoint has.
        total: usize,
    },
    /// The index names tensors that no shard holds.
    #[error("{}: {}. Download the index and the shards again, all of one revision", path.display(), differences(absent, unlisted))]
    IndexMismatch {
        /// The index.
        path: PathBuf,
        /// In the index, but in no shard.
        absent: Vec<String>,
        /// In a shard, but not in the index.
        unlisted: Vec<String>,
    },
    /// Tensors that the model needs and the checkpoint lacks; all of them.
    #[error("{}: the model needs {} that the checkpoint lacks: {}. {}", path.display(), count(tensors.len(), "tensor"), some(tensors), near_hint(near))]
    MissingTensors {
        /// The checkpoint.
        path: PathBuf,
        /// Their names.
        tensors: Vec<String>,
        /// Names in the checkpoint that resemble the first of them.
        near: Vec<String>,
    },
    /// A tensor that is there, in another shape than the model's config says.
    #[error("{}: tensor '{tensor}' has shape {found:?}, but the config asks for {expected:?}. The config and the weights belong to different models, or one of them is damaged", path.display())]
    Shape {
        /// The file or checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// As the config has it.
        expected: Vec<usize>,
        /// As the file has it.
        found: Vec<usize>,
    },
    /// Packed codes, scales and biases of a quantized module that do not fit one another or the config.
    #[error("{}: quantized module '{module}': {reason}", path.display())]
    Quantization {
        /// The checkpoint.
        path: PathBuf,
        /// The module's path in the file, without `.weight`.
        module: String,
        /// The numbers that disagree.
        reason: String,
    },
    /// A weight expression that cannot be carried out on these tensors.
    #[error("{}: weight '{weight}': {reason}", path.display())]
    Expr {
        /// The checkpoint.
        path: PathBuf,
        /// The weight, or the first tensor of the expression.
        weight: String,
        /// Which operation, on what.
        reason: String,
    },
    /// A file that has become shorter since its header was read.
    #[error("{}: wanted {want} bytes at offset {offset}, got {got} before the end of the file. It was cut or replaced while it was read: load it again, and download it again if that fails", path.display())]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// Bytes wanted.
        want: u64,
        /// Bytes there.
        got: u64,
    },
    /// A GGUF block whose scale cannot be kept: its bias is beyond f16.
    #[error("{}: tensor '{tensor}': block {block} of format {format} has scale {scale}, whose bias does not fit f16. The tensor is damaged, or was made by a faulty converter", path.display())]
    BlockScale {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its block format.
        format: &'static str,
        /// The block, counted from the tensor's first.
        block: u64,
        /// The block's scale.
        scale: f32,
    },
    /// The device refused memory or a copy.
    #[error("loading weights: {0}")]
    Device(#[from] DeviceError),
    /// A variable of the environment that cannot be read.
    #[error(transparent)]
    Variable(#[from] BadVariable),
    /// A `--load` that is neither of the two.
    #[error("unknown way to load '{given}': expected eager or lazy")]
    UnknownLoadMode {
        /// As it was typed.
        given: String,
    },
    /// A weight that the load plan does not have.
    #[error("weight number {index} was asked for, but the load plan has {weights}")]
    NoSuchWeight {
        /// The number asked for.
        index: usize,
        /// How many there are.
        weights: usize,
    },
    /// What is asked of a pool does not fit it. Nothing has been read.
    #[error(
        "{pool}: {need} bytes are needed, {available} are available\n{plan}Ask for a smaller context, take a smaller quantization of the model, or choose another device"
    )]
    InsufficientMemory {
        /// The pool that is short.
        pool: String,
        /// Bytes asked of it.
        need: u64,
        /// Bytes it has.
        available: u64,
        /// The whole plan, item by item.
        plan: String,
    },
}

/// At most this many names in a message; the rest is counted.
const LISTED: usize = 20;

/// Shards are all named, as long as there are no more than real models have.
const MOST_SHARDS_LISTED: usize = 500;

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn some(names: &[String]) -> String {
    listed(names, LISTED)
}

/// The first `most` of the names; the rest is counted.
fn listed(names: &[String], most: usize) -> String {
    let mut text = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > most {
        text += &format!(" and {} more", names.len() - most);
    }
    text
}

fn differences(absent: &[String], unlisted: &[String]) -> String {
    let mut parts = Vec::new();
    if !absent.is_empty() {
        parts.push(format!(
            "{} stand in the index but in no shard: {}",
            count(absent.len(), "tensor"),
            some(absent)
        ));
    }
    if !unlisted.is_empty() {
        parts.push(format!(
            "{} stand in a shard but not in the index: {}",
            count(unlisted.len(), "tensor"),
            some(unlisted)
        ));
    }
    parts.join("; ")
}

fn near_hint(near: &[String]) -> String {
    if near.is_empty() {
        "Its config belongs to another model, or a file is missing".to_owned()
    } else {
        format!("It does have {}: its config may belong to another model", some(near))
    }
}
