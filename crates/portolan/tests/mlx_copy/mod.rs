//! A GGUF checkpoint of Q4_1 and Q8_0 blocks written again, without loss, as an MLX one.
//!
//! Q4_1: 32 elements in an f16 scale `d`, an f16 minimum `m` and 16 bytes, `w = d q + m`, the first half in the low
//! nibbles. That is MLX's affine 4 bits in groups of 32 with scale `d` and bias `m`. Q8_0: an f16 scale and 32 signed
//! bytes, `w = d q`. That is affine 8 bits with code `q + 128`, scale `d` and bias `-128 d`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use half::f16;
use portolan::weights::{Checkpoint, Source, TensorInfo, gguf::BlockFormat};
use portolan_testkit::fixture::Safetensors;
use serde_json::{Value, json};

const GROUP: usize = 32;
const MODULES: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// Writes the copy of `gguf` into `folder`; configuration and tokenizer come from `hf`.
pub(crate) fn write(gguf: &Path, hf: &Path, folder: &Path) {
    let config: Value = serde_json::from_slice(&std::fs::read(hf.join("config.json")).unwrap()).unwrap();
    let heads = |key: &str| config[key].as_u64().unwrap() as usize;
    let (heads, kv_heads) = (heads("num_attention_heads"), heads("num_key_value_heads"));
    let checkpoint = Checkpoint::open(gguf).unwrap();
    let file = File::open(gguf).unwrap();
    let mut out = Safetensors::new().metadata("format", "mlx");
    for tensor in checkpoint.tensors.values() {
        let span = &tensor.spans()[0];
        let mut bytes = vec![0; span.len as usize];
        file.read_exact_at(&mut bytes, span.offset).unwrap();
        let base = module(&tensor.name);
        let Source::Blocks { format, .. } = &tensor.source else {
            out = out.tensor(&format!("{base}.weight"), "F32", &tensor.shape, &bytes);
            continue;
        };
        let mut parts = split(tensor, *format, &bytes);
        for (projection, heads) in [("q_proj", heads), ("k_proj", kv_heads)] {
            if base.ends_with(projection) {
                parts = parts.map(|plane| unpermute(&plane, tensor.shape[0], heads));
            }
        }
        let [codes, scales, biases] = parts;
        let (rows, k) = (tensor.shape[0], tensor.shape[1]);
        out = out
            .tensor(&format!("{base}.weight"), "U32", &[rows, codes.len() / rows / 4], &codes)
            .tensor(&format!("{base}.scales"), "F16", &[rows, k / GROUP], &scales)
            .tensor(&format!("{base}.biases"), "F16", &[rows, k / GROUP], &biases);
    }
    out.write(folder.join("model.safetensors"));
    let mut config = config;
    config["torch_dtype"] = "float16".into();
    config["quantization"] = json!({"group_size": GROUP, "bits": 4, "mode": "affine",
        "model.embed_tokens": {"group_size": GROUP, "bits": 8, "mode": "affine"}});
    config["quantization_config"] = config["quantization"].clone();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(hf.join(name), folder.join(name)).unwrap();
    }
}

fn module(name: &str) -> String {
    match name.split('.').collect::<Vec<_>>()[..] {
        ["token_embd", _] => "model.embed_tokens".to_owned(),
        ["output_norm", _] => "model.norm".to_owned(),
        ["blk", layer, part, _] => {
            let (_, hf) = MODULES.iter().find(|(gguf, _)| *gguf == part).unwrap();
            format!("model.layers.{layer}.{hf}")
        }
        _ => panic!("an unknown tensor {name}"),
    }
}

/// Codes, scales and biases, row after row.
fn split(tensor: &TensorInfo, format: BlockFormat, bytes: &[u8]) -> [Vec<u8>; 3] {
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for block in bytes.chunks_exact(format.bytes()) {
        scales.extend_from_slice(&block[..2]);
        match format.name() {
            "Q4_1" => {
                biases.extend_from_slice(&block[2..4]);
                let q = &block[4..];
                let code = |i: usize| if i < 16 { q[i] & 15 } else { q[i - 16] >> 4 };
                codes.extend((0..16).map(|pair| code(2 * pair) | code(2 * pair + 1) << 4));
            }
            "Q8_0" => {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                biases.extend(f16::from_f32(-128.0 * scale).to_le_bytes());
                codes.extend(block[2..].iter().map(|&q| (q as i8 as i16 + 128) as u8));
            }
            other => panic!("{} is in {other}", tensor.name),
        }
    }
    [codes, scales, biases]
}

/// GGUF's rows 2i and 2i + 1 of a head are rows i and i + half of it.
fn unpermute(plane: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (head, row) = (rows / heads, plane.len() / rows);
    let from = |to: usize| (to / head) * head + 2 * (to % head % (head / 2)) + to % head / (head / 2);
    (0..rows).flat_map(|to| &plane[from(to) * row..][..row]).copied().collect()
}
