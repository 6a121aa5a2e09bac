//! Logits of a prompt, in whatever chunks it is computed, and a greedy continuation.

use std::path::Path;

use safetensors::{Dtype, tensor::TensorView};

use crate::{Core, Error, Result, SeqStep, Want, sample::argmax};

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
        core.step(&[SeqStep { seq, tokens, want: Want::All }])?;
        for row in 0..tokens.len() {
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
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::NamedTempFile::new_in(folder).map_err(|e| failed(e.to_string()))?;
        safetensors::serialize_to_file(views, None, temporary.path()).map_err(|e| failed(e.to_string()))?;
        temporary.persist(path).map_err(|e| failed(e.error.to_string()))?;
        Ok(())
    }
}
