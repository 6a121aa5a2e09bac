//! From a Hugging Face name to an expression over the tensors of a checkpoint in its own dialect.

use portolan_weights::{Checkpoint, Dialect, Expr};

use crate::{ModelConfig, ModelError, Result};

/// Names the weights of one checkpoint.
pub struct Names<'a> {
    checkpoint: &'a Checkpoint,
    /// Prefix of the decoder's names in an HF checkpoint: `model.`, or none where a bare decoder was saved.
    prefix: &'static str,
    /// Heads whose q rows and k rows a GGUF file has reordered; none where it has not.
    permuted: Option<(usize, usize)>,
    tied: bool,
}

/// The name in a checkpoint of Hugging Face's dialect, or MLX's, of a graph's weight: `layers.3.mlp.up_proj` is
/// `model.layers.3.mlp.up_proj.weight`, `lm_head` is `lm_head.weight`, and `layers.3.self_attn.q_proj.bias` has its
/// parameter in its name.
pub fn hf_name(weight: &str) -> String {
    let prefix = if weight == "lm_head" || weight.starts_with("lm_head.") { "" } else { "model." };
    let parameter = if weight.ends_with(".bias") { "" } else { ".weight" };
    format!("{prefix}{weight}{parameter}")
}

/// GGUF's name of a module: the last parts of HF's name, then GGUF's.
const GGUF_MODULES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Architectures whose q and k rows llama.cpp's converter reorders for interleaved rope.
const GGUF_PERMUTED: &[&str] = &["llama", "mistral", "smollm3"];

impl<'a> Names<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, config: &ModelConfig) -> Result<Self> {
        let gguf = checkpoint.dialect == Dialect::Gguf;
        let bare = !gguf
            && !checkpoint.contains("model.embed_tokens.weight")
            && checkpoint.contains("embed_tokens.weight");
        let permuted = gguf && GGUF_PERMUTED.contains(&config.model_type.as_str());
        Ok(Names {
            checkpoint,
            prefix: if bare { "" } else { "model." },
            permuted: permuted.then_some((config.heads, config.kv_heads)),
            tied: config.tied,
        })
    }

    /// The name in the file of a parameter (`weight` or `bias`) of a module named as in HF's decoder, without the
    /// `model.` in front: `embed_tokens`, `norm`, `layers.3.mlp.up_proj`, `lm_head`.
    pub fn file_name(&self, module: &str, parameter: &str) -> String {
        if self.checkpoint.dialect != Dialect::Gguf {
            let prefix = if module == "lm_head" { "" } else { self.prefix };
            return format!("{prefix}{module}.{parameter}");
        }
        let name = match module {
            "embed_tokens" => "token_embd".to_owned(),
            "norm" => "output_norm".to_owned(),
            "lm_head" => "output".to_owned(),
            _ => {
                let in_layer = module.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
                let known = in_layer.and_then(|(layer, rest)| {
                    let (_, gguf) = GGUF_MODULES.iter().find(|(hf, _)| *hf == rest)?;
                    Some(format!("blk.{layer}.{gguf}"))
                });
                known.unwrap_or_else(|| module.to_owned())
            }
        };
        format!("{name}.{parameter}")
    }

    /// What the names in the file of all tensors of a layer begin with, up to the layer's number.
    pub(crate) fn layer_prefix(&self) -> &'static str {
        match (self.checkpoint.dialect, self.prefix) {
            (Dialect::Gguf, _) => "blk.",
            (_, "") => "layers.",
            _ => "model.layers.",
        }
    }

    /// A matrix, in whatever encoding the file has it.
    pub fn weight(&self, module: &str) -> Expr {
        self.reordered(module, Expr::source(self.file_name(module, "weight")))
    }

    /// A bias, in f32.
    pub fn bias(&self, module: &str) -> Expr {
        self.reordered(module, Expr::source(self.file_name(module, "bias"))).f32()
    }

    /// A norm's weight, in f32.
    pub fn norm(&self, module: &str) -> Expr {
        Expr::source(self.file_name(module, "weight")).f32()
    }

    /// Whether a module has a bias in the file.
    pub fn has_bias(&self, module: &str) -> bool {
        self.checkpoint.contains(&self.file_name(module, "bias"))
    }

    /// The output matrix: `lm_head`, or the embedding where the two are tied.
    pub fn output(&self) -> Result<Expr> {
        if self.checkpoint.contains(&self.file_name("lm_head", "weight")) {
            return Ok(self.weight("lm_head"));
        }
        // A writer that drops the twin of a shared tensor records it in the header's metadata.
        let alias = self.checkpoint.metadata.get("lm_head.weight");
        let aliased = alias.is_some_and(|a| *a == self.file_name("embed_tokens", "weight"));
        if self.tied || aliased || self.checkpoint.dialect == Dialect::Gguf {
            return Ok(self.weight("embed_tokens"));
        }
        Err(ModelError::NoOutputMatrix { path: self.checkpoint.path.clone() })
    }

    /// The shape of a tensor, where the checkpoint has it.
    pub fn shape(&self, module: &str) -> Option<&[usize]> {
        self.checkpoint.get(&self.file_name(module, "weight")).map(|t| t.shape.as_slice())
    }

    fn reordered(&self, module: &str, expr: Expr) -> Expr {
        let heads = match self.permuted {
            Some((heads, _)) if module.ends_with("self_attn.q_proj") => heads,
            Some((_, kv_heads)) if module.ends_with("self_attn.k_proj") => kv_heads,
            _ => return expr,
        };
        Expr::UnpermuteHeads { of: Box::new(expr), heads }
    }
}
