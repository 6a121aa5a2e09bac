//! A model's configuration, from `config.json` in either spelling of rope, or from GGUF metadata.

mod fields;
mod gguf;
mod json;
mod rope;
mod write;

use std::path::PathBuf;

use portolan_kernels::Activation;
use portolan_weights::{Checkpoint, ConfigSource};

pub use rope::{RopeConfig, RopeScaling};

use crate::{ModelError, Names, Result};

/// No real model comes near these; a file that says so is broken or hostile, and would ask for absurd memory.
pub(crate) const MOST: usize = 1 << 24;
const MOST_LAYERS: usize = 4096;

/// What a decoder of the families here is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The checkpoint, for messages.
    pub path: PathBuf,
    /// `model_type`, or GGUF's architecture.
    pub model_type: String,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Columns of the MLP.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows of the embedding, where the configuration says so.
    pub vocab: Option<usize>,
    /// Positions that the model was made for.
    pub context: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// The MLP's elementwise function.
    pub activation: Activation,
    /// Rope.
    pub rope: RopeConfig,
    /// The embedding is the output matrix.
    pub tied: bool,
    /// q, k, v and o have biases.
    pub attention_bias: bool,
    /// The MLP's matrices have biases.
    pub mlp_bias: bool,
    /// By layer: how many positions a row sees; none for all.
    pub windows: Vec<Option<usize>>,
    /// By layer: whether q and k are rotated.
    pub rotated: Vec<bool>,
}

/// `model_type` of config.json, or GGUF's `general.architecture`.
pub fn model_type(checkpoint: &Checkpoint) -> Result<&str> {
    let path = || checkpoint.path.clone();
    let (field, value, text) = match &checkpoint.config {
        ConfigSource::Json(value) => {
            let value = value.get("model_type").filter(|v| !v.is_null());
            ("model_type", value.map(ToString::to_string), value.and_then(|v| v.as_str()))
        }
        ConfigSource::Gguf(metadata) => {
            let value = metadata.get("general.architecture");
            ("general.architecture", value.map(ToString::to_string), metadata.architecture())
        }
        ConfigSource::None => return Err(ModelError::NoConfig { path: path() }),
    };
    let field = field.to_owned();
    match (text, value) {
        (Some(text), _) => Ok(text),
        (None, None) => Err(ModelError::MissingField { path: path(), field }),
        (None, Some(found)) => {
            let expected = "a text, the name of a family of models".to_owned();
            Err(ModelError::BadField { path: path(), field, found, expected })
        }
    }
}

/// An error under the name that the field has in this checkpoint.
pub(crate) fn in_words_of(checkpoint: &Checkpoint, error: ModelError) -> ModelError {
    match (&checkpoint.config, error) {
        (ConfigSource::Gguf(metadata), ModelError::BadField { path, field, found, expected }) => {
            let arch = metadata.architecture().unwrap_or_default();
            let field = gguf::key_of(&field, arch).unwrap_or(field);
            ModelError::BadField { path, field, found, expected }
        }
        (_, error) => error,
    }
}

/// Layers behind the last that the configuration says are there to predict further tokens; no other family of today's
/// knows them, so they are only let pass.
fn extra_layers(checkpoint: &Checkpoint) -> usize {
    let extra = match &checkpoint.config {
        ConfigSource::Json(value) => value.get("num_nextn_predict_layers").and_then(|n| n.as_u64()),
        ConfigSource::Gguf(metadata) => {
            metadata.architecture().and_then(|arch| metadata.u64(&format!("{arch}.nextn_predict_layers")))
        }
        ConfigSource::None => None,
    };
    extra.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

impl ModelConfig {
    /// Reads the checkpoint's configuration.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let config = match &checkpoint.config {
            ConfigSource::Json(value) => json::read(&checkpoint.path, value)?,
            ConfigSource::Gguf(metadata) => gguf::read(checkpoint, metadata)?,
            ConfigSource::None => return Err(ModelError::NoConfig { path: checkpoint.path.clone() }),
        };
        config.check().map_err(|error| in_words_of(checkpoint, error))?;
        Ok(config)
    }

    /// The error of a field.
    pub(crate) fn bad(&self, field: &str, found: impl ToString, expected: impl ToString) -> ModelError {
        ModelError::BadField {
            path: self.path.clone(),
            field: field.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Refuses a configuration with fewer layers than the weights have: the model would run, and talk nonsense. That it
    /// has more is found when their tensors are missed.
    pub(crate) fn check_layers(&self, checkpoint: &Checkpoint, names: &Names<'_>) -> Result<()> {
        let first_absent = self.layers.saturating_add(extra_layers(checkpoint));
        let prefix = names.layer_prefix();
        let layer = |name: &str| name.strip_prefix(prefix)?.split_once('.')?.0.parse::<usize>().ok();
        let beyond = checkpoint.tensors.keys().filter(|name| layer(name).is_some_and(|n| n >= first_absent));
        match beyond.max_by_key(|name| layer(name)) {
            None => Ok(()),
            Some(name) => {
                let expected = format!("as many as the weights have, which hold the tensor '{name}'");
                Err(in_words_of(checkpoint, self.bad("num_hidden_layers", self.layers, expected)))
            }
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden, MOST),
            ("intermediate_size", self.intermediate, MOST),
            ("num_hidden_layers", self.layers, MOST_LAYERS),
            ("num_attention_heads", self.heads, MOST),
            ("num_key_value_heads", self.kv_heads, MOST),
            ("head_dim", self.head_dim, MOST),
            ("max_position_embeddings", self.context, 1 << 30),
            ("vocab_size", self.vocab.unwrap_or(1), MOST),
        ];
        for (field, value, most) in sizes {
            if value == 0 || value > most {
                return Err(self.bad(field, value, format!("1 to {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads ({})", self.heads);
            return Err(self.bad("num_key_value_heads", self.kv_heads, expected));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return Err(self.bad("rms_norm_eps", self.norm_eps, "a number that is not negative"));
        }
        let rot = self.rope.rot;
        if rot == 0 || !rot.is_multiple_of(2) || rot > self.head_dim {
            let expected = format!(
                "a factor that makes an even number of elements, from 2 to head_dim ({}, which is hidden_size / \
                 num_attention_heads where it is not given)",
                self.head_dim
            );
            return Err(self.bad(
                "partial_rotary_factor",
                format!("one that makes {rot} elements"),
                expected,
            ));
        }
        self.rope.check(self)
    }
}
