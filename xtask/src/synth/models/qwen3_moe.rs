//! Qwen3-30B-A3B.

use serde_json::json;

use super::super::{
    gguf::Meta,
    param::{Decoder, Kind, Param, RouterBits},
};
use super::{Cut, Spec, Vocab, ffn_norm, qwen3::SPECIAL};

pub(super) fn spec(cut: Cut) -> Spec {
    let (layers, vocab) = (cut.layers(48), cut.vocab(151_936));
    let decoder = Decoder {
        hidden: 2048,
        layers,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        vocab,
        tied: false,
        qk_norm: true,
        bias: false,
    };
    let ((experts, used), intermediate) = (cut.experts(128, 8), 768);
    let feed_forward = |layer: usize, params: &mut Vec<Param>| {
        let (hf, gguf) = (format!("model.layers.{layer}.mlp"), format!("blk.{layer}"));
        params.push(ffn_norm(layer, decoder.hidden, "ffn_norm"));
        params.push(Param::new(
            format!("{hf}.gate.weight"),
            format!("{gguf}.ffn_gate_inp.weight"),
            &[experts, decoder.hidden],
            Kind::Router { mlx: RouterBits::Fixed(8) },
        ));
        for (module, name, rows, k) in [
            ("gate_proj", "ffn_gate_exps", intermediate, decoder.hidden),
            ("up_proj", "ffn_up_exps", intermediate, decoder.hidden),
            ("down_proj", "ffn_down_exps", decoder.hidden, intermediate),
        ] {
            let each = format!("{hf}.experts.{{e}}.{module}.weight");
            let param = Param::matrix(each, format!("{gguf}.{name}.weight"), &[experts, rows, k]);
            params.push(param.mlx(format!("{hf}.switch_mlp.{module}.weight")));
        }
    };
    Spec {
        name: "qwen3-30b-a3b",
        config: json!({
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": 151_643.min(vocab - 1),
            "decoder_sparse_step": 1,
            "eos_token_id": 151_645.min(vocab - 1),
            "head_dim": decoder.head_dim,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden,
            "initializer_range": 0.02,
            "intermediate_size": 6144,
            "max_position_embeddings": 40_960,
            "max_window_layers": layers,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": intermediate,
            "norm_topk_prob": true,
            "num_attention_heads": decoder.heads,
            "num_experts": experts,
            "num_experts_per_tok": used,
            "num_hidden_layers": layers,
            "num_key_value_heads": decoder.kv_heads,
            "output_router_logits": false,
            "rms_norm_eps": 1e-6,
            "rope_scaling": null,
            "rope_theta": 1_000_000.0,
            "router_aux_loss_coef": 0.001,
            "sliding_window": null,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0",
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": vocab,
        }),
        architecture: "qwen3moe",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(40_960)),
            ("embedding_length", Meta::U32(2048)),
            ("feed_forward_length", Meta::U32(6144)),
            ("attention.head_count", Meta::U32(32)),
            ("attention.head_count_kv", Meta::U32(4)),
            ("attention.key_length", Meta::U32(128)),
            ("attention.value_length", Meta::U32(128)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-6)),
            ("rope.freq_base", Meta::F32(1e6)),
            ("expert_count", Meta::U32(experts as u32)),
            ("expert_used_count", Meta::U32(used as u32)),
            ("expert_feed_forward_length", Meta::U32(intermediate as u32)),
        ],
        params: decoder.params(feed_forward),
        vocab: Vocab {
            size: vocab,
            pre: "qwen2",
            bos: 151_643,
            eos: 151_645,
            add_bos: false,
            special: SPECIAL,
        },
    }
}
