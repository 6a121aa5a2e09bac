//! The pre-norm decoder of Llama (arXiv 2302.13971), with the few things in which its kin differ.

use portolan_kernels::{CacheKind, Graph, GraphBuilder, RopeStyle, ValueId, WeightId};

use crate::{ModelConfig, Names, Result, config::MOST};

/// In what a family differs from Llama.
#[derive(Clone, Copy, Debug, Default)]
pub struct Differences {
    /// q and k are normalised, head by head, before rope.
    pub qk_norm: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The attention's output has a bias.
    pub o_bias: bool,
}

/// Builds the graph of a decoder.
pub fn build(config: &ModelConfig, names: &Names<'_>, differences: Differences) -> Result<Graph> {
    let mut decoder = Decoder { config, names, differences, b: GraphBuilder::new() };
    let vocab = decoder.vocab()?;
    decoder.b.scope("embed_tokens");
    let embedding = decoder.b.weight("embed_tokens", &[vocab, config.hidden], names.weight("embed_tokens"));
    let mut x = decoder.b.embed(embedding);
    let table = decoder.b.rope_table(config.rope.frequencies());
    // What a block adds to the residual is added by the norm of the next one.
    let mut delta = None;
    for layer in 0..config.layers {
        (x, delta) = decoder.layer(layer, x, delta, table);
    }
    decoder.b.scope("norm");
    if let Some(delta) = delta {
        x = decoder.b.add(x, delta);
    }
    // Only the rows that want logits go on.
    let selected = decoder.b.select_rows(x);
    let norm = decoder.norm("norm", config.hidden);
    let normed = decoder.b.rms_norm(selected, norm, config.norm_eps);
    decoder.b.scope("lm_head");
    let head = decoder.b.weight("lm_head", &[vocab, config.hidden], names.output()?);
    let logits = decoder.b.matmul(normed, head, None);
    Ok(decoder.b.finish(logits, config.context))
}

struct Decoder<'a> {
    config: &'a ModelConfig,
    names: &'a Names<'a>,
    differences: Differences,
    b: GraphBuilder,
}

impl Decoder<'_> {
    /// Rows of the embedding: as in the file, which must not be fewer than the configuration says.
    fn vocab(&self) -> Result<usize> {
        let in_file = self.names.shape("embed_tokens").and_then(|s| s.first().copied());
        if let Some(rows) = in_file
            && !(1..=MOST).contains(&rows)
        {
            let found = format!("given by {} of {rows} rows", self.names.file_name("embed_tokens", "weight"));
            return Err(self.config.bad("vocab_size", found, format!("1 to {MOST}")));
        }
        match (in_file, self.config.vocab) {
            // A padded table is common; a short one would be read past its end.
            (Some(rows), Some(vocab)) if rows < vocab => {
                Err(self.config.bad("vocab_size", vocab, format!("at most the embedding's {rows} rows")))
            }
            (Some(rows), _) => Ok(rows),
            (None, Some(vocab)) => Ok(vocab),
            (None, None) => Err(self.config.bad("vocab_size", "missing", "the size of the vocabulary")),
        }
    }

    fn norm(&mut self, module: &str, width: usize) -> WeightId {
        self.b.weight(module, &[width], self.names.norm(module))
    }

    fn linear(&mut self, x: ValueId, module: &str, n: usize, bias: bool) -> ValueId {
        let (weight, bias) = self.linear_weights(module, [n, self.b.cols(x)], bias);
        self.b.matmul(x, weight, bias)
    }

    /// The matrix of a linear module and its bias, if it has one.
    fn linear_weights(
        &mut self,
        module: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> (WeightId, Option<WeightId>) {
        let weight = self.b.weight(module, &shape, self.names.weight(module));
        let name = format!("{module}.bias");
        (weight, bias.then(|| self.b.weight(name, &shape[..1], self.names.bias(module))))
    }

    fn layer(
        &mut self,
        layer: usize,
        x: ValueId,
        delta: Option<ValueId>,
        table: ValueId,
    ) -> (ValueId, Option<ValueId>) {
        let eps = self.config.norm_eps;
        let path = format!("layers.{layer}");
        self.b.scope(format!("{path}.self_attn"));
        let weight = self.norm(&format!("{path}.input_layernorm"), self.config.hidden);
        let (x, normed) = match delta {
            Some(delta) => self.b.add_rms_norm(x, delta, weight, eps),
            None => (x, self.b.rms_norm(x, weight, eps)),
        };
        let attended = self.attention(layer, normed, table);
        self.b.scope(format!("{path}.mlp"));
        let weight = self.norm(&format!("{path}.post_attention_layernorm"), self.config.hidden);
        let (x, normed) = self.b.add_rms_norm(x, attended, weight, eps);
        (x, Some(self.mlp(&path, normed)))
    }

    fn attention(&mut self, layer: usize, x: ValueId, table: ValueId) -> ValueId {
        let ModelConfig { heads, kv_heads, head_dim, norm_eps, .. } = *self.config;
        let Differences { qk_norm, qkv_bias, o_bias } = self.differences;
        let path = format!("layers.{layer}.self_attn");
        let width = self.b.cols(x);
        let [(wq, bq), (wk, bk), (wv, bv)] =
            [("q", heads), ("k", kv_heads), ("v", kv_heads)].map(|(name, heads)| {
                self.linear_weights(&format!("{path}.{name}_proj"), [heads * head_dim, width], qkv_bias)
            });
        let biases = match (bq, bk, bv) {
            (Some(q), Some(k), Some(v)) => Some([q, k, v]),
            _ => None,
        };
        let [mut q, mut k, v] = self.b.qkv(x, [wq, wk, wv], biases);
        let norms =
            qk_norm.then(|| ["q_norm", "k_norm"].map(|name| self.norm(&format!("{path}.{name}"), head_dim)));
        let window = self.config.windows[layer];
        let kind = CacheKind::Paged { kv_heads, k_dim: head_dim, v_dim: head_dim, window };
        let cache = self.b.cache(format!("layers.{layer}"), kind);
        let style = RopeStyle::Halves;
        match (norms, self.config.rotated[layer]) {
            (Some(norms), true) => {
                q = self.b.norm_rope_append([q, k, v, table], norms, norm_eps, cache, heads, style);
            }
            (None, true) => q = self.b.rope_append([q, k, v, table], cache, heads, style),
            (norms, false) => {
                if let Some([of_q, of_k]) = norms {
                    (q, k) = (self.b.rms_norm(q, of_q, norm_eps), self.b.rms_norm(k, of_k, norm_eps));
                }
                self.b.cache_append(k, v, cache);
            }
        }
        let scale = 1.0 / (head_dim as f32).sqrt();
        let attended = self.b.attention(q, cache, heads, scale);
        self.linear(attended, &format!("{path}.o_proj"), self.config.hidden, o_bias)
    }

    fn mlp(&mut self, path: &str, x: ValueId) -> ValueId {
        let ModelConfig { hidden, intermediate, activation, mlp_bias, .. } = *self.config;
        let [gate, up, down] = ["gate", "up", "down"].map(|m| format!("{path}.mlp.{m}_proj"));
        let inner = if mlp_bias {
            let gated = self.linear(x, &gate, intermediate, true);
            let gated = self.b.activate(gated, activation);
            let upped = self.linear(x, &up, intermediate, true);
            self.b.mul(gated, upped)
        } else {
            let shape = [intermediate, hidden];
            let gate = self.b.weight(gate.as_str(), &shape, self.names.weight(&gate));
            let up = self.b.weight(up.as_str(), &shape, self.names.weight(&up));
            self.b.gate_up(x, gate, up, activation)
        };
        self.linear(inner, &down, hidden, mlp_bias)
    }
}
