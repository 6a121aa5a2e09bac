//! What a trace says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of the file's format. A file of another one is refused.
pub const FORMAT: u32 = 1;

/// The head of a trace: what was computed, from what, by what and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceHeader {
    /// [`FORMAT`].
    pub format: u32,
    /// Portolan's version.
    pub version: String,
    /// The commit that it was built from: `PORTOLAN_COMMIT` at build time, else `unknown`.
    pub commit: String,
    /// The name of the checkpoint's folder or file.
    pub model: String,
    /// See [`super::checkpoint_sha256`].
    pub checkpoint_sha256: String,
    /// What was read.
    pub corpus: TraceCorpus,
    /// Columns of the logits.
    pub vocab: usize,
    /// Positions scored.
    pub positions: usize,
    /// How it was computed.
    pub arguments: TraceArguments,
    /// Where it was computed.
    pub device: TraceDevice,
}

/// The text of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceCorpus {
    /// The file's name.
    pub name: String,
    /// Of the tokens that were used, each as four bytes, least significant first. So the same text in another
    /// vocabulary is another corpus.
    pub sha256: String,
    /// How many they are: the context before, the positions, and the last target.
    pub tokens: usize,
}

/// The arguments of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceArguments {
    /// Rows of a scored step.
    pub width: usize,
    /// Tokens before the first scored position of a window.
    pub context_before: usize,
    /// Most tokens of a sequence, the context before among them.
    pub window: usize,
    /// Rows of a step that computes the context before.
    pub chunk: usize,
    /// Likeliest tokens kept of each position.
    pub top: usize,
    /// Plain f32 kernels and cache.
    pub exact: bool,
    /// Batch-invariant kernels only.
    pub deterministic: bool,
    /// Type of the cache's elements.
    pub cache: String,
    /// The ops whose ports were closed (false) or opened (true) by `PORTOLAN_PORT_<OP>`.
    pub ports: BTreeMap<String, bool>,
}

/// The device of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceDevice {
    /// `cpu`, `cuda:0`.
    pub id: String,
    /// What the driver or the processor calls itself.
    pub name: String,
    /// `x86_64`, `sm_90`.
    pub arch: String,
    /// Threads of the CPU team, or compute units of a GPU.
    pub units: usize,
}

impl Default for TraceHeader {
    /// A header of this version and commit, with everything else empty.
    fn default() -> Self {
        TraceHeader {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("PORTOLAN_COMMIT").filter(|c| !c.is_empty()).unwrap_or("unknown").to_owned(),
            model: String::new(),
            checkpoint_sha256: String::new(),
            corpus: TraceCorpus::default(),
            vocab: 0,
            positions: 0,
            arguments: TraceArguments::default(),
            device: TraceDevice::default(),
        }
    }
}

/// The hash of [`TraceCorpus`].
pub(super) fn corpus_sha256(tokens: &[u32]) -> String {
    let mut hasher = Sha256::new();
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hex(&hasher.finalize())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
