//! Qwen3-0.6B.

use serde_json::json;

use super::super::{gguf::Meta, param::Decoder};
use super::{Cut, Spec, Vocab, gated_mlp};

/// Special tokens that all sizes share.
pub(super) const SPECIAL: &[(usize, &str)] =
    &[(151_643, "<|endoftext|>"), (151_644, "<|im_start|>"), (151_645, "<|im_end|>")];

pub(super) fn spec(cut: Cut) -> Spec {
    let (layers, vocab) = (cut.layers(28), cut.vocab(151_936));
    let decoder = Decoder {
        hidden: 1024,
        layers,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        vocab,
        tied: true,
        qk_norm: true,
        bias: false,
    };
    let intermediate = 3072;
    Spec {
        name: "qwen3-0.6b",
        config: json!({
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": 151_643.min(vocab - 1),
            "eos_token_id": 151_645.min(vocab - 1),
            "head_dim": decoder.head_dim,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": 40_960,
            "max_window_layers": layers,
            "model_type": "qwen3",
            "num_attention_heads": decoder.heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": decoder.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": null,
            "rope_theta": 1_000_000,
            "sliding_window": null,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0",
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": vocab,
        }),
        architecture: "qwen3",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(40_960)),
            ("embedding_length", Meta::U32(1024)),
            ("feed_forward_length", Meta::U32(intermediate as u32)),
            ("attention.head_count", Meta::U32(16)),
            ("attention.head_count_kv", Meta::U32(8)),
            ("attention.key_length", Meta::U32(128)),
            ("attention.value_length", Meta::U32(128)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-6)),
            ("rope.freq_base", Meta::F32(1e6)),
        ],
        params: decoder.params(|layer, params| gated_mlp(layer, decoder.hidden, intermediate, params)),
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
