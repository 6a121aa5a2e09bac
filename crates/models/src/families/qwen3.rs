//! Qwen3 (arXiv 2505.09388): Llama with a norm on each head of q and k.

use super::decoder::{Differences, build};
use crate::Family;

/// The family.
pub const FAMILY: Family = Family {
    name: "Qwen3",
    model_types: &["qwen3"],
    build: |config, names| {
        let bias = config.attention_bias;
        build(config, names, Differences { qk_norm: true, qkv_bias: bias, o_bias: bias })
    },
};
