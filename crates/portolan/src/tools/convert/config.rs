//! config.json of the result.

use std::collections::BTreeMap;

use portolan_models::Model;
use portolan_weights::{BlockScale, Checkpoint, ConfigSource, Element, Encoding};
use serde_json::{Map, Value, json};

use crate::Result;

/// The fields of the result, without its quantization: the source's own, or made from a GGUF file's metadata.
pub(super) fn base(checkpoint: &Checkpoint, model: &Model, tied: bool) -> Result<Map<String, Value>> {
    let mut fields = match &checkpoint.config {
        ConfigSource::Json(Value::Object(fields)) => fields.clone(),
        _ => model.config.to_json(model.graph.vocab)?,
    };
    fields.remove("quantization");
    fields.remove("quantization_config");
    // Said in any case: what a program takes for granted where it is missing differs from one to the next.
    fields.insert("tie_word_embeddings".to_owned(), json!(tied));
    Ok(fields)
}

/// Adds `quantization`, and the same again as `quantization_config`, as mlx-lm does. `modules` has the encoding and the
/// number of weights of every quantized module; what most weights have is the default, and the others are told by name.
pub(super) fn add_quantization(fields: &mut Map<String, Value>, modules: &[(String, Encoding, u64)]) {
    let mut weights: BTreeMap<String, (u64, Encoding)> = BTreeMap::new();
    for (_, encoding, count) in modules {
        weights.entry(settings(*encoding).to_string()).or_insert((0, *encoding)).0 += count;
    }
    let Some((_, usual)) = weights.into_values().max_by_key(|(count, _)| *count) else { return };
    let usual = settings(usual);
    let Value::Object(mut quantization) = usual.clone() else { return };
    for (module, encoding, _) in modules {
        let own = settings(*encoding);
        if own != usual {
            quantization.insert(module.clone(), own);
        }
    }
    for name in ["quantization", "quantization_config"] {
        fields.insert(name.to_owned(), quantization.clone().into());
    }
}

/// Group, bits and mode, under MLX's names.
fn settings(encoding: Encoding) -> Value {
    let mode = match encoding {
        Encoding::FloatBlock { element: Element::E4M3, .. } => "mxfp8",
        Encoding::FloatBlock { scale: BlockScale::E4M3, .. } => "nvfp4",
        Encoding::FloatBlock { .. } => "mxfp4",
        _ => "affine",
    };
    json!({"group_size": encoding.group(), "bits": encoding.code_bits(), "mode": mode})
}
