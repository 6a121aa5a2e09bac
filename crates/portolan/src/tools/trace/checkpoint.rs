//! Which checkpoint a trace is of, without reading all of it.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use portolan_weights::{Checkpoint, ConfigSource};
use sha2::{Digest, Sha256};

use super::header::hex;
use crate::{Error, Result};

/// Bytes hashed at either end of a file.
const END: u64 = 64 << 10;
/// Places between the ends, and bytes hashed at each. A fine-tune often leaves the ends of the file as they were.
const PLACES: u64 = 64;
const PLACE: u64 = 4 << 10;

/// A hash that tells checkpoints apart: over the configuration, over name, shape and encoding of every tensor, and over
/// the size and some of the bytes of every file that holds tensors. Those are the begin, up to the first tensor and at least
/// 64 KiB; the last 64 KiB; and 4 KiB at each of 63 places between, evenly spread.
///
/// It reads little, so it is quick for a checkpoint of any size. What it does not see is a small change between those
/// places: it tells one model from another, and is no proof against tampering. The same weights in another format, or
/// cut into other shards, have another hash.
///
/// # Errors
/// A file that cannot be read.
pub fn checkpoint_sha256(checkpoint: &Checkpoint) -> Result<String> {
    let mut hash = Framed(Sha256::new());
    match &checkpoint.config {
        ConfigSource::Json(config) => hash.add(config.to_string().as_bytes()),
        // A GGUF's metadata stand before its first tensor; a lone safetensors file has none.
        _ => hash.add(&[]),
    }
    for (name, tensor) in &checkpoint.tensors {
        hash.add(name.as_bytes());
        for &size in &tensor.shape {
            hash.0.update((size as u64).to_le_bytes());
        }
        hash.add(tensor.encoding.to_string().as_bytes());
    }
    for (index, path) in checkpoint.files.iter().enumerate() {
        let spans = checkpoint.tensors.values().flat_map(|t| t.spans()).filter(|span| span.file == index);
        let first = spans.map(|span| span.offset).min().unwrap_or(0);
        samples(path, first, &mut hash)
            .map_err(|e| Error::Read { path: path.clone(), reason: e.to_string() })?;
    }
    Ok(hex(&hash.0.finalize()))
}

fn samples(path: &Path, first_tensor: u64, hash: &mut Framed) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    hash.0.update(size.to_le_bytes());
    let places = (1..PLACES).map(|i| (size / PLACES * i, PLACE));
    let end = (size.saturating_sub(END), END);
    for (offset, len) in [(0, first_tensor.max(END))].into_iter().chain(places).chain([end]) {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset))?;
        (&mut file).take(len).read_to_end(&mut bytes)?;
        hash.add(&bytes);
    }
    Ok(())
}

/// Pieces with their lengths before them, so that no two lists of pieces run together into the same bytes.
struct Framed(Sha256);

impl Framed {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}
