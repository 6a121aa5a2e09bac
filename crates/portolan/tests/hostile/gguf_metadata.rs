//! The same for a GGUF file's metadata: every key, with values of every type.

use portolan_testkit::{Tensors, fixture::Gguf, tiny};

use crate::support::{Trial, step};

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
