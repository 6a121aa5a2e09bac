//! gpt-oss-20b.

use serde_json::json;

use super::super::{
    fill::Values,
    gguf::Meta,
    param::{Decoder, Kind, Param, RouterBits},
};
use super::{Cut, Spec, Vocab, ffn_norm};

const SPECIAL: &[(usize, &str)] = &[
    (199_998, "<|startoftext|>"),
    (199_999, "<|endoftext|>"),
    (200_002, "<|return|>"),
    (200_005, "<|channel|>"),
    (200_006, "<|start|>"),
    (200_007, "<|end|>"),
    (200_008, "<|message|>"),
];

pub(super) fn spec(cut: Cut) -> Spec {
    let (layers, vocab) = (cut.layers(24), cut.vocab(201_088));
    let decoder = Decoder {
        hidden: 2880,
        layers,
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        vocab,
        tied: false,
        qk_norm: false,
        bias: true,
    };
    let ((experts, used), intermediate) = (cut.experts(32, 4), 2880);
    let layer_types: Vec<_> = (0..layers)
        .map(|i| if i.is_multiple_of(2) { "sliding_attention" } else { "full_attention" })
        .collect();
    Spec {
        name: "gpt-oss-20b",
        config: json!({
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": true,
            "attention_dropout": 0.0,
            "eos_token_id": 200_002.min(vocab - 1),
            "experts_per_token": used,
            "head_dim": decoder.head_dim,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden,
            "initial_context_length": 4096,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "layer_types": layer_types,
            "max_position_embeddings": 131_072,
            "model_type": "gpt_oss",
            "num_attention_heads": decoder.heads,
            "num_experts_per_tok": used,
            "num_hidden_layers": layers,
            "num_key_value_heads": decoder.kv_heads,
            "num_local_experts": experts,
            "output_router_logits": false,
            "pad_token_id": 199_999.min(vocab - 1),
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": false,
            },
            "rope_theta": 150_000,
            "router_aux_loss_coef": 0.9,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.55.0.dev0",
            "use_cache": true,
            "vocab_size": vocab,
        }),
        architecture: "gpt-oss",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(131_072)),
            ("embedding_length", Meta::U32(2880)),
            ("feed_forward_length", Meta::U32(intermediate as u32)),
            ("attention.head_count", Meta::U32(64)),
            ("attention.head_count_kv", Meta::U32(8)),
            ("attention.key_length", Meta::U32(64)),
            ("attention.value_length", Meta::U32(64)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("attention.sliding_window", Meta::U32(128)),
            ("rope.freq_base", Meta::F32(150_000.0)),
            ("rope.scaling.type", Meta::text("yarn")),
            ("rope.scaling.factor", Meta::F32(32.0)),
            ("rope.scaling.original_context_length", Meta::U32(4096)),
            ("expert_count", Meta::U32(experts as u32)),
            ("expert_used_count", Meta::U32(used as u32)),
            ("expert_feed_forward_length", Meta::U32(intermediate as u32)),
        ],
        params: decoder.params(|layer, params| feed_forward(layer, &decoder, experts, intermediate, params)),
        vocab: Vocab {
            size: vocab,
            pre: "gpt-4o",
            bos: 199_998,
            eos: 200_002,
            add_bos: false,
            special: SPECIAL,
        },
    }
}

/// Attention sinks, router and experts. Safetensors files have gate and up in one tensor, row by row in turn;
/// GGUF has two.
fn feed_forward(
    layer: usize,
    decoder: &Decoder,
    experts: usize,
    intermediate: usize,
    params: &mut Vec<Param>,
) {
    let hidden = decoder.hidden;
    let (hf, gguf) = (format!("model.layers.{layer}"), format!("blk.{layer}"));
    let sinks = Kind::Plain { values: Values::Normal(1.0), f32: false };
    params.push(Param::new(
        format!("{hf}.self_attn.sinks"),
        format!("{gguf}.attn_sinks.weight"),
        &[decoder.heads],
        sinks,
    ));
    params.push(ffn_norm(layer, hidden, "post_attention_norm"));
    params.push(Param::new(
        format!("{hf}.mlp.router.weight"),
        format!("{gguf}.ffn_gate_inp.weight"),
        &[experts, hidden],
        Kind::Router { mlx: RouterBits::Dense },
    ));
    params.push(Param::bias(
        format!("{hf}.mlp.router.bias"),
        format!("{gguf}.ffn_gate_inp.bias"),
        &[experts],
    ));
    let name = |hf_name: &str| match hf_name {
        "" => String::new(),
        name => format!("{hf}.mlp.experts.{name}"),
    };
    let name_gguf = |gguf_name: &str, what: &str| match gguf_name {
        "" => String::new(),
        name => format!("{gguf}.{name}.{what}"),
    };
    for (hf_name, gguf_name, rows, k) in [
        ("gate_up_proj", "", 2 * intermediate, hidden),
        ("", "ffn_gate_exps", intermediate, hidden),
        ("", "ffn_up_exps", intermediate, hidden),
        ("down_proj", "ffn_down_exps", hidden, intermediate),
    ] {
        let weight = name_gguf(gguf_name, "weight");
        params.push(Param::new(name(hf_name), weight, &[experts, rows, k], Kind::MxFp4));
        let bias = if hf_name.is_empty() { String::new() } else { name(&format!("{hf_name}_bias")) };
        params.push(Param::bias(bias, name_gguf(gguf_name, "bias"), &[experts, rows]));
    }
}
