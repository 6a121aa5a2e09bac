//! A configuration as `config.json`: for a checkpoint that was made from a GGUF file.

use portolan_kernels::{
    Activation,
    rope::{Llama3, Yarn},
};
use serde_json::{Map, Value, json};

use super::{ModelConfig, RopeConfig, RopeScaling};
use crate::{ModelError, Result};

/// Frequencies that differ by less than this share are the same: GGUF keeps their divisors in f32.
const SAME_FREQUENCY: f32 = 1e-6;

impl ModelConfig {
    /// The fields of `config.json`, under the names that transformers 4 and mlx-lm read; `vocab` is the number of rows
    /// of the embedding.
    ///
    /// # Errors
    /// [`ModelError::BadField`] for the frequencies of a GGUF file's `rope_freqs.weight` that no scaling with a name
    /// comes to, and for layers that differ in a way that the family has no field for.
    pub fn to_json(&self, vocab: usize) -> Result<Map<String, Value>> {
        let architecture = match self.model_type.as_str() {
            "mistral" => "MistralForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            "smollm3" => "SmolLM3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        let json = json!({
            "architectures": [architecture],
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": shortest(self.norm_eps),
            "hidden_act": activation(self.activation),
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "tie_word_embeddings": self.tied,
            "rope_theta": self.rope.theta,
            "rope_scaling": self.rope_scaling()?,
        });
        let Value::Object(mut fields) = json else { return Ok(Map::new()) };
        if self.rope.rot != self.head_dim {
            let share = self.rope.rot as f64 / self.head_dim as f64;
            fields.insert("partial_rotary_factor".to_owned(), json!(share));
        }
        self.add_windows(&mut fields)?;
        if self.model_type == "smollm3" {
            let rotated: Vec<u8> = self.rotated.iter().map(|&rotated| rotated.into()).collect();
            fields.insert("no_rope_layers".to_owned(), json!(rotated));
        }
        Ok(fields)
    }

    fn add_windows(&self, fields: &mut Map<String, Value>) -> Result<()> {
        let Some(window) = self.windows.iter().flatten().next().copied() else {
            return Ok(());
        };
        let types: Vec<&str> = self
            .windows
            .iter()
            .map(|w| match w {
                None => Ok("full_attention"),
                Some(w) if *w == window => Ok("sliding_attention"),
                Some(w) => Err(self.bad("sliding_window", w, format!("{window}, as in other layers"))),
            })
            .collect::<Result<_>>()?;
        fields.insert("sliding_window".to_owned(), json!(window));
        fields.insert("use_sliding_window".to_owned(), json!(true));
        fields.insert("layer_types".to_owned(), json!(types));
        Ok(())
    }

    fn rope_scaling(&self) -> Result<Value> {
        Ok(match &self.rope.scaling {
            RopeScaling::None => Value::Null,
            RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            RopeScaling::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
            RopeScaling::Yarn(yarn) => yarn_json(yarn),
            RopeScaling::Llama3(llama3) => llama3_json(llama3),
            RopeScaling::Divisors(divisors) if divisors.iter().all(|&d| d == 1.0) => Value::Null,
            RopeScaling::Divisors(_) => match llama3_of(&self.rope) {
                Some(llama3) => llama3_json(&llama3),
                None => {
                    let expected =
                        "the divisors of a llama3 scaling, the only ones that config.json has a name for";
                    return Err(ModelError::BadField {
                        path: self.path.clone(),
                        field: "rope_freqs.weight".to_owned(),
                        found: "of other numbers".to_owned(),
                        expected: expected.to_owned(),
                    });
                }
            },
        })
    }
}

/// The number as it would be typed: 1e-5, not the f64 nearest to the f32.
fn shortest(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(json!(value), |v| json!(v))
}

const fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu2 => "relu2",
    }
}

fn yarn_json(yarn: &Yarn) -> Value {
    let mut json = json!({
        "rope_type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
    });
    let more = [
        ("attention_factor", yarn.attention_factor),
        ("mscale", yarn.mscale),
        ("mscale_all_dim", yarn.mscale_all_dim),
    ];
    for (field, value) in more {
        if let Some(value) = value {
            json[field] = json!(value);
        }
    }
    if !yarn.truncate {
        json["truncate"] = json!(false);
    }
    json
}

fn llama3_json(llama3: &Llama3) -> Value {
    json!({
        "rope_type": "llama3",
        "factor": llama3.factor,
        "low_freq_factor": llama3.low_freq_factor,
        "high_freq_factor": llama3.high_freq_factor,
        "original_max_position_embeddings": llama3.original_max,
    })
}

/// The llama3 scaling whose frequencies a GGUF file's divisors come to. The largest divisor is the factor; the others
/// are those of Llama 3.1 and what follows it, with the length of the first training tried by powers of two.
fn llama3_of(rope: &RopeConfig) -> Option<Llama3> {
    let RopeScaling::Divisors(divisors) = &rope.scaling else { return None };
    let factor = f64::from(divisors.iter().copied().fold(0.0f32, f32::max));
    let found = rope.frequencies();
    (3..=20).map(|log2| 1usize << log2).find_map(|original_max| {
        let llama3 = Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max };
        let tried = RopeConfig { scaling: RopeScaling::Llama3(llama3), ..rope.clone() }.frequencies();
        let same = |(a, b): (&f32, &f32)| (a - b).abs() <= SAME_FREQUENCY * b.abs();
        tried.inv_freq.iter().zip(&found.inv_freq).all(same).then_some(llama3)
    })
}
