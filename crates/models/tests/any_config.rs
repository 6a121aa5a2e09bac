//! Any JSON in any field, and any metadata under any key: an error that names the checkpoint, or a configuration that
//! the rest can rely on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use portolan_models::{Model, ModelConfig};
use portolan_weights::{
    Checkpoint, ConfigSource, Dialect,
    gguf::{Array, Metadata, Value as Entry},
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The fields, and those of rope, which stand in an object too.
const FIELDS: [&str; 30] = [
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "no_rope_layers",
    "no_rope_layer_interval",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "rope_type",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "mscale",
    "high_freq_factor",
    "partial_rotary_factor",
];

const KEYS: [&str; 20] = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.layer_norm_rms_epsilon",
    "context_length",
    "vocab_size",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.attn_factor",
    "rope.scale_linear",
    "nextn_predict_layers",
];

/// Numbers at the ends of what their types hold, and small ones.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        (0u32..200).prop_map(f64::from),
        prop::sample::select(vec![0.0, -0.0, 0.5, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE, 9e15, 1.6e7]),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let words =
        ["linear", "yarn", "llama3", "dynamic", "silu", "full_attention", "sliding_attention", "qwen3"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..100).prop_map(Value::from),
        number().prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 8, |inner| {
        let field = prop::sample::select(FIELDS.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((field, inner), 0..8)
                .prop_map(|entries| Value::from(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn any_entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        any::<u64>().prop_map(Entry::UInt),
        (0u64..200).prop_map(Entry::UInt),
        any::<i64>().prop_map(Entry::Int),
        number().prop_map(Entry::Float),
        Just(Entry::Float(f64::NAN)),
        any::<bool>().prop_map(Entry::Bool),
        prop::sample::select(vec!["linear", "yarn", "none", "x", ""])
            .prop_map(|t| Entry::String(t.to_owned())),
        prop::collection::vec(any::<i64>(), 0..4).prop_map(|list| Entry::Array(Array::Ints(list))),
    ]
}

/// Reads the configuration, and builds the graph, from a checkpoint that has nothing else.
fn exercise(config: ConfigSource) -> Result<(), TestCaseError> {
    let dialect = match config {
        ConfigSource::Gguf(_) => Dialect::Gguf,
        _ => Dialect::Hf,
    };
    let path = "the/model".into();
    let (tensors, metadata) = (BTreeMap::new(), BTreeMap::new());
    let checkpoint = Checkpoint { path, files: Vec::new(), dialect, tensors, config, metadata };
    match ModelConfig::from_checkpoint(&checkpoint) {
        Err(error) => prop_assert!(error.to_string().contains("the/model"), "{}", error),
        Ok(config) => {
            prop_assert!(config.layers > 0 && config.heads.is_multiple_of(config.kv_heads), "{:?}", config);
            prop_assert_eq!((config.windows.len(), config.rotated.len()), (config.layers, config.layers));
            let rope = config.rope.frequencies();
            prop_assert_eq!(rope.inv_freq.len() * 2, config.rope.rot);
            prop_assert!(rope.scale.is_finite() && rope.inv_freq.iter().all(|f| f.is_finite()));
        }
    }
    if let Err(error) = Model::from_checkpoint(&checkpoint) {
        prop_assert!(error.to_string().contains("the/model"), "{}", error);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn of_json(
        family in prop::sample::select(vec!["llama", "mistral", "qwen2", "qwen3", "smollm3"]),
        changes in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), any_json()), 1..4),
    ) {
        let mut config = json!({
            "model_type": family, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
            "num_attention_heads": 4, "vocab_size": 100, "sliding_window": 16, "use_sliding_window": true,
            "tie_word_embeddings": true,
        });
        for (field, value) in changes {
            config[field] = value;
        }
        exercise(ConfigSource::Json(config))?;
    }

    #[test]
    fn of_any_json_at_all(config in any_json()) {
        exercise(ConfigSource::Json(config))?;
    }

    #[test]
    fn of_metadata(
        family in prop::sample::select(vec!["llama", "qwen2", "qwen3", "smollm3"]),
        changes in prop::collection::vec((prop::sample::select(KEYS.to_vec()), any_entry()), 1..4),
    ) {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", Entry::String(family.to_owned()));
        for (key, value) in [
            ("block_count", 8),
            ("embedding_length", 64),
            ("feed_forward_length", 128),
            ("attention.head_count", 4),
            ("vocab_size", 100),
            ("rope.scaling.original_context_length", 32),
        ] {
            metadata.insert(format!("{family}.{key}"), Entry::UInt(value));
        }
        metadata.insert(format!("{family}.rope.scaling.type"), Entry::String("yarn".to_owned()));
        for (key, value) in changes {
            metadata.insert(format!("{family}.{key}"), value);
        }
        exercise(ConfigSource::Gguf(metadata))?;
    }
}
