//! The models: configuration, metadata and parameters, as published.

mod gpt_oss;
mod llama;
mod mixtral;
mod nemotron_h;
mod qwen3;
mod qwen3_moe;

use serde_json::Value;

use super::gguf::Meta;
use super::param::{Kind, Param};

/// A model whose shapes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// Qwen/Qwen3-0.6B.
    #[value(name = "qwen3-0.6b")]
    Qwen3,
    /// meta-llama/Llama-3.1-8B-Instruct.
    #[value(name = "llama-3.1-8b")]
    Llama31,
    /// Qwen/Qwen3-30B-A3B.
    #[value(name = "qwen3-30b-a3b")]
    Qwen3Moe,
    /// mistralai/Mixtral-8x7B-v0.1.
    #[value(name = "mixtral-8x7b")]
    Mixtral,
    /// openai/gpt-oss-20b.
    #[value(name = "gpt-oss-20b")]
    GptOss,
    /// nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.
    #[value(name = "nemotron-3-nano-30b-a3b")]
    NemotronH,
}

/// Departures from the published shape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// Only the first layers.
    pub(super) layers: Option<usize>,
    /// Another size of the vocabulary.
    pub(super) vocab: Option<usize>,
    /// Only so many experts.
    pub(super) experts: Option<usize>,
}

impl Cut {
    fn layers(self, published: usize) -> usize {
        self.layers.unwrap_or(published).min(published)
    }

    fn vocab(self, published: usize) -> usize {
        self.vocab.unwrap_or(published)
    }

    /// Experts, and how many of them a token goes to.
    fn experts(self, published: usize, used: usize) -> (usize, usize) {
        let experts = self.experts.unwrap_or(published).min(published);
        (experts, used.min(experts))
    }
}

/// A model.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    /// As the command names it.
    pub(super) name: &'static str,
    /// `config.json` without a word on quantization.
    pub(super) config: Value,
    /// GGUF's `general.architecture`.
    pub(super) architecture: &'static str,
    /// GGUF's keys below the architecture.
    pub(super) metadata: Vec<(&'static str, Meta)>,
    /// All parameters.
    pub(super) params: Vec<Param>,
    /// What GGUF says of the vocabulary.
    pub(super) vocab: Vocab,
}

impl Spec {
    /// Numbers in the model: the parameters of its Hugging Face checkpoint.
    pub(super) fn parameters(&self) -> u64 {
        self.params.iter().filter(|p| !p.hf.is_empty()).map(Param::count).sum()
    }

    /// Whether experts are published in MXFP4.
    pub(super) fn is_mxfp4(&self) -> bool {
        self.params.iter().any(|p| matches!(p.kind, Kind::MxFp4))
    }
}

/// A vocabulary of the right size. Its texts are made up, but for the special ones.
#[derive(Clone, Debug)]
pub(super) struct Vocab {
    /// Tokens.
    pub(super) size: usize,
    /// `tokenizer.ggml.pre`.
    pub(super) pre: &'static str,
    /// Beginning and end of a text.
    pub(super) bos: usize,
    /// See `bos`.
    pub(super) eos: usize,
    /// Whether a prompt begins with `bos`.
    pub(super) add_bos: bool,
    /// Special tokens.
    pub(super) special: &'static [(usize, &'static str)],
}

/// The model of that name.
pub(super) fn spec(name: Name, cut: Cut) -> Spec {
    match name {
        Name::Qwen3 => qwen3::spec(cut),
        Name::Llama31 => llama::spec(cut),
        Name::Qwen3Moe => qwen3_moe::spec(cut),
        Name::Mixtral => mixtral::spec(cut),
        Name::GptOss => gpt_oss::spec(cut),
        Name::NemotronH => nemotron_h::spec(cut),
    }
}

/// A gated feed-forward as Llama has it: `intermediate` wide, in the module `mlp`, after its norm.
fn gated_mlp(layer: usize, hidden: usize, intermediate: usize, params: &mut Vec<Param>) {
    let (hf, gguf) = (format!("model.layers.{layer}"), format!("blk.{layer}"));
    params.push(ffn_norm(layer, hidden, "ffn_norm"));
    for (module, name, shape) in [
        ("gate_proj", "ffn_gate", [intermediate, hidden]),
        ("up_proj", "ffn_up", [intermediate, hidden]),
        ("down_proj", "ffn_down", [hidden, intermediate]),
    ] {
        params.push(Param::matrix(
            format!("{hf}.mlp.{module}.weight"),
            format!("{gguf}.{name}.weight"),
            &shape,
        ));
    }
}

/// The norm before a feed-forward.
fn ffn_norm(layer: usize, hidden: usize, gguf: &str) -> Param {
    let hf = format!("model.layers.{layer}.post_attention_layernorm.weight");
    Param::norm(hf, format!("blk.{layer}.{gguf}.weight"), hidden)
}
