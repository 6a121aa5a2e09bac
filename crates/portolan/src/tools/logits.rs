//! Logits of a prompt, in whatever chunks it is computed, and a greedy continuation.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use safetensors::{Dtype, tensor::TensorView};

use crate::{
    Core, Error, Result, SeqStep, Want,
    sample::{argmax, check_finite},
};

/// Logits of a prompt and a greedy continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// `[T, vocab]`.
    pub logits: Vec<f32>,
    /// Columns of `logits`.
    pub vocab: usize,
    /// Greedy continuation.
    pub greedy_ids: Vec<u32>,
    /// The logits that each of them was chosen from, `[N, vocab]`.
    pub greedy_logits: Vec<f32>,
}

/// Computes the logits of every token of `ids`, `chunk` tokens a step, then `greedy` more tokens one by one.
pub fn logits(core: &mut Core, ids: &[u32], greedy: usize, chunk: usize) -> Result<Logits> {
    if ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    // The last greedy token is chosen, but not computed.
    let need = ids.len() + greedy.saturating_sub(1);
    if need > core.context() {
        return Err(Error::ContextOverflow { need, context: core.context() });
    }
    let limits = core.limits();
    let chunk = chunk.clamp(1, limits.rows.min(limits.selected));
    let seq = core.create();
    let result = run(core, seq, ids, greedy, chunk);
    core.discard(seq);
    result
}

fn run(core: &mut Core, seq: crate::SeqId, ids: &[u32], greedy: usize, chunk: usize) -> Result<Logits> {
    let mut out = Logits { input_ids: ids.to_vec(), vocab: core.vocab(), ..Default::default() };
    for tokens in ids.chunks(chunk) {
        let first = core.len(seq)?;
        core.step(&[SeqStep { seq, tokens, want: Want::All }])?;
        for row in 0..tokens.len() {
            check_finite(core.logits(row), first + row)?;
            out.logits.extend_from_slice(core.logits(row));
        }
    }
    let mut last = out.logits[(ids.len() - 1) * out.vocab..].to_vec();
    for index in 0..greedy {
        let id = argmax(&last);
        out.greedy_ids.push(id);
        out.greedy_logits.extend_from_slice(&last);
        if index + 1 < greedy {
            core.step(&[SeqStep { seq, tokens: &[id], want: Want::Last }])?;
            check_finite(core.logits(0), ids.len() + index)?;
            last.clear();
            last.extend_from_slice(core.logits(0));
        }
    }
    Ok(out)
}

impl Logits {
    /// Writes a safetensors file: `logits`, `input_ids`, and, where asked for, `greedy_ids` and `greedy_logits`. The
    /// file appears under its name when it is complete.
    pub fn save(&self, path: &Path) -> Result<()> {
        let ints = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let tokens = self.input_ids.len();
        let mut tensors = vec![
            ("logits", Dtype::F32, vec![tokens, self.vocab], floats(&self.logits)),
            ("input_ids", Dtype::I32, vec![tokens], ints(&self.input_ids)),
        ];
        if !self.greedy_ids.is_empty() {
            let n = self.greedy_ids.len();
            tensors.push(("greedy_ids", Dtype::I32, vec![n], ints(&self.greedy_ids)));
            tensors.push(("greedy_logits", Dtype::F32, vec![n, self.vocab], floats(&self.greedy_logits)));
        }
        let failed = |reason: String| Error::Write { path: path.to_owned(), reason };
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| {
                Ok((*name, TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| failed(e.to_string()))?))
            })
            .collect::<Result<Vec<_>>>()?;
        let bytes = safetensors::serialize(views, None).map_err(|e| failed(e.to_string()))?;
        write_whole(path, &bytes).map_err(|e| failed(e.to_string()))
    }
}

/// Writes a file that appears under its name only when it is complete. A link is followed, and what is there and is no
/// regular file (a pipe, a device) is written to, never replaced.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = if path.exists() { path.canonicalize()? } else { path.to_owned() };
    if target.exists() && !target.is_file() {
        return File::options().write(true).open(&target)?.write_all(bytes);
    }
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Like any file that a program makes: what the user's umask leaves.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.tempfile_in(folder)?;
    temporary.write_all(bytes)?;
    temporary.persist(&target).map_err(|e| e.error)?;
    Ok(())
}
