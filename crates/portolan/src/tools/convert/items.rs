//! The weights of a model, each with what becomes of it.

use std::collections::BTreeSet;

use portolan_device::DType;
use portolan_models::hf_name;
use portolan_weights::{Checkpoint, Encoding, Expr, LoadPlan, NewTensor};

use crate::{Error, Result};

use super::{
    choose::{Choice, matrix, plain, plain_type},
    options::ConvertOptions,
};

/// One weight of the result.
pub(super) struct Item {
    /// Its name in the graph, for messages.
    pub(super) weight: String,
    /// The tensor of the source that it is read from.
    pub(super) source: String,
    /// As it is stored; decoding is added where it is read.
    pub(super) expr: Expr,
    pub(super) from: Encoding,
    pub(super) choice: Choice,
    /// Numbers in it.
    pub(super) elements: u64,
    /// The tensors that are written for it, in their order.
    pub(super) tensors: Vec<NewTensor>,
}

impl Item {
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(NewTensor::bytes).sum()
    }
}

/// The tensors of some items, in order.
pub(super) fn tensors(items: &[Item]) -> Vec<NewTensor> {
    items.iter().flat_map(|item| item.tensors.iter().cloned()).collect()
}

/// An expression without the conversion to f32 that a graph asks for on top of norms and biases.
pub(super) fn as_stored(expr: &Expr) -> Expr {
    match expr {
        Expr::Dequantize { of, .. } => (**of).clone(),
        other => other.clone(),
    }
}

/// The weights of the result, and whether the embedding is the output matrix.
pub(super) fn items(
    checkpoint: &Checkpoint,
    load: &LoadPlan,
    options: &ConvertOptions,
) -> Result<(Vec<Item>, bool)> {
    let mut items = Vec::new();
    // A graph lists a weight that serves twice once, or a second time as the same bytes.
    let tied = !load.tensors.iter().any(|t| t.request.name == "lm_head" && t.same_as.is_none());
    let mut met = vec![false; options.keep.len()];
    for tensor in &load.tensors {
        let name = &tensor.request.name;
        if tensor.same_as.is_some() {
            continue;
        }
        let from = tensor.resolved.encoding;
        let shape = &tensor.resolved.shape;
        let source = tensor.resolved.sources.first().unwrap_or(name).clone();
        let fail = |reason: String| Error::Unconvertible {
            path: checkpoint.path.clone(),
            tensor: source.clone(),
            reason,
        };
        let Some(dtype) = plain_type(from) else {
            return Err(fail(format!(
                "its numbers are stored as {from}, which holds no weights by itself. Convert from a checkpoint in f32, \
                 f16 or bf16"
            )));
        };
        let full = hf_name(name);
        let module = full.strip_suffix(".weight");
        let choice = match (shape.as_slice(), module) {
            ([_, k], Some(module)) => {
                let mut keep = None;
                for (keep_of, met) in options.keep.iter().zip(&mut met) {
                    if keep_of.matches(module) {
                        (keep, *met) = (Some(keep_of.bits), true);
                    }
                }
                matrix(from, dtype, *k, options, keep)
            }
            ([_], _) => plain(from, dtype),
            _ => {
                return Err(fail(format!("it has shape {shape:?}, where a vector or a matrix was expected")));
            }
        };
        let tensors = new_tensors(&full, shape, choice.to);
        items.push(Item {
            weight: name.clone(),
            source,
            expr: tensor.request.expr.clone(),
            from,
            choice,
            elements: shape.iter().map(|&n| n as u64).product(),
            tensors,
        });
    }
    if let Some((keep, _)) = options.keep.iter().zip(met).find(|(_, met)| !met) {
        return Err(Error::NoSuchModule { module: keep.module.clone(), known: known(&items, tied) });
    }
    Ok((items, tied))
}

/// What `--keep` could have named.
fn known(items: &[Item], tied: bool) -> String {
    let kinds: BTreeSet<String> = items
        .iter()
        .filter(|i| i.tensors.iter().any(|t| t.shape.len() == 2))
        .map(|i| kind_of(&i.weight))
        .collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
    let tied = if tied { "; its output matrix is embed_tokens" } else { "" };
    format!("It has {kinds}{tied}")
}

/// The tensors that a weight of this shape is written as.
fn new_tensors(full: &str, shape: &[usize], to: Encoding) -> Vec<NewTensor> {
    let tensor = |name: String, dtype, last: usize| {
        let mut shape = shape.to_vec();
        if let Some(k) = shape.last_mut() {
            *k = last;
        }
        NewTensor { name, dtype, shape }
    };
    let k = shape.last().copied().unwrap_or(1);
    let module = full.strip_suffix(".weight").unwrap_or(full);
    let codes = || tensor(full.to_owned(), DType::U32, k * to.code_bits() / 32);
    match to {
        Encoding::Dense(dtype) => vec![tensor(full.to_owned(), dtype, k)],
        Encoding::Affine { group, meta, .. } => {
            let groups = k / usize::from(group);
            let of_groups = |what: &str| tensor(format!("{module}.{what}"), meta, groups);
            vec![codes(), of_groups("scales"), of_groups("biases")]
        }
        _ => vec![codes(), tensor(format!("{module}.scales"), DType::U8, k / to.group())],
    }
}

pub(super) fn quantized_modules(items: &[Item]) -> Vec<(String, Encoding, u64)> {
    let quantized = items.iter().filter(|item| item.choice.to.is_quantized());
    quantized
        .map(|item| {
            let full = hf_name(&item.weight);
            (full.strip_suffix(".weight").unwrap_or(&full).to_owned(), item.choice.to, item.elements)
        })
        .collect()
}

/// `layers.3.self_attn.q_proj` is a `layers.*.self_attn.q_proj`.
pub(super) fn kind_of(name: &str) -> String {
    match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, kind)) => format!("layers.*.{kind}"),
        None => name.to_owned(),
    }
}
