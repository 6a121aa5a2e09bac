//! Reading a model's configuration: both spellings of rope, defaults, windows, layers without rope, refusals by name;
//! from config.json and from GGUF metadata.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, path::Path};

use portolan_kernels::{
    Activation,
    rope::{Llama3, Yarn},
};
use portolan_models::{Model, ModelConfig, ModelError, Result, RopeScaling};
use portolan_testkit::fixture::Gguf;
use portolan_weights::{Checkpoint, ConfigSource, Dialect, Encoding, Foreign, Source, TensorInfo};
use serde_json::{Value, json};

const FAMILIES: &[&str] = &["llama", "llama_tied", "mistral", "qwen2", "qwen3", "smollm3"];

fn data(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/tiny").join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A checkpoint that has nothing but a configuration.
fn checkpoint(config: Value) -> Checkpoint {
    Checkpoint {
        path: "the/model".into(),
        files: Vec::new(),
        dialect: Dialect::Hf,
        tensors: BTreeMap::new(),
        config: ConfigSource::Json(config),
        metadata: BTreeMap::new(),
    }
}

fn read(config: Value) -> Result<ModelConfig> {
    ModelConfig::from_checkpoint(&checkpoint(config))
}

/// The smallest configuration that says everything that must be said, with `more` on top.
fn least(model_type: &str, more: Value) -> Value {
    let mut config = json!({"model_type": model_type, "hidden_size": 64, "intermediate_size": 128,
                            "num_hidden_layers": 8, "num_attention_heads": 4});
    more.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
    config
}

fn with(model_type: &str, more: Value) -> ModelConfig {
    read(least(model_type, more)).unwrap()
}

#[test]
fn both_spellings_mean_the_same() {
    for name in FAMILIES {
        let hub = read(data(&format!("{name}/config.json"))).unwrap();
        let newer = read(data(&format!("{name}/config.v5.json"))).unwrap();
        assert_eq!(hub, newer, "{name}");
    }
}

#[test]
fn what_the_tiny_models_say() {
    let llama = read(data("llama/config.json")).unwrap();
    assert_eq!((llama.hidden, llama.intermediate, llama.layers), (64, 128, 3));
    assert_eq!((llama.heads, llama.kv_heads, llama.head_dim), (4, 2, 16));
    assert_eq!((llama.vocab, llama.context, llama.norm_eps), (Some(512), 512, 1e-5));
    assert_eq!((llama.rope.theta, llama.rope.rot), (500_000.0, 16));
    let llama3 = Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max: 32 };
    assert_eq!(llama.rope.scaling, RopeScaling::Llama3(llama3));
    assert!(!llama.tied && read(data("llama_tied/config.json")).unwrap().tied);
    assert_eq!(read(data("mistral/config.json")).unwrap().windows, [Some(16); 2]);
    assert_eq!(read(data("qwen3/config.json")).unwrap().head_dim, 32);
    assert_eq!(read(data("smollm3/config.json")).unwrap().rotated, [true, true, true, false]);
}

#[test]
fn defaults() {
    let llama = with("llama", json!({}));
    assert_eq!((llama.kv_heads, llama.head_dim, llama.context), (4, 16, 2048));
    assert_eq!((llama.vocab, llama.norm_eps, llama.activation), (None, 1e-6, Activation::Silu));
    assert_eq!((llama.rope.theta, llama.rope.rot, llama.rope.scaling), (10_000.0, 16, RopeScaling::None));
    assert!(!llama.tied && !llama.attention_bias && !llama.mlp_bias);
    assert_eq!((llama.windows, llama.rotated), (vec![None; 8], vec![true; 8]));
    let qwen2 = with("qwen2", json!({}));
    assert!(qwen2.attention_bias && !qwen2.tied);
    let smollm3 = with("smollm3", json!({}));
    assert!(smollm3.tied);
    assert_eq!(smollm3.rope.theta, 2_000_000.0);
    // Null is as good as nothing, and a whole number may be written as a float.
    let nulls =
        json!({"head_dim": null, "rope_scaling": null, "num_key_value_heads": 2.0, "hidden_act": null});
    assert_eq!(with("llama", nulls), with("llama", json!({"num_key_value_heads": 2})));
}

#[test]
fn activations() {
    for (name, expected) in [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("relu2", Activation::Relu2),
    ] {
        assert_eq!(with("llama", json!({"hidden_act": name})).activation, expected, "{name}");
    }
}

#[test]
fn rope_scalings() {
    #[track_caller]
    fn check(rope: Value, expected: RopeScaling) {
        let more = json!({"max_position_embeddings": 4096, "rope_scaling": rope});
        assert_eq!(with("llama", more).rope.scaling, expected, "{rope}");
        let mut newer = rope.clone();
        newer["rope_theta"] = 5e5.into();
        let newer = with("llama", json!({"max_position_embeddings": 4096, "rope_parameters": newer}));
        assert_eq!((newer.rope.scaling, newer.rope.theta), (expected, 5e5), "{rope}");
    }
    check(json!({}), RopeScaling::None);
    check(json!({"rope_type": "default"}), RopeScaling::None);
    check(json!({"type": "linear", "factor": 4.0}), RopeScaling::Linear { factor: 4.0 });
    check(json!({"rope_type": "linear", "type": "yarn", "factor": 4}), RopeScaling::Linear { factor: 4.0 });
    check(json!({"type": "dynamic", "factor": 2.0}), RopeScaling::Dynamic { factor: 2.0 });
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
    check(yarn, RopeScaling::Yarn(Yarn::new(4.0, 1024)));
    // Without a factor it is the one that the two lengths have.
    let yarn =
        json!({"type": "yarn", "original_max_position_embeddings": 512, "beta_fast": 16, "truncate": false});
    check(yarn, RopeScaling::Yarn(Yarn { beta_fast: 16.0, truncate: false, ..Yarn::new(8.0, 512) }));
}

#[test]
fn windows_by_layer() {
    #[track_caller]
    fn check(model_type: &str, more: Value, expected: [usize; 8]) {
        let expected = expected.map(|w| (w > 0).then_some(w));
        assert_eq!(with(model_type, more.clone()).windows, expected, "{model_type} {more}");
    }
    check("mistral", json!({"sliding_window": 16}), [16; 8]);
    check("mistral", json!({"sliding_window": null}), [0; 8]);
    check("mistral", json!({"sliding_window": 16, "use_sliding_window": false}), [0; 8]);
    // A field that is left over from another model.
    check("llama", json!({"sliding_window": 16}), [0; 8]);
    check("qwen2", json!({"sliding_window": 16}), [0; 8]);
    let on = json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 6});
    check("qwen2", on, [0, 0, 0, 0, 0, 0, 16, 16]);
    let kinds: Vec<&str> =
        (0..8).map(|layer| if layer % 2 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let listed = json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 6, "layer_types": kinds});
    check("qwen3", listed, [0, 16, 0, 16, 0, 16, 0, 16]);
}

#[test]
fn layers_without_rope() {
    #[track_caller]
    fn check(model_type: &str, more: Value, expected: [u8; 8]) {
        assert_eq!(with(model_type, more.clone()).rotated, expected.map(|r| r == 1), "{more}");
    }
    check("smollm3", json!({}), [1, 1, 1, 0, 1, 1, 1, 0]);
    check("smollm3", json!({"no_rope_layer_interval": 3}), [1, 1, 0, 1, 1, 0, 1, 1]);
    let list = json!({"no_rope_layer_interval": 3, "no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 1]});
    check("smollm3", list, [0, 1, 1, 1, 1, 1, 1, 1]);
    check("llama", json!({"no_rope_layers": [0, 0, 0, 0, 0, 0, 0, 0]}), [1; 8]);
}

#[test]
fn refusals_name_the_field() {
    #[track_caller]
    fn check(field: &str, config: Value) {
        let error = read(config).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the/model") && text.contains(field), "'{text}' does not name {field}");
        assert!(matches!(error, ModelError::MissingField { .. } | ModelError::BadField { .. }), "{error:?}");
    }
    for field in
        ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
    {
        let mut config = least("llama", json!({}));
        config.as_object_mut().unwrap().remove(field);
        check(field, config);
        check(field, least("llama", json!({field: -1})));
        check(field, least("llama", json!({field: []})));
    }
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1u64 << 40)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1u64 << 50)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(3)),
        ("model_type", json!(7)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(0)),
        ("head_dim", json!(2.5)),
        ("max_position_embeddings", json!(0)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!("small")),
        ("rope_theta", json!(0)),
        ("rope_theta", json!(-5)),
        ("hidden_act", json!("cosine")),
        ("tie_word_embeddings", json!(1)),
        ("sliding_window", json!(0)),
        ("rope_scaling", json!("linear")),
        ("rope_scaling.factor", json!({"type": "linear"})),
    ] {
        let key = field.split('.').next().unwrap();
        check(field, least("llama", json!({key: value})));
    }
    check("partial_rotary_factor", least("llama", json!({"partial_rotary_factor": 0.01})));
    check("'factor'", least("llama", json!({"rope_scaling": {"type": "linear", "factor": 0}})));
    let llama3 = |low: f64, original: u32| {
        least(
            "llama",
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": low,
            "high_freq_factor": 4, "original_max_position_embeddings": original}}),
        )
    };
    check("low_freq_factor", llama3(4.0, 32));
    check("original_max_position_embeddings", llama3(1.0, 0));
    check("rope_theta", least("llama", json!({"rope_theta": 1e-300})));
    let yarn = json!({"type": "yarn", "factor": 2, "attention_factor": -1});
    check("attention_factor", least("llama", json!({"rope_scaling": yarn})));
    check("no_rope_layers", least("smollm3", json!({"no_rope_layers": [1, 1]})));
    check("no_rope_layers", least("smollm3", json!({"no_rope_layers": vec![2; 8]})));
    check("no_rope_layer_interval", least("smollm3", json!({"no_rope_layer_interval": 0})));
    let types = json!({"sliding_window": 4, "use_sliding_window": true, "layer_types": vec!["chunked"; 8]});
    check("layer_types", least("qwen3", types));
    check("config.json", json!([1]));
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let error = read(least("llama", json!({"rope_scaling": {"rope_type": "spiral"}}))).unwrap_err();
    assert!(matches!(&error, ModelError::UnknownRope { kind, .. } if kind == "spiral"), "{error:?}");
    let error = Model::from_checkpoint(&checkpoint(least("gpt17", json!({})))).map(drop).unwrap_err();
    assert!(
        matches!(&error, ModelError::UnknownFamily { model_type, .. } if model_type == "gpt17"),
        "{error:?}"
    );
    let mut bare = checkpoint(json!({}));
    bare.config = ConfigSource::None;
    assert!(matches!(ModelConfig::from_checkpoint(&bare), Err(ModelError::NoConfig { .. })));
}

/// A GGUF file of one tensor, with what every architecture must say.
fn gguf(arch: &str) -> Gguf {
    Gguf::new()
        .str("general.architecture", arch)
        .u32(&format!("{arch}.block_count"), 8)
        .u32(&format!("{arch}.embedding_length"), 64)
        .u32(&format!("{arch}.feed_forward_length"), 128)
        .u32(&format!("{arch}.attention.head_count"), 4)
        .tensor("token_embd.weight", 0, &[2, 2], &[0; 16])
}

fn read_gguf(file: &Gguf) -> Result<ModelConfig> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    ModelConfig::from_checkpoint(&Checkpoint::open(&path).unwrap())
}

#[test]
fn gguf_metadata() {
    let llama = read_gguf(&gguf("llama")).unwrap();
    assert_eq!((llama.layers, llama.hidden, llama.intermediate), (8, 64, 128));
    assert_eq!((llama.heads, llama.kv_heads, llama.head_dim, llama.context), (4, 4, 16, 2048));
    assert_eq!((llama.rope.theta, llama.rope.rot, llama.rope.scaling), (10_000.0, 16, RopeScaling::None));
    // No `output.weight`: the embedding serves.
    assert!(llama.tied && !llama.attention_bias && !llama.mlp_bias);

    let qwen = gguf("qwen2")
        .u32("qwen2.attention.head_count_kv", 2)
        .u32("qwen2.attention.key_length", 32)
        .u32("qwen2.context_length", 4096)
        .u32("qwen2.attention.sliding_window", 100)
        .f32("qwen2.attention.layer_norm_rms_epsilon", 0.5)
        .f32("qwen2.rope.freq_base", 1000.0)
        .tensor("output.weight", 0, &[2, 2], &[0; 16])
        .tensor("blk.0.attn_q.bias", 0, &[4], &[0; 16]);
    let qwen = read_gguf(&qwen).unwrap();
    assert_eq!((qwen.kv_heads, qwen.head_dim, qwen.context, qwen.norm_eps), (2, 32, 4096, 0.5));
    assert_eq!((qwen.rope.theta, qwen.windows), (1000.0, vec![Some(100); 8]));
    assert!(!qwen.tied && qwen.attention_bias);

    let smollm3 = read_gguf(&gguf("smollm3")).unwrap();
    assert_eq!(smollm3.rotated, [true, true, true, false, true, true, true, false]);
}

#[test]
fn gguf_rope_scalings() {
    #[track_caller]
    fn check(file: Gguf, expected: RopeScaling) {
        assert_eq!(read_gguf(&file).unwrap().rope.scaling, expected);
    }
    let kind =
        |name| gguf("llama").str("llama.rope.scaling.type", name).f32("llama.rope.scaling.factor", 4.0);
    check(kind("none"), RopeScaling::None);
    check(kind("linear"), RopeScaling::Linear { factor: 4.0 });
    check(gguf("llama").f32("llama.rope.scale_linear", 2.0), RopeScaling::Linear { factor: 2.0 });
    let yarn = kind("yarn").u32("llama.rope.scaling.original_context_length", 512);
    check(yarn, RopeScaling::Yarn(Yarn::new(4.0, 512)));
    // Llama 3.1's scaling comes as a divisor for each frequency.
    let divisors: Vec<f32> = (1..9).map(|i| i as f32).collect();
    let bytes: Vec<u8> = divisors.iter().flat_map(|d| d.to_le_bytes()).collect();
    check(gguf("llama").tensor("rope_freqs.weight", 0, &[8], &bytes), RopeScaling::Divisors(divisors));
    let error = read_gguf(&kind("spiral")).unwrap_err();
    assert!(matches!(&error, ModelError::UnknownRope { kind, .. } if kind == "spiral"), "{error:?}");
}

/// What the families have in common is built from a configuration and the names of tensors alone; none are needed to
/// refuse an embedding that no vocabulary has, or layers beyond the last.
#[test]
fn tensors_against_the_configuration() {
    #[track_caller]
    fn check(name: &str, shape: &[usize], parts: &[&str]) {
        let mut checkpoint = checkpoint(least("llama", json!({})));
        let info = TensorInfo {
            name: name.to_owned(),
            shape: shape.to_vec(),
            encoding: Encoding::Foreign(Foreign::Bool),
            source: Source::Planes(Vec::new()),
        };
        checkpoint.tensors.insert(name.to_owned(), info);
        let text = Model::from_checkpoint(&checkpoint).map(drop).unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "'{text}' does not say '{part}'");
        }
    }
    let embedding = "model.embed_tokens.weight";
    check(embedding, &[0, 64], &["the/model", "vocab_size", embedding, "0 rows"]);
    check(embedding, &[1 << 40, 64], &["vocab_size", embedding, "1099511627776 rows", "1 to 16777216"]);
    check("model.layers.8.norm.weight", &[64], &["num_hidden_layers", "is 8", "model.layers.8.norm.weight"]);
    check("model.layers.18446744073709551615.w", &[64], &["num_hidden_layers", "18446744073709551615"]);
}

#[test]
fn gguf_refusals_name_the_key() {
    #[track_caller]
    fn check(key: &str, file: Gguf) {
        let text = read_gguf(&file).unwrap_err().to_string();
        assert!(text.contains(key) && text.contains("model.gguf"), "'{text}' does not name {key}");
    }
    check("general.architecture", Gguf::new().tensor("x", 0, &[1], &[0; 4]));
    check(
        "llama.block_count",
        Gguf::new().str("general.architecture", "llama").tensor("x", 0, &[1], &[0; 4]),
    );
    check("llama.attention.value_length", gguf("llama").u32("llama.attention.value_length", 7));
    check("llama.context_length", gguf("llama").str("llama.context_length", "long"));
    check("llama.rope.freq_base", gguf("llama").str("llama.rope.freq_base", "x"));
    check("llama.rope.freq_base", gguf("llama").f32("llama.rope.freq_base", -1.0));
    check("llama.attention.head_count_kv", gguf("llama").u32("llama.attention.head_count_kv", 3));
    check("llama.rope.dimension_count", gguf("llama").u32("llama.rope.dimension_count", 3));
    check("llama.rope.scaling.type", gguf("llama").u32("llama.rope.scaling.type", 1));
    check("llama.vocab_size", gguf("llama").u32("llama.vocab_size", u32::MAX));
    check("rope_freqs.weight", gguf("llama").tensor("rope_freqs.weight", 0, &[2], &[0; 8]));
}

/// What is written is read as the same model.
#[test]
fn a_written_configuration_is_read_again() {
    #[track_caller]
    fn check(config: &ModelConfig) {
        let written = config.to_json(512).unwrap();
        let mut again = read(written.into()).unwrap();
        assert_eq!(again.vocab, Some(512));
        (again.vocab, again.path) = (config.vocab, config.path.clone());
        assert_eq!(again, *config);
    }
    for name in FAMILIES {
        check(&read(data(&format!("{name}/config.json"))).unwrap());
    }
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
                      "beta_fast": 16.0, "attention_factor": 1.5, "truncate": false});
    for scaling in
        [json!({"rope_type": "linear", "factor": 2.5}), json!({"type": "dynamic", "factor": 3.0}), yarn]
    {
        check(&with("llama", json!({"rope_scaling": scaling})));
    }
    check(&with("llama", json!({"partial_rotary_factor": 0.5, "mlp_bias": true, "rms_norm_eps": 1e-5})));
    check(&with("qwen2", json!({"sliding_window": 100, "use_sliding_window": true, "max_window_layers": 3})));
    let llama = read_gguf(&gguf("llama").f32("llama.attention.layer_norm_rms_epsilon", 1e-5)).unwrap();
    assert_eq!(llama.to_json(2).unwrap()["rms_norm_eps"], 1e-5);
    check(&llama);
    check(&read_gguf(&gguf("smollm3")).unwrap());
}

#[test]
fn names_of_hugging_face() {
    #[track_caller]
    fn check(weight: &str, expected: &str) {
        assert_eq!(portolan_models::hf_name(weight), expected);
    }
    check("embed_tokens", "model.embed_tokens.weight");
    check("layers.3.mlp.up_proj", "model.layers.3.mlp.up_proj.weight");
    check("layers.3.self_attn.q_proj.bias", "model.layers.3.self_attn.q_proj.bias");
    check("norm", "model.norm.weight");
    check("lm_head", "lm_head.weight");
}
