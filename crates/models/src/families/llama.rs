//! Llama 2, 3, 3.1 and 3.2, and what follows it to the letter: SmolLM2, TinyLlama, Yi, ...

use super::decoder::{Differences, build};
use crate::Family;

/// The family.
pub const FAMILY: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    build: |config, names| {
        let bias = config.attention_bias;
        build(config, names, Differences { qkv_bias: bias, o_bias: bias, ..Default::default() })
    },
};
