//! Mistral (arXiv 2310.06825): Llama with a sliding window.

use super::decoder::{Differences, build};
use crate::Family;

/// The family.
pub const FAMILY: Family = Family {
    name: "Mistral",
    model_types: &["mistral"],
    build: |config, names| build(config, names, Differences::default()),
};
