#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::{Parser, ValueEnum};
use portolan::{
    models::{Model, RopeScaling},
    text::EncodeOptions,
    weights::{Checkpoint, Encoding, Planes, Source, decode_rows},
};

use super::models::{Cut, Name, spec};
use super::{Args, Plan, run};

/// Enough for the bytes and all that is made up.
const VOCAB: &str = "512";

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(name: Name, folder: &Path, more: &str) -> Args {
    let value = name.to_possible_value().unwrap();
    let folder = folder.to_str().unwrap();
    let fixed = ["synth", value.get_name(), "-o", folder, "--vocab", VOCAB];
    Command::parse_from(fixed.into_iter().chain(more.split_whitespace())).args
}

/// A small checkpoint in a folder that goes with it.
#[track_caller]
fn make(name: Name, more: &str) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    run(&args(name, dir.path(), more)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

/// The bytes of every file in a folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|e| e.path().is_file());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn parameters_are_those_of_the_published_models() {
    for (name, published) in [
        // The sums over the published files, as the model pages show them.
        (Name::Qwen3, 596_049_920),
        (Name::Llama31, 8_030_261_248),
        (Name::Qwen3Moe, 30_532_122_624),
        (Name::Mixtral, 46_702_792_704),
        // 20.91B in table 1 of the model card (arXiv 2508.10925).
        (Name::GptOss, 20_914_757_184),
        // 31.6B on the model page. The sum over its shapes: 31,577,937,344 in bf16, and 128 correction biases in
        // f32 for each of 23 routers.
        (Name::NemotronH, 31_577_940_288),
    ] {
        assert_eq!(spec(name, Cut::default()).parameters(), published, "{name:?}");
    }
}

#[test]
fn every_model_opens_with_the_tensors_of_its_dialect() {
    let check = |name: Name, more: &str, tensors: &[(&str, &[usize], &str)]| {
        let (_dir, checkpoint) = make(name, &format!("--layers 2 --experts 1 {more}"));
        for (tensor, shape, encoding) in tensors {
            let found = checkpoint.get(tensor).unwrap_or_else(|| panic!("{name:?} {more}: no {tensor}"));
            let found = (found.shape.as_slice(), found.encoding.to_string());
            assert_eq!((found.0, found.1.as_str()), (*shape, *encoding), "{tensor}");
        }
    };
    check(Name::Qwen3, "--bits 16", &[("model.layers.1.mlp.down_proj.weight", &[1024, 3072], "bf16")]);
    check(Name::Llama31, "--bits 4", &[("lm_head.weight", &[512, 4096], "affine4-g64-bf16")]);
    check(
        Name::Qwen3Moe,
        "--bits 4",
        &[
            ("model.layers.0.mlp.switch_mlp.down_proj.weight", &[1, 2048, 768], "affine4-g64-bf16"),
            ("model.layers.0.mlp.gate.weight", &[1, 2048], "affine8-g64-bf16"),
            ("model.layers.0.self_attn.q_norm.weight", &[128], "bf16"),
        ],
    );
    let gate = "blk.0.ffn_gate_exps.weight";
    check(Name::Qwen3Moe, "--gguf q8_0", &[(gate, &[1, 768, 2048], "affine8-g32-f16")]);
    let down = "model.layers.0.block_sparse_moe.switch_mlp.down_proj.weight";
    check(Name::Mixtral, "--bits 4", &[(down, &[1, 4096, 14_336], "affine4-g64-bf16")]);
    check(
        Name::GptOss,
        "--bits 4",
        &[
            ("model.layers.0.mlp.experts.gate_up_proj_blocks", &[1, 5760, 90, 16], "u8"),
            ("model.layers.0.mlp.experts.gate_up_proj_scales", &[1, 5760, 90], "u8"),
            ("model.layers.0.mlp.experts.down_proj_bias", &[1, 2880], "bf16"),
            ("model.layers.0.self_attn.sinks", &[64], "bf16"),
        ],
    );
    check(
        Name::GptOss,
        "--gguf q8_0",
        &[
            ("blk.0.ffn_up_exps.weight", &[1, 2880, 2880], "e2m1-g32-e8m0"),
            ("blk.0.ffn_down_exps.bias", &[1, 2880], "f32"),
        ],
    );
    check(
        Name::NemotronH,
        "--bits 4",
        &[
            ("backbone.layers.0.mixer.A_log", &[64], "bf16"),
            ("backbone.layers.1.mixer.gate.e_score_correction_bias", &[1], "f32"),
            ("backbone.layers.1.mixer.switch_mlp.fc1.weight", &[1, 1856, 2688], "affine4-g64-bf16"),
        ],
    );
    check(Name::NemotronH, "--gguf q4_0", &[("blk.0.ssm_conv1d.weight", &[6144, 4], "f32")]);
}

/// The large ones: their tensors are planned, not written.
#[test]
fn large_models_are_planned_with_the_names_of_their_dialect() {
    let check = |name: Name, more: &str, count: usize, tensor: &str, shape: &[usize]| {
        let plan = Plan::new(&args(name, Path::new("unused"), more)).unwrap();
        assert_eq!(plan.tensors.len(), count, "{name:?} {more}");
        let found = plan.tensors.iter().find(|t| t.name == tensor).unwrap_or_else(|| panic!("no {tensor}"));
        assert_eq!(found.shape, shape, "{tensor}");
    };
    // 32 layers of 4 + 2 + 1 + 3 * 8, and embedding, norm and head. MLX has three tensors for a matrix.
    check(
        Name::Mixtral,
        "--bits 16",
        995,
        "model.layers.31.block_sparse_moe.experts.7.w2.weight",
        &[4096, 14_336],
    );
    let stacked = "model.layers.31.block_sparse_moe.switch_mlp.down_proj.scales";
    check(Name::Mixtral, "--bits 4", 839, stacked, &[8, 4096, 224]);
    check(Name::Mixtral, "--gguf q4_0", 323, "blk.31.ffn_down_exps.weight", &[8, 4096, 14_336]);
    // 23 layers of Mamba-2 with 9, 23 of experts with 5 + 2 * 128, 6 of attention with 5, and 3.
    check(
        Name::NemotronH,
        "--bits 16",
        6243,
        "backbone.layers.51.mixer.experts.127.up_proj.weight",
        &[1856, 2688],
    );
    check(Name::NemotronH, "--bits 4", 729, "backbone.layers.0.mixer.conv1d.weight", &[6144, 4, 1]);
    check(Name::NemotronH, "--gguf q4_0", 401, "blk.0.ssm_norm.weight", &[8, 512]);
    check(
        Name::NemotronH,
        "--bits 8",
        729,
        "backbone.layers.1.mixer.switch_mlp.fc2.weight",
        &[128, 2688, 464],
    );
}

#[test]
fn models_that_this_tree_runs_become_graphs() {
    for name in [Name::Qwen3, Name::Llama31] {
        for more in ["--bits 4", "--gguf q4_0", "--dtype f16 --shard-gib 0.01"] {
            let (_dir, checkpoint) = make(name, &format!("--layers 2 {more}"));
            let model =
                Model::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name:?} {more}: {e}"));
            assert_eq!((model.config.layers, model.config.vocab.unwrap_or(512)), (2, 512));
            assert_eq!(model.config.tied, name == Name::Qwen3, "{more}");
            assert_eq!(matches!(model.config.rope.scaling, RopeScaling::None), name == Name::Qwen3, "{more}");
            assert_eq!(checkpoint.files.len() > 1, more.contains("shard"), "{more}");
        }
    }
}

#[test]
fn the_rope_of_both_formats_is_the_same() {
    let frequencies = |more: &str| {
        let (_dir, checkpoint) = make(Name::Llama31, &format!("--layers 1 {more}"));
        Model::from_checkpoint(&checkpoint).unwrap().config.rope.frequencies().inv_freq.clone()
    };
    let (json, gguf) = (frequencies("--bits 4"), frequencies("--gguf q4_0"));
    assert_eq!(json.len(), gguf.len());
    for (a, b) in json.iter().zip(&gguf) {
        // Divisors are f32, and each way rounds a few times.
        assert!((a - b).abs() <= 1e-6 * a.abs(), "{a} {b}");
    }
}

#[test]
fn bytes_depend_on_the_seed_alone() {
    for more in ["--bits 4", "--gguf q8_0"] {
        let bytes = |last: &str| {
            let (dir, _) = make(Name::Qwen3, &format!("--layers 2 {more} {last}"));
            contents(dir.path())
        };
        let one = bytes("--threads 1");
        assert!(one == bytes("--threads 7"), "{more}: threads change the bytes");
        assert!(one != bytes("--threads 1 --seed 1"), "{more}: the seed changes nothing");
    }
}

/// Mean and root mean square of the first rows of a tensor.
fn moments(checkpoint: &Checkpoint, tensor: &str) -> (f64, f64) {
    let info = checkpoint.get(tensor).unwrap_or_else(|| panic!("no {tensor}"));
    let (k, rows) = (info.k(), info.rows().min(256));
    let read = |span: &portolan::weights::Span| {
        let bytes = fs::read(&checkpoint.files[span.file]).unwrap();
        bytes[span.offset as usize..(span.offset + span.len) as usize].to_vec()
    };
    let mut out = vec![0.0; rows * k];
    match &info.source {
        Source::Planes(spans) => {
            let planes: Vec<_> = spans.iter().map(read).collect();
            let mut views = [&[] as &[u8]; 4];
            views.iter_mut().zip(&planes).for_each(|(view, plane)| *view = plane);
            decode_rows(&Planes { encoding: info.encoding, k, planes: views }, 0, &mut out);
        }
        Source::Blocks { .. } => out = checkpoint.read_f32(tensor).unwrap(),
    }
    let n = out.len() as f64;
    let mean = out.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    (mean, (out.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n).sqrt())
}

#[test]
fn weights_have_the_size_that_keeps_activations_at_one() {
    let check = |name: Name, more: &str, tensor: &str, mean: f64, rms: f64| {
        let (_dir, checkpoint) = make(name, &format!("--layers 1 {more}"));
        let (found_mean, found) = moments(&checkpoint, tensor);
        // At least 1024 numbers, within 0.1 of 1 where they are so few; from 260,000 on random rounding of scales
        // is all that is left.
        assert!((found / rms - 1.0).abs() < 0.02, "{more} {tensor}: root mean square {found}, not {rms}");
        assert!((found_mean - mean).abs() < 0.02 * rms, "{more} {tensor}: mean {found_mean}, not {mean}");
    };
    let rms = 1.0 / 1024f64.sqrt();
    for more in ["--bits 4", "--bits 16", "--bits 16 --dtype f16", "--bits 8 --group-size 32", "--bits 3"] {
        check(Name::Qwen3, more, "model.layers.0.self_attn.k_proj.weight", 0.0, rms);
    }
    for more in ["--gguf q4_0", "--gguf q4_1", "--gguf q8_0", "--gguf bf16", "--gguf f16"] {
        check(Name::Qwen3, more, "blk.0.attn_k.weight", 0.0, rms);
    }
    check(Name::Llama31, "--bits 4", "lm_head.weight", 0.0, 2.0 / 4096f64.sqrt());
    let experts = "--experts 1 --gguf q8_0";
    check(Name::GptOss, experts, "blk.0.ffn_up_exps.weight", 0.0, 1.0 / 2880f64.sqrt());
    check(Name::Qwen3, "--bits 4", "model.norm.weight", 1.0, 1.0);
    check(Name::Qwen3, "--gguf q4_0", "blk.0.ffn_norm.weight", 1.0, 1.0);
}

#[test]
fn a_gguf_file_brings_a_vocabulary() {
    let (_dir, checkpoint) = make(Name::Qwen3, "--layers 1 --gguf q4_0");
    let portolan::weights::ConfigSource::Gguf(metadata) = &checkpoint.config else { panic!("not GGUF") };
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 512);
    assert_eq!(metadata.ints("tokenizer.ggml.token_type").unwrap().len(), 512);
    let embedding = checkpoint.get("token_embd.weight").unwrap();
    assert!(
        matches!(embedding.encoding, Encoding::Affine { bits: 4, group: 32, .. }),
        "{:?}",
        embedding.encoding
    );
    let (tokenizer, _) = portolan::loader::texts(&checkpoint);
    let ids = tokenizer.unwrap().encode("the on", EncodeOptions::default()).unwrap();
    // "t" + "he", " " + "on": all merges that there are.
    assert_eq!(ids.len(), 4, "{ids:?}");
}

#[test]
fn a_folder_with_something_in_it_is_left_alone_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    fs::write(dir.path().join("model-00001-of-00009.safetensors"), "old").unwrap();
    let before = contents(dir.path());
    fs::create_dir(dir.path().join(".synth-killed")).unwrap();
    let error = run(&args(Name::Qwen3, dir.path(), "--layers 1")).unwrap_err().to_string();
    assert!(error.contains("not empty") && error.contains("--force"), "{error}");
    assert_eq!(contents(dir.path()), before);
    // What a killed run left goes too.
    run(&args(Name::Qwen3, dir.path(), "--layers 1 --force")).unwrap();
    let entries = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<_> = entries.collect();
    assert_eq!(Vec::from_iter(names), ["config.json", "model.safetensors", "notes.txt"]);
}

#[test]
fn a_tokenizer_is_copied_or_missed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let more = format!("--layers 1 --tokenizer {}", from.path().display());
    let error = run(&args(Name::Qwen3, to.path(), &more)).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    assert!(contents(to.path()).is_empty(), "something half-written is left");
    fs::write(from.path().join("tokenizer.json"), "{}").unwrap();
    run(&args(Name::Qwen3, to.path(), &more)).unwrap();
    assert_eq!(contents(to.path())["tokenizer.json"], b"{}");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let check = |name: Name, more: &str, said: &str| {
        let error = run(&args(name, Path::new("unused"), &format!("--plan {more}"))).unwrap_err().to_string();
        assert!(error.contains(said), "{more}: {error}");
    };
    check(Name::Qwen3, "--bits 7", "2, 3, 4, 5, 6, 8 or 16");
    check(Name::Qwen3, "--group-size 48", "32, 64 or 128");
    check(Name::Qwen3, "--layers 0", "at least 1");
    check(Name::Qwen3, "--shard-gib 0", "more than 0");
    check(Name::GptOss, "--bits 8", "MXFP4");
    check(Name::NemotronH, "--group-size 128", "rows of 1856");
}
