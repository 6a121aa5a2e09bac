//! A trace as a safetensors file. `docs/traces.md` describes it for those who read it elsewhere.

use std::{collections::HashMap, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{
    data::Trace,
    header::{FORMAT, TraceHeader},
};
use crate::{Error, Result, tools::logits::write_whole};

/// The key of the header in `__metadata__`.
const KEY: &str = "portolan_trace";

impl Trace {
    /// Writes the file. It appears under its name when it is complete.
    ///
    /// # Errors
    /// What keeps the file from being written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes().map_err(|reason| Error::Write { path: path.to_owned(), reason })?;
        write_whole(path, &bytes).map_err(|e| Error::Write { path: path.to_owned(), reason: e.to_string() })
    }

    fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let (n, k) = (self.positions(), self.header.arguments.top);
        let nll: Vec<f64> = (0..n).filter_map(|i| self.nll(i)).collect();
        let mut tensors = vec![
            ("tokens", Dtype::I32, vec![self.tokens.len()], bytes(&self.tokens, |v| v.to_le_bytes())),
            ("top_ids", Dtype::I32, vec![n, k], bytes(&self.top_ids, |v| v.to_le_bytes())),
            ("top_logits", Dtype::F32, vec![n, k], bytes(&self.top_logits, |v| v.to_le_bytes())),
            ("log_sum_exp", Dtype::F64, vec![n], bytes(&self.log_sum_exp, |v| v.to_le_bytes())),
            ("next_logit", Dtype::F32, vec![n], bytes(&self.next_logits, |v| v.to_le_bytes())),
            ("next_nll", Dtype::F64, vec![n], bytes(&nll, |v| v.to_le_bytes())),
        ];
        if let Some(all) = &self.logits {
            let shape = vec![n, self.header.vocab];
            tensors.push(("logits", Dtype::F32, shape, bytes(all, |v| v.to_le_bytes())));
        }
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| {
                Ok((*name, TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| e.to_string())?))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let header = serde_json::to_string(&self.header).map_err(|e| e.to_string())?;
        safetensors::serialize(views, Some(HashMap::from([(KEY.to_owned(), header)])))
            .map_err(|e| e.to_string())
    }

    /// Reads a file that [`Trace::save`] wrote.
    ///
    /// # Errors
    /// A file that cannot be read, that is no trace or a damaged one.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |reason: String| Error::Read { path: path.to_owned(), reason };
        let meta = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
        // A pipe would be waited for, and a device might never end.
        if !meta.is_file() {
            return Err(failed("it is not a file".to_owned()));
        }
        let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
        Self::from_bytes(&bytes).map_err(|what| Error::BadTrace { path: path.to_owned(), what })
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
        let header = metadata.metadata().as_ref().and_then(|m| m.get(KEY));
        let header = header.ok_or_else(|| format!("__metadata__ has no {KEY}"))?;
        let format: Format = serde_json::from_str(header).map_err(|e| format!("the header: {e}"))?;
        if format.format != FORMAT {
            return Err(format!("the format is {}, and this version reads {FORMAT}", format.format));
        }
        let header: TraceHeader = serde_json::from_str(header).map_err(|e| format!("the header: {e}"))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        let (n, k, vocab) = (header.positions, header.arguments.top, header.vocab);
        let rows = header.arguments.context_before.checked_add(n).and_then(|rows| rows.checked_add(1));
        let rows = rows.ok_or("the header's sizes are too large")?;
        if n == 0 || k == 0 || k > vocab {
            return Err(format!(
                "{n} positions, the {k} likeliest of {vocab} tokens: there is nothing in it"
            ));
        }
        let get = |name: &str, dtype: Dtype, shape: &[usize]| {
            let view = tensors.tensor(name).map_err(|e| format!("{name}: {e}"))?;
            if view.dtype() != dtype || view.shape() != shape {
                let (found, sizes) = (view.dtype(), view.shape());
                return Err(format!("{name} is {found:?} {sizes:?}, expected {dtype:?} {shape:?}"));
            }
            Ok(view.data())
        };
        let logits = match tensors.tensor("logits") {
            Ok(_) => Some(values(get("logits", Dtype::F32, &[n, vocab])?, f32::from_le_bytes)),
            Err(_) => None,
        };
        let trace = Trace {
            tokens: values(get("tokens", Dtype::I32, &[rows])?, u32::from_le_bytes),
            top_ids: values(get("top_ids", Dtype::I32, &[n, k])?, u32::from_le_bytes),
            top_logits: values(get("top_logits", Dtype::F32, &[n, k])?, f32::from_le_bytes),
            log_sum_exp: values(get("log_sum_exp", Dtype::F64, &[n])?, f64::from_le_bytes),
            next_logits: values(get("next_logit", Dtype::F32, &[n])?, f32::from_le_bytes),
            logits,
            header,
        };
        trace.check()?;
        // Written for other readers; here it only has to agree.
        let nll = values(get("next_nll", Dtype::F64, &[n])?, f64::from_le_bytes);
        for (position, found) in nll.into_iter().enumerate() {
            let expected = trace.nll(position).unwrap_or(f64::NAN);
            // An impossible target has an infinite one, and infinity less infinity is no number.
            let agrees = found == expected || (found - expected).abs() <= 1e-9;
            if !agrees {
                return Err(format!("position {position}: next_nll is {found}, the logits give {expected}"));
            }
        }
        Ok(trace)
    }
}

/// The part of the header that every version has.
#[derive(serde::Deserialize)]
struct Format {
    format: u32,
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

fn values<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).filter_map(|chunk| Some(from(chunk.try_into().ok()?))).collect()
}
