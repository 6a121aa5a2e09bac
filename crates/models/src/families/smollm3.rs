//! SmolLM3: Llama with layers that do not rotate q and k (NoPE).

use super::decoder::{Differences, build};
use crate::Family;

/// The family.
pub const FAMILY: Family = Family {
    name: "SmolLM3",
    model_types: &["smollm3"],
    build: |config, names| {
        let bias = config.attention_bias;
        build(config, names, Differences { qkv_bias: bias, o_bias: bias, ..Default::default() })
    },
};
