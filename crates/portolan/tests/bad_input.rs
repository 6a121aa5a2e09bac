//! Whatever is wrong with a checkpoint: an error that names the file and the next step, never a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use portolan::{
    Core, Engine, Error, GenerateOptions, LoadOptions, Plan, Prompt, Result, SeqStep, Want,
    device::{Device, cpu::CpuOptions},
    kernels::Op,
    loader::NoProgress,
    models::ModelError,
};
use portolan_testkit::{fixture::safetensors_with_header, tiny};
use serde_json::{Map, Value, json};

fn options() -> LoadOptions {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.threads = 1;
    options
}

fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy("llama", folder.path());
    folder
}

fn cpu() -> Device {
    Device::cpu(&CpuOptions { threads: 1 }).unwrap()
}

/// Plans, loads, and computes the logits of a few tokens.
fn step(path: &Path, options: &LoadOptions) -> Result<Vec<f32>> {
    let plan = Plan::new(path, &cpu(), options)?;
    let mut core = Core::load(&plan, &mut |_, _| ())?;
    let seq = core.create();
    core.step(&[SeqStep { seq, tokens: &[3, 5, 7], want: Want::Last }])?;
    Ok(core.logits(0).to_vec())
}

/// The error must name the file, and say all of `parts`.
#[track_caller]
fn refused(path: &Path, parts: &[&str]) -> Error {
    let error = step(path, &options()).map(|logits| logits.len()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "'{text}' does not name {}", path.display());
    for part in parts {
        assert!(text.contains(part), "'{text}' does not say '{part}'");
    }
    error
}

#[test]
fn a_good_copy_works() {
    assert!(step(copy().path(), &options()).unwrap().iter().all(|l| l.is_finite()));
}

#[test]
fn files_that_are_not_there() {
    let folder = copy();
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    let error = refused(folder.path(), &["no config.json", "same folder"]);
    assert!(matches!(error, Error::Model(ModelError::NoConfig { .. })), "{error:?}");
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    refused(folder.path(), &["safetensors"]);
    refused(&folder.path().join("nowhere"), &["no such file"]);
}

#[test]
fn an_unknown_family() {
    let folder = copy();
    tiny::edit_config(folder.path(), |c| drop(c.insert("model_type".into(), "gpt17".into())));
    refused(folder.path(), &["gpt17", "not supported", "llama", "qwen3"]);
}

#[test]
fn missing_tensors_are_all_named() {
    let folder = copy();
    let gone = ["model.layers.1.mlp.up_proj.weight", "model.layers.2.self_attn.k_proj.weight"];
    let file = tiny::edited_tensors(folder.path(), |t| !gone.contains(&t.name));
    file.write(folder.path().join("model.safetensors"));
    refused(folder.path(), &gone);
    // Another model's names altogether.
    let file =
        tiny::edited_tensors(folder.path(), |t| ["model.norm.weight", "lm_head.weight"].contains(&t.name));
    file.write(folder.path().join("model.safetensors"));
    refused(folder.path(), &["model.embed_tokens.weight", "and"]);
}

#[test]
fn shapes_against_the_configuration() {
    #[track_caller]
    fn check(field: &str, value: Value, parts: &[&str]) {
        let folder = copy();
        tiny::edit_config(folder.path(), |c| drop(c.insert(field.into(), value)));
        let error = refused(folder.path(), parts);
        assert!(matches!(error, Error::Shapes { .. }), "{error:?}");
    }
    check(
        "intermediate_size",
        json!(256),
        &["mlp.gate_proj.weight", "[128, 64]", "[256, 64]", "config.json"],
    );
    check("hidden_size", json!(128), &["model.embed_tokens.weight", "[512, 128]"]);
    check("num_key_value_heads", json!(4), &["self_attn.k_proj.weight", "[32, 64]"]);
    check("head_dim", json!(32), &["self_attn.q_proj.weight"]);
}

#[test]
fn a_truncated_file() {
    let folder = copy();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for keep in [0, 5, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        refused(folder.path(), &["model.safetensors", "ownload it again"]);
    }
}

#[test]
fn a_header_that_lies() {
    let folder = copy();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    let lie = |pointer: &str, value: Value| {
        let mut header = header.clone();
        *header.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        std::fs::write(&path, safetensors_with_header(&header.to_string(), &whole[8 + length..])).unwrap();
        refused(folder.path(), &["model.safetensors"]);
    };
    let norm = "/model.norm.weight";
    lie(&format!("{norm}/shape"), json!([65]));
    lie(&format!("{norm}/shape"), json!([u64::MAX, u64::MAX]));
    lie(&format!("{norm}/shape"), json!([-1]));
    lie(&format!("{norm}/dtype"), json!("F32"));
    lie(&format!("{norm}/dtype"), json!("F7"));
    lie(&format!("{norm}/data_offsets"), json!([0, 128]));
    lie(&format!("{norm}/data_offsets"), json!([u64::MAX - 128, u64::MAX]));
    lie(&format!("{norm}/data_offsets"), json!([128, 0]));
    lie(norm, json!(7));
    let mut bytes = whole.clone();
    bytes[..8].copy_from_slice(&(whole.len() as u64 * 2).to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    refused(folder.path(), &["model.safetensors", "ownload it again"]);
}

#[test]
fn without_a_tokenizer_only_text_is_refused() {
    let folder = copy();
    assert_eq!(step(folder.path(), &options()).unwrap().len(), 512);
    let engine = Engine::load_path(folder.path(), &options(), &mut NoProgress).unwrap();
    let tokens = engine.generate(Prompt::Tokens(&[3, 5, 7]), &GenerateOptions::tokens(4)).unwrap();
    assert_eq!(tokens.finish().unwrap().stats.generated_tokens, 4);
    let mut stop = GenerateOptions::tokens(4);
    stop.stop = vec!["x".to_owned()];
    for error in [
        engine.generate("text", &GenerateOptions::tokens(4)).map(drop).unwrap_err(),
        engine.generate(Prompt::Tokens(&[3]), &stop).map(drop).unwrap_err(),
        engine.chat().map(drop).unwrap_err(),
        engine.tokenizer().map(drop).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, Error::NoTokenizer { .. }), "{error:?}");
        assert!(text.contains(folder.path().to_str().unwrap()) && text.contains("tokenizer.json"), "{text}");
    }
    // With a tokenizer but no template a chat says what to do.
    tiny::copy_with_text("llama", folder.path());
    std::fs::write(folder.path().join("tokenizer_config.json"), "{}").unwrap();
    let engine = Engine::load_path(folder.path(), &options(), &mut NoProgress).unwrap();
    let error = engine.chat().map(drop).unwrap_err().to_string();
    assert!(error.contains("--no-chat-template"), "{error}");
    // A broken tokenizer is named, and only when text is wanted.
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    let engine = Engine::load_path(folder.path(), &options(), &mut NoProgress).unwrap();
    let error = engine.generate("text", &GenerateOptions::tokens(4)).map(drop).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn an_unknown_rope_scaling_is_refused_by_name() {
    for (object, key) in
        [("rope_scaling", "type"), ("rope_scaling", "rope_type"), ("rope_parameters", "rope_type")]
    {
        let folder = copy();
        tiny::edit_config(folder.path(), |c| {
            c.remove("rope_scaling");
            c.insert(object.into(), json!({key: "spiral", "factor": 2.0}));
        });
        let error = refused(folder.path(), &["'spiral'", "llama3"]);
        assert!(matches!(error, Error::Model(ModelError::UnknownRope { .. })), "{error:?}");
    }
}

/// Values that a field should not have, and a few that it may.
fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(0),
        json!(-1),
        json!(1),
        json!(2),
        json!(3),
        json!(7),
        json!(64.0),
        json!(0.5),
        json!(1e-300),
        json!(-1e30),
        json!(1e300),
        json!(1u64 << 24),
        json!(1u64 << 40),
        json!(u64::MAX),
        json!("x"),
        json!(true),
        json!(false),
        json!([]),
        json!([1, "x", null]),
        json!({}),
    ]
}

/// Loads the model under a changed configuration, which must give an error that names the folder, or a model that
/// works. Says whether it works, or else what is wrong with the outcome.
fn outcome(folder: &Path, config: &Map<String, Value>) -> Result<bool, String> {
    std::fs::write(folder.join("config.json"), Value::from(config.clone()).to_string()).unwrap();
    match catch_unwind(AssertUnwindSafe(|| step(folder, &options()))) {
        Err(_) => Err("a panic".to_owned()),
        // Three tokens in a model made for two.
        Ok(Err(Error::ContextOverflow { .. })) => Ok(false),
        Ok(Err(error)) => match error.to_string() {
            text if text.contains(folder.to_str().unwrap()) => Ok(false),
            text => Err(format!("'{text}' names no file")),
        },
        Ok(Ok(logits)) if logits.len() != 512 => Err(format!("{} logits", logits.len())),
        Ok(Ok(logits)) => match logits.iter().filter(|l| !l.is_finite()).count() {
            0 => Ok(true),
            bad => Err(format!("{bad} logits are not finite")),
        },
    }
}

#[test]
fn no_configuration_panics() {
    let folder = copy();
    let text = std::fs::read(folder.path().join("config.json")).unwrap();
    let good: Map<String, Value> = serde_json::from_slice(&text).unwrap();
    let (mut tried, mut works, mut wrong) = (0, 0, Vec::new());
    let mut try_it = |config: &Map<String, Value>, what: String| {
        tried += 1;
        match outcome(folder.path(), config) {
            Ok(worked) => works += usize::from(worked),
            Err(fault) => wrong.push(format!("{what}: {fault}")),
        }
    };
    for &field in tiny::CONFIG_FIELDS {
        let mut config = good.clone();
        config.remove(field);
        try_it(&config, format!("no {field}"));
        for value in odd_values() {
            config.insert(field.into(), value.clone());
            try_it(&config, format!("{field} = {value}"));
        }
    }
    for kind in ["linear", "dynamic", "yarn", "llama3"] {
        let whole = json!({"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 32});
        for &field in tiny::ROPE_FIELDS {
            for value in odd_values() {
                let mut rope = whole.clone();
                rope[field] = value.clone();
                let mut config = good.clone();
                config.insert("rope_scaling".into(), rope);
                try_it(&config, format!("rope_scaling {kind}, {field} = {value}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(
        works > tried / 10,
        "only {works} of {tried} configurations give a model: the test tests nothing"
    );
}

#[test]
fn ds4_475_what_no_memory_holds_is_refused_before_a_byte_is_read() {
    let folder = copy();
    let mut long = options();
    long.context = Some(1 << 30);
    let plan = Plan::new(folder.path(), &cpu(), &long).unwrap();
    // There is nothing left to read, and nobody minds.
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let error = Core::load(&plan, &mut |_, _| panic!("something was read")).map(drop).unwrap_err();
    let Error::DoesNotFit { need, available, .. } = &error else { panic!("{error:?}") };
    // Keys and values of two heads of 16 in three layers, in f32.
    assert!(*need > 768 << 30 && need > available, "{need} of {available}");
    let text = error.to_string();
    for part in [folder.path().to_str().unwrap(), "GiB", "cache (1073741824 tokens)", "--context", "weights"]
    {
        assert!(text.contains(part), "'{text}' does not say '{part}'");
    }
}

#[test]
fn absurd_limits_are_refused_by_name() {
    #[track_caller]
    fn check(option: &str, edit: impl Fn(&mut LoadOptions, usize)) {
        for value in [usize::MAX, usize::MAX / 2, 1 << 40] {
            let folder = copy();
            let mut options = options();
            edit(&mut options, value);
            let error = step(folder.path(), &options).map(drop).unwrap_err();
            assert!(matches!(error, Error::BadOption { option: o, .. } if o == option), "{error:?}");
        }
    }
    check("context", |o, n| o.context = Some(n));
    check("cache tokens", |o, n| o.cache_tokens = Some(n));
    check("chunk", |o, n| o.chunk = n);
    check("max_sequences", |o, n| o.max_sequences = n);
    check("max_logits", |o, n| o.max_logits = n);
    // The smallest there is works.
    let mut least = options();
    (least.context, least.cache_tokens) = (Some(3), Some(0));
    (least.chunk, least.max_sequences, least.max_logits) = (3, 0, 0);
    assert_eq!(step(copy().path(), &least).unwrap().len(), 512);
}

/// bugs.md: Qwen3-VL-Embedding #89, gemma #8, text-generation-inference #501.
#[test]
fn qwen3_vl_embedding_89_the_output_matrix_is_found_or_tied_or_refused() {
    const MATRIX: u64 = 512 * 64 * 2;
    /// Bytes of all weights, and whether embedding and output are one weight.
    fn loaded(path: &Path) -> (u64, bool) {
        let plan = Plan::new(path, &cpu(), &options()).unwrap();
        let nodes = &plan.model.graph.nodes;
        let embed = nodes.iter().find(|n| n.op == Op::Embed).unwrap();
        let one = nodes.last().unwrap().weights[0] == embed.weights[0];
        (Core::load(&plan, &mut |_, _| ()).unwrap().load_stats.bytes, one)
    }
    let folder = copy();
    let path = folder.path();
    let (both, one) = loaded(path);
    assert!(!one, "lm_head is there and is used");

    let file = tiny::edited_tensors(path, |t| t.name != "lm_head.weight");
    file.write(path.join("model.safetensors"));
    let error = refused(path, &["lm_head.weight", "tie_word_embeddings"]);
    assert!(matches!(error, Error::Model(ModelError::NoOutputMatrix { .. })), "{error:?}");

    // A writer that keeps one of two equal tensors notes the other's name.
    file.clone()
        .metadata("lm_head.weight", "model.embed_tokens.weight")
        .write(path.join("model.safetensors"));
    assert_eq!(loaded(path), (both - MATRIX, true));

    file.write(path.join("model.safetensors"));
    tiny::edit_config(path, |c| drop(c.insert("tie_word_embeddings".into(), true.into())));
    assert_eq!(loaded(path), (both - MATRIX, true));
}
