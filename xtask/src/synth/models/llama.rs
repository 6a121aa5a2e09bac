//! Llama-3.1-8B-Instruct.

use std::f64::consts::PI;

use serde_json::json;

use super::super::{
    gguf::Meta,
    param::{Decoder, Kind, Param},
};
use super::{Cut, Spec, Vocab, gated_mlp};

const SPECIAL: &[(usize, &str)] = &[
    (128_000, "<|begin_of_text|>"),
    (128_001, "<|end_of_text|>"),
    (128_006, "<|start_header_id|>"),
    (128_007, "<|end_header_id|>"),
    (128_008, "<|eom_id|>"),
    (128_009, "<|eot_id|>"),
];

const THETA: f64 = 500_000.0;

pub(super) fn spec(cut: Cut) -> Spec {
    let (layers, vocab) = (cut.layers(32), cut.vocab(128_256));
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
    let intermediate = 14_336;
    let ends = [128_001, 128_008, 128_009].map(|id: usize| id.min(vocab - 1));
    let mut params = decoder.params(|layer, params| gated_mlp(layer, decoder.hidden, intermediate, params));
    let divisors = rope_divisors(decoder.head_dim);
    params.push(Param::new("", "rope_freqs.weight", &[divisors.len()], Kind::Literal(divisors)));
    Spec {
        name: "llama-3.1-8b",
        config: json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": 128_000.min(vocab - 1),
            "eos_token_id": ends,
            "hidden_act": "silu",
            "hidden_size": decoder.hidden,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": 131_072,
            "mlp_bias": false,
            "model_type": "llama",
            "num_attention_heads": decoder.heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": decoder.kv_heads,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": THETA,
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.42.3",
            "use_cache": true,
            "vocab_size": vocab,
        }),
        architecture: "llama",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(131_072)),
            ("embedding_length", Meta::U32(4096)),
            ("feed_forward_length", Meta::U32(intermediate as u32)),
            ("attention.head_count", Meta::U32(32)),
            ("attention.head_count_kv", Meta::U32(8)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("rope.freq_base", Meta::F32(THETA as f32)),
            ("rope.dimension_count", Meta::U32(128)),
            ("vocab_size", Meta::U32(vocab as u32)),
        ],
        params,
        vocab: Vocab {
            size: vocab,
            pre: "llama-bpe",
            bos: 128_000,
            eos: 128_009,
            add_bos: true,
            special: SPECIAL,
        },
    }
}

/// By what GGUF divides each rope frequency, in place of `rope_scaling` above: 1 for waves shorter than a
/// quarter of the original context, the factor for those longer than all of it, and between them what mixes the
/// two frequencies in proportion.
fn rope_divisors(head_dim: usize) -> Vec<f32> {
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 8192.0);
    let divisor = |i: usize| {
        let wave = 2.0 * PI * THETA.powf(2.0 * i as f64 / head_dim as f64);
        let turns = original / wave;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let share = (turns - low) / (high - low);
            1.0 / ((1.0 - share) / factor + share)
        }
    };
    (0..head_dim / 2).map(|i| divisor(i) as f32).collect()
}
