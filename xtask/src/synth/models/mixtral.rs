//! Mixtral-8x7B-v0.1.

use serde_json::json;

use super::super::{
    gguf::Meta,
    param::{Decoder, Kind, Param, RouterBits},
};
use super::{Cut, Spec, Vocab, ffn_norm};

const SPECIAL: &[(usize, &str)] = &[(0, "<unk>"), (1, "<s>"), (2, "</s>")];

pub(super) fn spec(cut: Cut) -> Spec {
    let (layers, vocab) = (cut.layers(32), cut.vocab(32_000));
    let decoder = Decoder {
        hidden: 4096,
        layers,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab,
        tied: false,
        qk_norm: false,
        bias: false,
    };
    let ((experts, used), intermediate) = (cut.experts(8, 2), 14_336);
    let feed_forward = |layer: usize, params: &mut Vec<Param>| {
        let (hf, gguf) = (format!("model.layers.{layer}.block_sparse_moe"), format!("blk.{layer}"));
        params.push(ffn_norm(layer, decoder.hidden, "ffn_norm"));
        params.push(Param::new(
            format!("{hf}.gate.weight"),
            format!("{gguf}.ffn_gate_inp.weight"),
            &[experts, decoder.hidden],
            Kind::Router { mlx: RouterBits::Asked },
        ));
        for (module, mlx, name, rows, k) in [
            ("w1", "gate_proj", "ffn_gate_exps", intermediate, decoder.hidden),
            ("w3", "up_proj", "ffn_up_exps", intermediate, decoder.hidden),
            ("w2", "down_proj", "ffn_down_exps", decoder.hidden, intermediate),
        ] {
            let each = format!("{hf}.experts.{{e}}.{module}.weight");
            let param = Param::matrix(each, format!("{gguf}.{name}.weight"), &[experts, rows, k]);
            params.push(param.mlx(format!("{hf}.switch_mlp.{mlx}.weight")));
        }
    };
    Spec {
        name: "mixtral-8x7b",
        config: json!({
            "architectures": ["MixtralForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2.min(vocab - 1),
            "hidden_act": "silu",
            "hidden_size": decoder.hidden,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": 32_768,
            "model_type": "mixtral",
            "num_attention_heads": decoder.heads,
            "num_experts_per_tok": used,
            "num_hidden_layers": layers,
            "num_key_value_heads": decoder.kv_heads,
            "num_local_experts": experts,
            "output_router_logits": false,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "router_aux_loss_coef": 0.02,
            "sliding_window": null,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.36.0.dev0",
            "use_cache": true,
            "vocab_size": vocab,
        }),
        architecture: "llama",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(32_768)),
            ("embedding_length", Meta::U32(4096)),
            ("feed_forward_length", Meta::U32(intermediate as u32)),
            ("attention.head_count", Meta::U32(32)),
            ("attention.head_count_kv", Meta::U32(8)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("rope.freq_base", Meta::F32(1e6)),
            ("rope.dimension_count", Meta::U32(128)),
            ("vocab_size", Meta::U32(vocab as u32)),
            ("expert_count", Meta::U32(experts as u32)),
            ("expert_used_count", Meta::U32(used as u32)),
        ],
        params: decoder.params(feed_forward),
        vocab: Vocab { size: vocab, pre: "default", bos: 1, eos: 2, add_bos: true, special: SPECIAL },
    }
}
