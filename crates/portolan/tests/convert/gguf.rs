//! GGUF files made of the tiny checkpoints, in every block format that MLX can hold, converted without loss.

use std::path::Path;

use half::f16;
use portolan::{
    kernels::rope::{Llama3, RopeFrequencies},
    loader,
    text::{EncodeOptions, Tokenizer},
    tools::convert::{ConvertOptions, How},
    weights::Checkpoint,
};
use portolan_testkit::{Tensors, assert_close, fixture::Gguf, max_abs_diff, tiny as testkit_tiny};
use serde_json::Value;

use crate::{IDS, affine, config, convert, exact, scratch, tiny};

const MODULES: &[(&str, &str, u32)] = &[
    ("input_layernorm", "attn_norm", F32),
    ("post_attention_layernorm", "ffn_norm", F32),
    ("self_attn.q_proj", "attn_q", Q4_1),
    ("self_attn.k_proj", "attn_k", Q5_1),
    ("self_attn.v_proj", "attn_v", Q4_0),
    ("self_attn.o_proj", "attn_output", Q8_0),
    ("self_attn.q_norm", "attn_q_norm", F32),
    ("self_attn.k_norm", "attn_k_norm", F32),
    ("mlp.gate_proj", "ffn_gate", Q5_0),
    ("mlp.up_proj", "ffn_up", Q4_0),
    ("mlp.down_proj", "ffn_down", Q4_1),
];

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q4_1: u32 = 3;
const Q5_0: u32 = 6;
const Q5_1: u32 = 7;
const Q8_0: u32 = 8;

/// One block of 32 numbers.
fn block(kind: u32, w: &[f32]) -> Vec<u8> {
    let (min, max) = w.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    let most = min.abs().max(max.abs());
    let (levels, offset) = match kind {
        Q4_0 => (8.0, 8.0),
        Q5_0 => (16.0, 16.0),
        Q8_0 => (127.0, 0.0),
        Q4_1 => (15.0, 0.0),
        _ => (31.0, 0.0),
    };
    let with_minimum = matches!(kind, Q4_1 | Q5_1);
    let (d, m) = if with_minimum { ((max - min) / levels, min) } else { (most / levels, 0.0) };
    let (d, m) = (f16::from_f32(d), f16::from_f32(m));
    let codes: Vec<i32> = w
        .iter()
        .map(|&v| {
            let q = (v - m.to_f32()) / d.to_f32() + offset;
            let (low, high) =
                if kind == Q8_0 { (-127.0, 127.0) } else { (0.0, levels.max(2.0 * offset - 1.0)) };
            q.round().clamp(low, high) as i32
        })
        .collect();
    let mut out = d.to_le_bytes().to_vec();
    if with_minimum {
        out.extend(m.to_le_bytes());
    }
    if kind == Q8_0 {
        out.extend(codes.iter().map(|&q| q as i8 as u8));
        return out;
    }
    if matches!(kind, Q5_0 | Q5_1) {
        let high = codes.iter().enumerate().fold(0u32, |bits, (i, &q)| bits | ((q as u32 >> 4) & 1) << i);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|i| (codes[i] & 15 | (codes[i + 16] & 15) << 4) as u8));
    out
}

fn bytes(kind: u32, w: &[f32]) -> Vec<u8> {
    match kind {
        F32 => w.iter().flat_map(|v| v.to_le_bytes()).collect(),
        kind => w.chunks(32).flat_map(|w| block(kind, w)).collect(),
    }
}

/// The rows of each head as llama.cpp's converter orders them: those of the two halves in turn.
fn permuted(w: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (k, d) = (w.len() / rows, rows / heads);
    let order = (0..heads).flat_map(|h| (0..d / 2).flat_map(move |j| [h * d + j, h * d + d / 2 + j]));
    order.flat_map(|row| w[row * k..(row + 1) * k].iter().copied()).collect()
}

fn number(config: &Value, key: &str) -> u32 {
    config[key].as_u64().unwrap_or_else(|| panic!("{key}")) as u32
}

/// A tiny checkpoint as a GGUF file.
fn gguf(family: &str, llama3: Option<&Llama3>) -> Gguf {
    let (folder, of) = (tiny(family), Tensors::open(tiny(family).join("model.safetensors")));
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let arch = config["model_type"].as_str().unwrap().to_owned();
    let (heads, kv_heads) = (number(&config, "num_attention_heads"), number(&config, "num_key_value_heads"));
    let hidden = number(&config, "hidden_size");
    let head = config["head_dim"].as_u64().unwrap_or(u64::from(hidden / heads)) as u32;
    let theta = config["rope_theta"].as_f64().unwrap_or(10_000.0);
    let key = |name: &str| format!("{arch}.{name}");
    let layers = number(&config, "num_hidden_layers");
    let mut file = Gguf::new()
        .str("general.architecture", &arch)
        .u32(&key("block_count"), layers)
        .u32(&key("embedding_length"), hidden)
        .u32(&key("feed_forward_length"), number(&config, "intermediate_size"))
        .u32(&key("attention.head_count"), heads)
        .u32(&key("attention.head_count_kv"), kv_heads)
        .u32(&key("attention.key_length"), head)
        .u32(&key("context_length"), number(&config, "max_position_embeddings"))
        .f32(&key("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"].as_f64().unwrap() as f32)
        .f32(&key("rope.freq_base"), theta as f32);
    if arch == "mistral" {
        file = file.u32(&key("attention.sliding_window"), number(&config, "sliding_window"));
    }
    if let Some(llama3) = llama3 {
        let rot = head as usize;
        let (plain, scaled) =
            (RopeFrequencies::plain(theta, rot), RopeFrequencies::llama3(theta, rot, llama3));
        let divisors: Vec<f32> = plain.inv_freq.iter().zip(&scaled.inv_freq).map(|(p, s)| p / s).collect();
        file = file.tensor("rope_freqs.weight", F32, &[divisors.len()], &bytes(F32, &divisors));
    }
    file = vocabulary(file);
    let mut add = |hf: &str, name: &str, kind: u32, heads: Option<u32>| {
        if of.has(hf) {
            let (shape, mut w) = (of.shape(hf), of.f32(hf));
            if let Some(heads) = heads {
                w = permuted(&w, shape[0], heads as usize);
            }
            file = std::mem::take(&mut file).tensor(name, kind, &shape, &bytes(kind, &w));
        }
    };
    add("model.embed_tokens.weight", "token_embd.weight", Q8_0, None);
    add("model.norm.weight", "output_norm.weight", F32, None);
    add("lm_head.weight", "output.weight", Q8_0, None);
    let reordered = ["llama", "mistral", "smollm3"].contains(&arch.as_str());
    for layer in 0..layers {
        for &(hf, name, kind) in MODULES {
            let heads = match name {
                "attn_q" if reordered => Some(heads),
                "attn_k" if reordered => Some(kv_heads),
                _ => None,
            };
            for (parameter, kind) in [("weight", kind), ("bias", F32)] {
                add(
                    &format!("model.layers.{layer}.{hf}.{parameter}"),
                    &format!("blk.{layer}.{name}.{parameter}"),
                    kind,
                    heads,
                );
            }
        }
    }
    file
}

/// The vocabulary of the tiny checkpoints that speak.
fn vocabulary(file: Gguf) -> Gguf {
    let json = testkit_tiny::tokenizer(512);
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![""; vocab.len()];
    vocab.iter().for_each(|(text, id)| tokens[id.as_u64().unwrap() as usize] = text);
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap()))
        .collect();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
    file.str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &merges.iter().map(String::as_str).collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.bos_token_id", testkit_tiny::START)
        .u32("tokenizer.ggml.eos_token_id", testkit_tiny::END)
        .bool("tokenizer.ggml.add_bos_token", true)
        .str("tokenizer.chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}")
}

/// Converts a GGUF file and gives the logits of both.
fn both(file: &Gguf, folder: &Path, options: &ConvertOptions) -> (Vec<f32>, Vec<f32>) {
    let (source, made) = (folder.join("model.gguf"), folder.join("made"));
    file.write(&source);
    let plan = convert(&source, &made, options).unwrap();
    assert!(plan.rows.iter().all(|r| matches!(r.how, How::Lossless | How::Kept)), "{:#?}", plan.rows);
    assert_eq!(plan.no_tokenizer, None);
    (exact(&source, &IDS), exact(&made, &IDS))
}

#[test]
fn every_family_comes_out_of_gguf_with_the_same_bits() {
    for family in ["llama", "llama_tied", "mistral", "qwen2", "qwen3", "smollm3"] {
        let folder = scratch();
        let (before, after) = both(&gguf(family, None), folder.path(), &ConvertOptions::default());
        // The same numbers through the same sums.
        assert!(before == after, "{family}: off by {}", max_abs_diff(&before, &after));
        assert!(before.iter().all(|l| l.is_finite()) && before.iter().any(|l| l.abs() > 0.1), "{family}");
        let made = folder.path().join("made");
        let config = config(&made);
        let usual = &config["quantization"];
        assert_eq!(usual["group_size"], 32, "{family}: {usual}");
        let bits = |module: &str| usual.get(module).unwrap_or(usual)["bits"].as_u64();
        assert_eq!(bits("model.embed_tokens"), Some(8), "{family}: {usual}");
        assert_eq!(bits("model.layers.1.mlp.up_proj"), Some(4), "{family}: {usual}");
        assert_eq!(config["quantization_config"], *usual);
        let reopened = Checkpoint::open(&made).unwrap();
        let of = |name: &str| reopened.get(name).unwrap().encoding.to_string();
        assert_eq!(of("model.layers.0.mlp.gate_proj.weight"), "affine5-g32-f16", "{family}");
        assert_eq!(of("model.layers.0.self_attn.q_proj.weight"), "affine4-g32-f16", "{family}");
        assert_eq!(of("model.norm.weight"), "f32", "{family}");
    }
}

#[test]
fn llama3_scaling_is_found_again_in_its_divisors() {
    let llama3 = Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max: 32 };
    let folder = scratch();
    let (before, after) = both(&gguf("llama", Some(&llama3)), folder.path(), &ConvertOptions::default());
    // A divisor of f32 leaves a frequency a last bit apart from the one worked out.
    assert_close(&after, &before, 1e-4, "logits");
    let config = config(&folder.path().join("made"));
    assert_eq!(config["rope_scaling"]["rope_type"], "llama3");
    assert_eq!(config["rope_scaling"]["factor"], 8.0);
    assert_eq!(config["rope_scaling"]["original_max_position_embeddings"], 32);
    // Others have no name.
    let odd: Vec<u8> = (1..=8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let file = gguf("llama", None).tensor("rope_freqs.weight", F32, &[8], &odd);
    let path = folder.path().join("odd.gguf");
    file.write(&path);
    let error =
        convert(&path, &folder.path().join("odd"), &ConvertOptions::default()).err().unwrap().to_string();
    assert!(error.contains("rope_freqs.weight") && error.contains("llama3"), "{error}");
}

/// What is asked for decides: only what has those bits and groups already is left as it is.
#[test]
fn asked_for_other_bits_gguf_is_requantized() {
    let folder = scratch();
    let (source, made) = (folder.path().join("model.gguf"), folder.path().join("made"));
    gguf("llama", None).write(&source);
    let plan = convert(&source, &made, &affine(4, 32)).unwrap();
    let how = |kind: &str| plan.rows.iter().find(|r| r.kind.ends_with(kind)).unwrap().how;
    assert_eq!(how("q_proj"), How::Lossless);
    assert_eq!(how("v_proj"), How::Lossless);
    assert_eq!(how("gate_proj"), How::Requantized);
    assert_eq!(how("embed_tokens"), How::Requantized);
    assert!(
        Checkpoint::open(&made)
            .unwrap()
            .tensors
            .values()
            .all(|t| { !t.encoding.is_quantized() || t.encoding.to_string() == "affine4-g32-f16" })
    );
}

#[test]
fn the_tokenizer_goes_along() {
    let folder = scratch();
    let (source, made) = (folder.path().join("model.gguf"), folder.path().join("made"));
    gguf("llama", None).write(&source);
    convert(&source, &made, &ConvertOptions::default()).unwrap();
    let before = loader::texts(&Checkpoint::open(&source).unwrap()).0.unwrap();
    let after = Tokenizer::from_folder(&made).unwrap();
    for (add_special, parse_special) in [(true, false), (false, true)] {
        for text in ["", "the other inside", "Hello, wörld 123\n\n  x", "<|im_end|> and the rest"] {
            let options = EncodeOptions { add_special, parse_special };
            assert_eq!(
                after.encode(text, options).unwrap(),
                before.encode(text, options).unwrap(),
                "{text:?}"
            );
        }
    }
    assert_eq!(after.end_of_generation_ids(), before.end_of_generation_ids());
    assert_eq!(after.named_tokens(), before.named_tokens());
    let (_, templates) = loader::texts(&Checkpoint::open(&made).unwrap());
    assert!(templates.pick(None, false).unwrap().source().contains("m['content']"));
    assert_eq!(config(&made)["eos_token_id"], testkit_tiny::END);
    let generation = std::fs::read_to_string(made.join("generation_config.json")).unwrap();
    assert!(generation.contains("\"eos_token_id\": 2"), "{generation}");
}
