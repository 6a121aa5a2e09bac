//! The parameters of a model, named as each kind of checkpoint names them.

use super::fill::Values;

/// What a parameter is, which decides how it is stored and how large its numbers are.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// `[.., rows, k]`, multiplied with activations: the first to be quantized. Its numbers have the root mean
    /// square `gain / sqrt(k)`, so that inputs of order 1 give outputs of order `gain`.
    Matrix {
        /// See above.
        gain: f32,
    },
    /// The matrix that scores experts. GGUF keeps it in f32; MLX quantizes it to so many bits, or not at all.
    Router {
        /// Bits in an MLX checkpoint; the asked ones if `Asked`.
        mlx: RouterBits,
    },
    /// Experts that are published in MXFP4 (gpt-oss): `NAME_blocks` and `NAME_scales`.
    MxFp4,
    /// Never quantized. In f32 in GGUF; elsewhere in the 16-bit type of the checkpoint, or in f32 if so marked.
    Plain {
        /// Its numbers.
        values: Values,
        /// Whether safetensors files have it in f32 too.
        f32: bool,
    },
    /// These numbers, in f32.
    Literal(Vec<f32>),
}

/// How MLX stores a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouterBits {
    /// As any other matrix.
    Asked,
    /// With so many bits and groups of 64, noted in the configuration.
    Fixed(u8),
    /// Not quantized.
    Dense,
}

/// A parameter.
#[derive(Clone, Debug)]
pub(super) struct Param {
    /// Its name in a Hugging Face checkpoint. `{e}` is the number of an expert: one tensor for each then. Empty
    /// where such a checkpoint has no such tensor; likewise below.
    pub(super) hf: String,
    /// Its name in an MLX checkpoint.
    pub(super) mlx: String,
    /// Its name in GGUF.
    pub(super) gguf: String,
    /// Outermost dimension first; of stacked experts, the experts.
    pub(super) shape: Vec<usize>,
    /// Its shape in MLX's checkpoints, if another.
    pub(super) mlx_shape: Option<Vec<usize>>,
    /// Its shape in GGUF, outermost dimension first, if another.
    pub(super) gguf_shape: Option<Vec<usize>>,
    /// What it is.
    pub(super) kind: Kind,
}

impl Param {
    /// A parameter whose name in MLX is that of Hugging Face.
    pub(super) fn new(hf: impl Into<String>, gguf: impl Into<String>, shape: &[usize], kind: Kind) -> Self {
        let (hf, gguf) = (hf.into(), gguf.into());
        Param { mlx: hf.clone(), hf, gguf, shape: shape.to_vec(), mlx_shape: None, gguf_shape: None, kind }
    }

    /// A matrix with a gain of 1.
    pub(super) fn matrix(hf: impl Into<String>, gguf: impl Into<String>, shape: &[usize]) -> Self {
        Param::new(hf, gguf, shape, Kind::Matrix { gain: 1.0 })
    }

    /// The weight of a norm: around 1.
    pub(super) fn norm(hf: impl Into<String>, gguf: impl Into<String>, width: usize) -> Self {
        Param::new(hf, gguf, &[width], Kind::Plain { values: Values::Uniform(0.9, 1.1), f32: false })
    }

    /// A bias: around 0.
    pub(super) fn bias(hf: impl Into<String>, gguf: impl Into<String>, shape: &[usize]) -> Self {
        Param::new(hf, gguf, shape, Kind::Plain { values: Values::Normal(0.02), f32: false })
    }

    /// The same with another name in MLX's checkpoints.
    pub(super) fn mlx(mut self, name: impl Into<String>) -> Self {
        self.mlx = name.into();
        self
    }

    /// Numbers of the parameter.
    pub(super) fn count(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// The attention and the ends that all decoders here share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    /// Width of the residual stream.
    pub(super) hidden: usize,
    /// Layers.
    pub(super) layers: usize,
    /// Heads of queries.
    pub(super) heads: usize,
    /// Heads of keys and values.
    pub(super) kv_heads: usize,
    /// Width of a head.
    pub(super) head_dim: usize,
    /// Rows of the embedding.
    pub(super) vocab: usize,
    /// Whether the output matrix is the embedding.
    pub(super) tied: bool,
    /// Whether queries and keys are normalised, head by head.
    pub(super) qk_norm: bool,
    /// Whether the four projections have biases.
    pub(super) bias: bool,
}

impl Decoder {
    /// All parameters but those that `feed_forward` adds for a layer.
    pub(super) fn params(&self, feed_forward: impl Fn(usize, &mut Vec<Param>)) -> Vec<Param> {
        let mut params =
            vec![Param::matrix("model.embed_tokens.weight", "token_embd.weight", &[self.vocab, self.hidden])];
        for layer in 0..self.layers {
            let (hf, gguf) = (format!("model.layers.{layer}"), format!("blk.{layer}"));
            params.push(Param::norm(
                format!("{hf}.input_layernorm.weight"),
                format!("{gguf}.attn_norm.weight"),
                self.hidden,
            ));
            self.attention(&format!("{hf}.self_attn"), &gguf, &mut params);
            feed_forward(layer, &mut params);
        }
        params.push(Param::norm("model.norm.weight", "output_norm.weight", self.hidden));
        if !self.tied {
            params.push(output("lm_head.weight", self.vocab, self.hidden));
        }
        params
    }

    /// The projections of an attention whose module is `hf`.
    pub(super) fn attention(&self, hf: &str, gguf: &str, params: &mut Vec<Param>) {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let modules = [
            ("q_proj", "attn_q", q, self.hidden),
            ("k_proj", "attn_k", kv, self.hidden),
            ("v_proj", "attn_v", kv, self.hidden),
            ("o_proj", "attn_output", self.hidden, q),
        ];
        for (module, name, rows, k) in modules {
            params.push(Param::matrix(
                format!("{hf}.{module}.weight"),
                format!("{gguf}.{name}.weight"),
                &[rows, k],
            ));
            if self.bias {
                params.push(Param::bias(
                    format!("{hf}.{module}.bias"),
                    format!("{gguf}.{name}.bias"),
                    &[rows],
                ));
            }
        }
        if self.qk_norm {
            for (module, name) in [("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm")] {
                params.push(Param::norm(
                    format!("{hf}.{module}.weight"),
                    format!("{gguf}.{name}.weight"),
                    self.head_dim,
                ));
            }
        }
    }
}

/// An output matrix of its own. Its gain of 2 spreads the logits, as a trained model's are.
pub(super) fn output(hf: &str, vocab: usize, hidden: usize) -> Param {
    Param::new(hf, "output.weight", &[vocab, hidden], Kind::Matrix { gain: 2.0 })
}
