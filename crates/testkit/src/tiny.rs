//! Tiny checkpoints in a folder of the test's own: a committed one, changed at will, and given a voice.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Tensors, fixture::Safetensors};

/// The token `<|im_start|>`.
pub const START: u32 = 1;
/// The token `<|im_end|>`, which ends a text.
pub const END: u32 = 2;

/// Every field of `config.json` that a family reads.
pub const CONFIG_FIELDS: &[&str] = &[
    "architectures",
    "attention_bias",
    "eos_token_id",
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
    "torch_dtype",
    "use_sliding_window",
    "vocab_size",
];

/// Every field of its `rope_scaling` or `rope_parameters`.
pub const ROPE_FIELDS: &[&str] = &[
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
    "type",
];

/// Fills `folder` with the weights and the configuration of the committed checkpoint `data/tiny/<name>`.
///
/// # Panics
/// When a file cannot be copied.
#[track_caller]
pub fn copy(name: &str, folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny").join(name);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(file), folder.join(file)).expect("the committed checkpoint can be copied");
    }
}

/// As [`copy`], with a tokenizer and a chat template beside it: a model that speaks, though nonsense.
#[track_caller]
pub fn copy_with_text(name: &str, folder: &Path) {
    copy(name, folder);
    let write = |file: &str, value: Value| {
        std::fs::write(folder.join(file), value.to_string()).expect("the fixture can be written");
    };
    write("tokenizer.json", tokenizer(512));
    write("tokenizer_config.json", tokenizer_config());
    write("generation_config.json", json!({"eos_token_id": END}));
}

/// A byte-level BPE with `vocab` tokens: three special ones, the 256 bytes, then pairs of letters, the commonest first.
pub fn tokenizer(vocab: usize) -> Value {
    const SPECIAL: [&str; 3] = ["<|pad|>", "<|im_start|>", "<|im_end|>"];
    const LETTERS: &str = "etaoinshrdlucmfwypvbgk";
    let mut tokens: Vec<String> = SPECIAL.map(str::to_owned).to_vec();
    tokens.extend(byte_characters().iter().map(char::to_string));
    let space = byte_characters()[usize::from(b' ')];
    let firsts = std::iter::once(space).chain(LETTERS.chars());
    let pairs: Vec<[String; 2]> = firsts
        .flat_map(|a| LETTERS.chars().map(move |b| [a.to_string(), b.to_string()]))
        .take(vocab.saturating_sub(tokens.len()))
        .collect();
    tokens.extend(pairs.iter().map(|pair| pair.concat()));
    let ids: Map<String, Value> = tokens.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    let special = |(id, content): (usize, &&str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": SPECIAL.iter().enumerate().map(special).collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": ids, "merges": pairs},
    })
}

fn tokenizer_config() -> Value {
    json!({
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n\
                          {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    })
}

/// GPT-2's spelling of the 256 bytes: those that are printable stand for themselves.
fn byte_characters() -> Vec<char> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = '\u{100}'..;
    (0..=255u8).filter_map(|b| if printable(b) { Some(char::from(b)) } else { others.next() }).collect()
}

/// Changes `config.json` in `folder`.
///
/// # Panics
/// When it cannot be read or written.
#[track_caller]
pub fn edit_config(folder: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.join("config.json");
    let text = std::fs::read(&path).expect("the fixture can be read");
    let mut config: Map<String, Value> = serde_json::from_slice(&text).expect("it is JSON");
    edit(&mut config);
    std::fs::write(path, Value::from(config).to_string()).expect("the fixture can be written");
}

/// One tensor of a file that is rewritten.
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The tensors of `folder`'s `model.safetensors`, each as `edit` leaves it; without those for which it says false.
#[track_caller]
pub fn edited_tensors(folder: &Path, mut edit: impl FnMut(&mut Tensor<'_>) -> bool) -> Safetensors {
    let tensors = Tensors::open(folder.join("model.safetensors"));
    let mut names = tensors.names();
    names.sort();
    let mut file = Safetensors::new();
    for name in &names {
        let mut tensor = Tensor { name, shape: tensors.shape(name), bytes: tensors.bytes(name) };
        if edit(&mut tensor) {
            file = file.tensor(name, &tensors.dtype(name), &tensor.shape, &tensor.bytes);
        }
    }
    file
}
