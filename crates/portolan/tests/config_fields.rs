//! Every field that a family reads, with every value that it should not have: an error that names the file and the
//! field, or a tensor that shows the fault; or a model that works. Never a panic. For config.json and for GGUF metadata.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use portolan::{
    Core, Error, LoadOptions, Plan, Result, SeqStep, Want,
    device::{Device, cpu::CpuOptions},
};
use portolan_testkit::{Tensors, fixture::Gguf, fixture::Safetensors, tiny};
use serde_json::{Map, Value, json};

fn options() -> LoadOptions {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.threads = 1;
    options
}

/// Plans, loads, and computes the logits of a few tokens.
fn step(device: &Device, path: &Path) -> Result<Vec<f32>> {
    let plan = Plan::new(path, device, &options())?;
    let mut core = Core::load(&plan, &mut |_, _| ())?;
    let seq = core.create();
    core.step(&[SeqStep { seq, tokens: &[3, 5, 7], want: Want::Last }])?;
    Ok(core.logits(0).to_vec())
}

/// Collects what goes wrong, so that one run shows all of it.
struct Trial {
    device: Device,
    tensors: Vec<String>,
    tried: usize,
    works: usize,
    wrong: Vec<String>,
}

impl Trial {
    fn new(tensors: Vec<String>) -> Self {
        let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
        Trial { device, tensors, tried: 0, works: 0, wrong: Vec::new() }
    }

    /// Loads the model, of which one field was changed.
    fn run(&mut self, path: &Path, field: &str, what: impl FnOnce() -> String) {
        self.tried += 1;
        let fault = match catch_unwind(AssertUnwindSafe(|| step(&self.device, path))) {
            Err(_) => "a panic".to_owned(),
            Ok(Ok(logits)) if logits.len() == 512 && logits.iter().all(|l| l.is_finite()) => {
                return self.works += 1;
            }
            Ok(Ok(logits)) => format!("{} logits, or some that are not finite", logits.len()),
            // Three tokens in a model made for two, or a cache for a context that no memory holds.
            Ok(Err(Error::ContextOverflow { .. } | Error::DoesNotFit { .. }))
                if field.contains("max_position") || field.contains("context") =>
            {
                return;
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                let tensor = self.tensors.iter().any(|tensor| text.contains(tensor.as_str()));
                // All tensors that are missed are named.
                let missed = text.contains("that the checkpoint lacks: ");
                let names_it = text.contains(field) || text.contains(spoken(field)) || tensor || missed;
                match (text.contains(path.to_str().unwrap()), names_it) {
                    (true, true) => return,
                    (false, _) => format!("'{text}' names no file"),
                    (_, false) => format!("'{text}' names neither field nor tensor"),
                }
            }
        };
        self.wrong.push(format!("{}: {fault}", what()));
    }

    fn end(self, least: usize) {
        let Trial { tried, works, wrong, .. } = self;
        assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
        assert!(works >= least, "only {works} of {tried} give a model: the test tests nothing");
    }
}

/// As they stand in the text, some of which no JSON library would write.
const VALUES: &[&str] = &[
    "null",
    "0",
    "-1",
    "1",
    "2",
    "7",
    "64.0",
    "0.5",
    "1e-300",
    "1e300",
    "1e999",
    "Infinity",
    "NaN",
    "16777216",
    "1099511627776",
    "9223372036854775808",
    "18446744073709551616",
    "\"x\"",
    "\"\"",
    "true",
    "false",
    "[]",
    "[1, \"x\", null]",
    "{}",
    "{\"rope_type\": 7}",
    "{\"bits\": 7, \"group_size\": -1}",
];

const FIELDS: &[&str] = &[
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "no_rope_layer_interval",
    "no_rope_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "quantization",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
];

const ROPE_FIELDS: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
];

/// How an error may name a field otherwise.
fn spoken(field: &str) -> &str {
    match field {
        // By its own value, and what it may be.
        "model_type" | "general.architecture" => "model type '",
        "rope_type" | "rope_scaling" | "rope_parameters" | "llama.rope.scaling.type" => "rope scaling '",
        // What it holds is named.
        "quantization" | "quantization_config" => "quantized module '",
        other => other,
    }
}

/// Writes `config.json` with this text as the value of the field.
fn write(folder: &Path, config: &Value, field: &str, value: &str) {
    const HERE: &str = "@here@";
    let mut config = config.clone();
    *config.pointer_mut(field).unwrap() = HERE.into();
    let text = config.to_string().replace(&format!("\"{HERE}\""), value);
    fs::write(folder.join("config.json"), text).unwrap();
}

fn config_json(family: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy(family, folder);
    let good: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut trial = Trial::new(Tensors::open(folder.join("model.safetensors")).names());
    for &field in FIELDS {
        let mut config = good.clone();
        config.as_object_mut().unwrap().remove(field);
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        trial.run(folder, field, || format!("{family} without {field}"));
        config[field] = Value::Null;
        for value in VALUES {
            write(folder, &config, &format!("/{field}"), value);
            let named = if *value == "1e999" { "number out of range" } else { field };
            trial.run(folder, named, || format!("{family}, {field} = {value}"));
        }
    }
    trial.end(150);
}

#[test]
fn config_json_of_llama() {
    config_json("llama");
}

#[test]
fn config_json_of_mistral() {
    config_json("mistral");
}

#[test]
fn config_json_of_qwen2() {
    config_json("qwen2");
}

#[test]
fn config_json_of_qwen3() {
    config_json("qwen3");
}

#[test]
fn config_json_of_smollm3() {
    config_json("smollm3");
}

#[test]
fn rope_of_config_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("qwen3", folder);
    let good: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut trial = Trial::new(Tensors::open(folder.join("model.safetensors")).names());
    let (older, newer) = ("rope_scaling", "rope_parameters");
    for (object, kind) in [
        (newer, "default"),
        (older, "linear"),
        (newer, "dynamic"),
        (older, "yarn"),
        (newer, "yarn"),
        (older, "llama3"),
    ] {
        for &field in ROPE_FIELDS {
            let mut config = good.clone();
            config[object] = json!({"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
            config[object][field] = Value::Null;
            for value in VALUES {
                write(folder, &config, &format!("/{object}/{field}"), value);
                let named = if *value == "1e999" { "number out of range" } else { field };
                trial.run(folder, named, || format!("{object} {kind}, {field} = {value}"));
            }
        }
    }
    trial.end(500);
}

/// A metadata entry: its key, its type, its bytes.
type Entry = (String, u32, Vec<u8>);

fn u32_of(key: &str, value: u32) -> Entry {
    (format!("llama.{key}"), 4, value.to_le_bytes().to_vec())
}

fn f32_of(key: &str, value: f32) -> Entry {
    (format!("llama.{key}"), 6, value.to_le_bytes().to_vec())
}

fn text_of(key: &str, value: &str) -> Entry {
    (key.to_owned(), 8, [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat())
}

fn entries() -> Vec<Entry> {
    vec![
        text_of("general.architecture", "llama"),
        u32_of("block_count", 3),
        u32_of("embedding_length", 64),
        u32_of("feed_forward_length", 128),
        u32_of("attention.head_count", 4),
        u32_of("attention.head_count_kv", 2),
        u32_of("attention.key_length", 16),
        u32_of("attention.value_length", 16),
        u32_of("attention.sliding_window", 64),
        f32_of("attention.layer_norm_rms_epsilon", 1e-5),
        u32_of("context_length", 512),
        u32_of("vocab_size", 512),
        u32_of("rope.dimension_count", 16),
        f32_of("rope.freq_base", 1e4),
        text_of("llama.rope.scaling.type", "yarn"),
        f32_of("rope.scaling.factor", 2.0),
        u32_of("rope.scaling.original_context_length", 32),
        f32_of("rope.scaling.yarn_beta_fast", 32.0),
        f32_of("rope.scaling.yarn_beta_slow", 1.0),
        f32_of("rope.scaling.attn_factor", 1.0),
        f32_of("rope.scale_linear", 1.0),
        u32_of("nextn_predict_layers", 0),
    ]
}

/// Values of every type.
fn odd_entries() -> Vec<(&'static str, u32, Vec<u8>)> {
    let list = |kind: u32, len: u64, items: &[u8]| {
        [kind.to_le_bytes().as_slice(), &len.to_le_bytes(), items].concat()
    };
    let number = |n: u32| n.to_le_bytes().to_vec();
    let float = |x: f32| x.to_le_bytes().to_vec();
    vec![
        ("u32 0", 4, number(0)),
        ("u32 1", 4, number(1)),
        ("u32 2", 4, number(2)),
        ("u32 3", 4, number(3)),
        ("u32 7", 4, number(7)),
        ("u32 max", 4, number(u32::MAX)),
        ("u8 16", 0, vec![16]),
        ("i32 -1", 5, (-1i32).to_le_bytes().to_vec()),
        ("i64 min", 11, i64::MIN.to_le_bytes().to_vec()),
        ("u64 2^40", 10, (1u64 << 40).to_le_bytes().to_vec()),
        ("u64 max", 10, u64::MAX.to_le_bytes().to_vec()),
        ("f32 0", 6, float(0.0)),
        ("f32 0.5", 6, float(0.5)),
        ("f32 -1", 6, float(-1.0)),
        ("f32 1e-38", 6, float(1e-38)),
        ("f32 1e30", 6, float(1e30)),
        ("f32 infinite", 6, float(f32::INFINITY)),
        ("f32 NaN", 6, float(f32::NAN)),
        ("f64 1e300", 12, 1e300f64.to_le_bytes().to_vec()),
        ("true", 7, vec![1]),
        ("a text", 8, [&1u64.to_le_bytes(), b"x".as_slice()].concat()),
        ("no text", 8, 0u64.to_le_bytes().to_vec()),
        ("a list of u32", 9, list(4, 3, &[0; 12])),
        ("a list of texts", 9, list(8, 1, &0u64.to_le_bytes())),
        ("an empty list", 9, list(6, 0, &[])),
    ]
}

/// The tensors of a tiny Llama under GGUF's names.
fn gguf_tensors() -> Vec<(String, u32, Vec<usize>, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy("llama", folder.path());
    let tensors = Tensors::open(folder.path().join("model.safetensors"));
    let mut names = tensors.names();
    names.sort();
    let renamed = |name: &str| {
        let mut name = name.strip_prefix("model.").unwrap_or(name).replace("layers.", "blk.");
        for (hf, gguf) in [
            ("embed_tokens", "token_embd"),
            ("post_attention_layernorm", "ffn_norm"),
            ("input_layernorm", "attn_norm"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("lm_head", "output"),
        ] {
            name = name.replace(hf, gguf);
        }
        if name == "norm.weight" { "output_norm.weight".to_owned() } else { name }
    };
    let f32_bytes = |name: &str| tensors.f32(name).iter().flat_map(|v| v.to_le_bytes()).collect();
    names.iter().map(|name| (renamed(name), 0, tensors.shape(name), f32_bytes(name))).collect()
}

#[test]
fn gguf_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let tensors = gguf_tensors();
    let save = |entries: &[Entry]| {
        let mut file = Gguf::new();
        for (key, kind, bytes) in entries {
            file = file.entry(key, *kind, bytes);
        }
        for (name, kind, shape, bytes) in &tensors {
            file = file.tensor(name, *kind, shape, bytes);
        }
        file.write(&path);
    };
    let good = entries();
    save(&good);
    let mut trial = Trial::new(tensors.iter().map(|t| t.0.clone()).collect());
    assert!(step(&trial.device, &path).unwrap().iter().all(|l| l.is_finite()));
    for (at, (key, ..)) in good.iter().enumerate() {
        let mut entries = good.clone();
        entries.remove(at);
        save(&entries);
        trial.run(&path, key, || format!("no {key}"));
        for (what, kind, bytes) in odd_entries() {
            let mut entries = good.clone();
            entries[at] = (key.clone(), kind, bytes);
            save(&entries);
            trial.run(&path, key, || format!("{key} = {what}"));
        }
    }
    trial.end(100);
}

/// A model without a vocabulary would have no logits.
#[test]
fn an_embedding_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let file = tiny::edited_tensors(folder, |tensor| {
        if ["model.embed_tokens.weight", "lm_head.weight"].contains(&tensor.name) {
            (tensor.shape, tensor.bytes) = (vec![0, 64], Vec::new());
        }
        true
    });
    file.write(folder.join("model.safetensors"));
    tiny::edit_config(folder, |config| drop(config.remove("vocab_size")));
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let error = step(&device, folder).unwrap_err().to_string();
    for part in ["vocab_size", "model.embed_tokens.weight of 0 rows", folder.to_str().unwrap()] {
        assert!(error.contains(part), "'{error}' does not say '{part}'");
    }
}

/// Fewer layers than the weights have would run, and talk nonsense; more are missed by name.
#[test]
fn layers_against_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let with = |layers: usize, extra: usize| {
        tiny::edit_config(folder, |config| {
            config.insert("num_hidden_layers".to_owned(), layers.into());
            config.insert("num_nextn_predict_layers".to_owned(), extra.into());
        });
        step(&device, folder).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(with(3, 0), Ok(()));
    let fewer = with(2, 0).unwrap_err();
    assert!(fewer.contains("num_hidden_layers") && fewer.contains("'model.layers.2."), "{fewer}");
    let more = with(4, 0).unwrap_err();
    assert!(more.contains("model.layers.3.mlp.up_proj.weight"), "{more}");
    // A layer that is there to predict further tokens is no fault.
    assert_eq!(with(2, 1), Ok(()));
}

/// A model of 8 TiB, whose file is one hole: refused by the plan, in no time and without memory.
#[test]
fn a_model_that_no_memory_holds() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama_tied", folder);
    const HIDDEN: usize = 1 << 18;
    const VOCAB: usize = 1 << 24;
    tiny::edit_config(folder, |config| {
        for (key, value) in [
            ("hidden_size", HIDDEN),
            ("vocab_size", VOCAB),
            ("intermediate_size", 32),
            ("num_hidden_layers", 1),
            ("num_attention_heads", 2),
            ("num_key_value_heads", 1),
            ("head_dim", 16),
        ] {
            config.insert(key.to_owned(), value.into());
        }
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        (layer("input_layernorm"), vec![HIDDEN]),
        (layer("post_attention_layernorm"), vec![HIDDEN]),
        (layer("self_attn.q_proj"), vec![32, HIDDEN]),
        (layer("self_attn.k_proj"), vec![16, HIDDEN]),
        (layer("self_attn.v_proj"), vec![16, HIDDEN]),
        (layer("self_attn.o_proj"), vec![HIDDEN, 32]),
        (layer("mlp.gate_proj"), vec![32, HIDDEN]),
        (layer("mlp.up_proj"), vec![32, HIDDEN]),
        (layer("mlp.down_proj"), vec![HIDDEN, 32]),
    ];
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::from(header).to_string();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + at) as u64).unwrap();
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let plan = Plan::new(folder, &device, &options()).unwrap();
    let error = Core::load(&plan, &mut |_, _| panic!("something was read")).map(drop).unwrap_err();
    let Error::DoesNotFit { need, .. } = &error else { panic!("{error:?}") };
    assert!(*need > 8 << 40, "{need}");
    assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
}

/// Weights that shrink after the plan was made, on the way that a user's program takes.
#[test]
fn a_file_that_is_cut_between_plan_and_load() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let path = folder.join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let plan = Plan::new(folder, &device, &options()).unwrap();
    for keep in [0, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..keep]).unwrap();
        let error = Core::load(&plan, &mut |_, _| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("load it again"), "{keep}: {error}");
    }
    fs::write(&path, &whole).unwrap();
    Core::load(&plan, &mut |_, _| ()).map(drop).unwrap();
    // Another model under the old name: its numbers are not what the header said, but no read is out of bounds.
    Safetensors::new().f32("w", &[1 << 16], &vec![0.5; 1 << 16]).write(&path);
    if let Err(error) = Core::load(&plan, &mut |_, _| ()).map(drop) {
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
}
