//! GGUF metadata. Keys carry the architecture's name: `llama.block_count`.

use portolan_kernels::{Activation, rope::Yarn};
use portolan_weights::{Checkpoint, gguf::Metadata};

use super::{MOST_LAYERS, ModelConfig, RopeConfig, RopeScaling};
use crate::{ModelError, Result};

/// llama.cpp's rule for SmolLM3, whose files do not record it: every fourth layer is not rotated.
const SMOLLM3_NO_ROPE_INTERVAL: usize = 4;

struct Keys<'a> {
    checkpoint: &'a Checkpoint,
    metadata: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn bad(&self, name: &str, found: impl ToString, expected: &str) -> ModelError {
        ModelError::BadField {
            path: self.checkpoint.path.clone(),
            field: self.key(name),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    fn usize(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(value) => match self.metadata.usize(&key) {
                Some(number) => Ok(Some(number)),
                None => Err(self.bad(name, value, "a whole number that is not negative")),
            },
        }
    }

    fn str(&self, name: &str) -> Result<Option<&str>> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(value) => match self.metadata.str(&key) {
                Some(text) => Ok(Some(text)),
                None => Err(self.bad(name, value, "a text")),
            },
        }
    }

    fn need_usize(&self, name: &str) -> Result<usize> {
        self.usize(name)?.ok_or_else(|| ModelError::MissingField {
            path: self.checkpoint.path.clone(),
            field: self.key(name),
        })
    }

    fn f64(&self, name: &str) -> Result<Option<f64>> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(value) => match self.metadata.f64(&key).filter(|f| f.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.bad(name, value, "a finite number")),
            },
        }
    }
}

pub(super) fn read(checkpoint: &Checkpoint, metadata: &Metadata) -> Result<ModelConfig> {
    let arch = metadata.architecture().ok_or_else(|| ModelError::MissingField {
        path: checkpoint.path.clone(),
        field: "general.architecture".to_owned(),
    })?;
    let keys = Keys { checkpoint, metadata, arch };
    let layers = keys.need_usize("block_count")?;
    if layers > MOST_LAYERS {
        return Err(keys.bad("block_count", layers, &format!("1 to {MOST_LAYERS}")));
    }
    let hidden = keys.need_usize("embedding_length")?;
    let heads = keys.need_usize("attention.head_count")?;
    if heads == 0 {
        return Err(keys.bad("attention.head_count", heads, "at least 1"));
    }
    let head_dim = match keys.usize("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let (width, length) = (keys.key("embedding_length"), keys.key("attention.key_length"));
            let expected = format!("a divisor of {width} ({hidden}), since {length} is not given");
            return Err(keys.bad("attention.head_count", heads, &expected));
        }
    };
    if let Some(v_dim) = keys.usize("attention.value_length")?
        && v_dim != head_dim
    {
        let expected = format!("{head_dim}, the length of the keys ({})", keys.key("attention.key_length"));
        return Err(keys.bad("attention.value_length", v_dim, &expected));
    }
    let context = keys.usize("context_length")?.unwrap_or(2048);
    let window = keys.usize("attention.sliding_window")?.filter(|&w| w > 0);
    Ok(ModelConfig {
        path: checkpoint.path.clone(),
        model_type: arch.to_owned(),
        hidden,
        intermediate: keys.need_usize("feed_forward_length")?,
        layers,
        heads,
        kv_heads: keys.usize("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab: keys.usize("vocab_size")?,
        context,
        norm_eps: keys.f64("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
        activation: Activation::Silu,
        rope: rope(&keys, head_dim, context)?,
        tied: !checkpoint.contains("output.weight"),
        attention_bias: checkpoint.contains("blk.0.attn_q.bias"),
        mlp_bias: checkpoint.contains("blk.0.ffn_gate.bias"),
        windows: vec![window; layers],
        rotated: (1..=layers)
            .map(|n| arch != "smollm3" || !n.is_multiple_of(SMOLLM3_NO_ROPE_INTERVAL))
            .collect(),
    })
}

/// Llama 3.1's scaling, stored as a divisor for each frequency.
fn divisors(keys: &Keys<'_>, rot: usize) -> Result<Option<Vec<f32>>> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = keys.checkpoint.get(NAME) else { return Ok(None) };
    // By its shape, before it is read: it may be of any size.
    if tensor.elements() != rot / 2 {
        return Err(ModelError::BadField {
            path: keys.checkpoint.path.clone(),
            field: NAME.to_owned(),
            found: format!("{} numbers", tensor.elements()),
            expected: format!("{}, one for each pair of rotated elements", rot / 2),
        });
    }
    Ok(Some(keys.checkpoint.read_f32(NAME)?))
}

fn rope(keys: &Keys<'_>, head_dim: usize, context: usize) -> Result<RopeConfig> {
    let theta = keys.f64("rope.freq_base")?.unwrap_or(10_000.0);
    let rot = keys.usize("rope.dimension_count")?.unwrap_or(head_dim);
    let factor = keys.f64("rope.scaling.factor")?;
    let kind = keys.str("rope.scaling.type")?;
    let scaling = match (divisors(keys, rot)?, kind) {
        (Some(divisors), _) => RopeScaling::Divisors(divisors),
        (None, None) => match factor.or(keys.f64("rope.scale_linear")?) {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        (None, Some("none")) => RopeScaling::None,
        (None, Some("linear")) => match factor {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        },
        (None, Some("yarn")) => {
            let original = keys.usize("rope.scaling.original_context_length")?.unwrap_or(context);
            RopeScaling::Yarn(Yarn {
                factor: factor.unwrap_or(1.0),
                original_max: original,
                beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: keys.f64("rope.scaling.attn_factor")?,
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            })
        }
        (None, Some(other)) => {
            return Err(ModelError::UnknownRope {
                path: keys.checkpoint.path.clone(),
                kind: other.to_owned(),
            });
        }
    };
    Ok(RopeConfig { theta, rot, context, scaling })
}

/// GGUF's keys of the fields that are checked under their names of `config.json`, without the architecture.
const KEYS: &[(&str, &str)] = &[
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("vocab_size", "vocab_size"),
    ("partial_rotary_factor", "rope.dimension_count"),
    ("rope_theta", "rope.freq_base"),
    ("factor", "rope.scaling.factor"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("attention_factor", "rope.scaling.attn_factor"),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
];

/// The key of a field in a file of this architecture.
pub(super) fn key_of(field: &str, arch: &str) -> Option<String> {
    KEYS.iter().find(|(hf, _)| *hf == field).map(|(_, key)| format!("{arch}.{key}"))
}
