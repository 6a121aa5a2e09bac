//! `config.json`, as on the hub and as transformers 5 writes it.

use std::path::Path;

use portolan_kernels::Activation;
use serde_json::Value;

use super::{MOST_LAYERS, ModelConfig, fields::Fields, rope::RopeConfig};
use crate::{ModelError, Result};

/// Defaults that transformers fills in where a file does not say.
struct Defaults {
    theta: f64,
    attention_bias: bool,
    tied: bool,
}

fn defaults(model_type: &str) -> Defaults {
    match model_type {
        "smollm3" => Defaults { theta: 2_000_000.0, attention_bias: false, tied: true },
        "qwen2" => Defaults { theta: 10_000.0, attention_bias: true, tied: false },
        _ => Defaults { theta: 10_000.0, attention_bias: false, tied: false },
    }
}

pub(super) fn read(path: &Path, value: &Value) -> Result<ModelConfig> {
    if !value.is_object() {
        return Err(ModelError::BadField {
            path: path.to_owned(),
            field: "config.json".to_owned(),
            found: "not an object".to_owned(),
            expected: "a JSON object".to_owned(),
        });
    }
    let fields = Fields { path, prefix: "", value };
    let model_type = fields.str("model_type")?.ok_or_else(|| fields.missing("model_type"))?;
    let defaults = defaults(model_type);
    let hidden = fields.need_usize("hidden_size")?;
    let layers = fields.need_usize("num_hidden_layers")?;
    if layers > MOST_LAYERS {
        return Err(fields.bad("num_hidden_layers", layers, &format!("1 to {MOST_LAYERS}")));
    }
    let heads = fields.need_usize("num_attention_heads")?;
    if heads == 0 {
        return Err(fields.bad("num_attention_heads", heads, "at least 1"));
    }
    let head_dim = match fields.usize("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a divisor of hidden_size ({hidden}), since head_dim is not given");
            return Err(fields.bad("num_attention_heads", heads, &expected));
        }
    };
    let context = fields.usize("max_position_embeddings")?.unwrap_or(2048);
    let rope = RopeConfig::from_json(&fields, head_dim, context, defaults.theta)?;
    Ok(ModelConfig {
        path: path.to_owned(),
        model_type: model_type.to_owned(),
        hidden,
        intermediate: fields.need_usize("intermediate_size")?,
        layers,
        heads,
        kv_heads: fields.usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab: fields.usize("vocab_size")?,
        context,
        norm_eps: fields.f64("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: activation(&fields)?,
        rope,
        tied: fields.bool("tie_word_embeddings")?.unwrap_or(defaults.tied),
        attention_bias: fields.bool("attention_bias")?.unwrap_or(defaults.attention_bias),
        mlp_bias: fields.bool("mlp_bias")?.unwrap_or(false),
        windows: windows(&fields, model_type, layers)?,
        rotated: rotated(&fields, model_type, layers)?,
    })
}

fn activation(fields: &Fields<'_>) -> Result<Activation> {
    match fields.str("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "relu2" => Ok(Activation::Relu2),
        other => {
            Err(fields.bad("hidden_act", format!("'{other}'"), "silu, gelu, gelu_pytorch_tanh or relu2"))
        }
    }
}

/// Which layers see only a window. Newer files say it by layer; older ones by a switch and a first layer.
fn windows(fields: &Fields<'_>, model_type: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    let window = fields.usize("sliding_window")?;
    if window == Some(0) {
        return Err(fields.bad("sliding_window", 0, "null or at least 1"));
    }
    // A Llama has no windows, whatever a field left over from another model says.
    let switch = fields.bool("use_sliding_window")?.unwrap_or(model_type == "mistral");
    let Some(window) = window.filter(|_| switch) else { return Ok(vec![None; layers]) };
    if let Some(types) = fields.layer_list("layer_types", layers)? {
        return types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(None),
                Some("sliding_attention") => Ok(Some(window)),
                _ => Err(fields.bad("layer_types", kind, "full_attention or sliding_attention")),
            })
            .collect();
    }
    let first = match model_type {
        "mistral" => 0,
        _ => fields.usize("max_window_layers")?.unwrap_or(0),
    };
    Ok((0..layers).map(|layer| (layer >= first).then_some(window)).collect())
}

/// SmolLM3 leaves rope out of some layers: by a list, or every n-th.
fn rotated(fields: &Fields<'_>, model_type: &str, layers: usize) -> Result<Vec<bool>> {
    if model_type != "smollm3" {
        return Ok(vec![true; layers]);
    }
    if let Some(list) = fields.layer_list("no_rope_layers", layers)? {
        return list
            .iter()
            .map(|entry| match entry.as_u64() {
                Some(1) => Ok(true),
                Some(0) => Ok(false),
                _ => Err(fields.bad("no_rope_layers", entry, "1 (rotated) or 0")),
            })
            .collect();
    }
    let interval = fields.usize("no_rope_layer_interval")?.unwrap_or(4);
    if interval == 0 {
        return Err(fields.bad("no_rope_layer_interval", 0, "at least 1"));
    }
    Ok((1..=layers).map(|n| !n.is_multiple_of(interval)).collect())
}
