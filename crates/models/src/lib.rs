//! Model families: from a checkpoint's configuration to a [`Graph`] and a weight expression for each weight.
//!
//! A new family is one file under `families/` and one line in [`FAMILIES`]. A family names its weights as
//! Hugging Face does; [`Names`] turns a name into an expression for the checkpoint's own dialect. Nothing here
//! knows which device will run the graph.
#![forbid(unsafe_code)]

pub mod config;
mod error;
pub mod families;
mod names;

use portolan_kernels::Graph;
use portolan_weights::Checkpoint;

pub use config::{ModelConfig, RopeConfig, RopeScaling};
pub use error::ModelError;
pub use names::{Names, hf_name};

/// The result of a call into this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A family of models.
pub struct Family {
    /// Its name in messages.
    pub name: &'static str,
    /// `model_type` in config.json, and `general.architecture` in GGUF.
    pub model_types: &'static [&'static str],
    /// Builds its graph.
    pub build: fn(&ModelConfig, &Names<'_>) -> Result<Graph>,
}

/// Every family that Portolan runs.
pub const FAMILIES: &[Family] = &[
    families::llama::FAMILY,
    families::mistral::FAMILY,
    families::qwen2::FAMILY,
    families::qwen3::FAMILY,
    families::smollm3::FAMILY,
];

/// A model, ready to be planned for a device.
pub struct Model {
    /// Its family.
    pub family: &'static Family,
    /// Its configuration.
    pub config: ModelConfig,
    /// Its ops.
    pub graph: Graph,
}

impl Model {
    /// Reads the configuration, finds the family and builds the graph. Reads no weights.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        // The family comes first: what another family's configuration lacks is not what is wrong with it.
        let model_type = config::model_type(checkpoint)?;
        let family = FAMILIES.iter().find(|f| f.model_types.contains(&model_type)).ok_or_else(|| {
            ModelError::UnknownFamily {
                path: checkpoint.path.clone(),
                model_type: model_type.to_owned(),
                known: FAMILIES.iter().flat_map(|f| f.model_types).copied().collect::<Vec<_>>().join(", "),
            }
        })?;
        let config = ModelConfig::from_checkpoint(checkpoint)?;
        let names = Names::new(checkpoint, &config)?;
        config.check_layers(checkpoint, &names)?;
        let graph = (family.build)(&config, &names)?;
        Ok(Model { family, config, graph })
    }
}
