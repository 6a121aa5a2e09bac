//! Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases on q, k and v.

use super::decoder::{Differences, build};
use crate::Family;

/// The family.
pub const FAMILY: Family = Family {
    name: "Qwen2",
    model_types: &["qwen2"],
    build: |config, names| build(config, names, Differences { qkv_bias: true, ..Default::default() }),
};
