//! The same checkpoints, converted by mlx_lm.convert: the same files, but for their order.

use portolan::tools::convert::{ConvertOptions, How, QuantMode};
use portolan_testkit::{Tensors, assert_close, oracle};

use crate::{affine, config, convert, exact, options, scratch, tiny};

/// Every tensor has the bits of MLX's own, and the logits are those that MLX computed from them.
#[track_caller]
fn check(family: &str, name: &str, options: &ConvertOptions, window: bool) {
    let Some(expected) = oracle(&format!("mlx/{family}-{name}")) else { return };
    let folder = scratch();
    let made = folder.path().join("made");
    convert(&tiny(family), &made, options).unwrap();
    let (ours, theirs) =
        (Tensors::open(made.join("model.safetensors")), Tensors::open(expected.join("model.safetensors")));
    let sorted = |tensors: &Tensors| {
        let mut names = tensors.names();
        names.sort();
        names
    };
    assert_eq!(sorted(&ours), sorted(&theirs), "{family}-{name}: tensors");
    for tensor in theirs.names() {
        let both = [&ours, &theirs].map(|t| (t.dtype(&tensor), t.shape(&tensor), t.bytes(&tensor)));
        assert!(both[0] == both[1], "{family}-{name}: {tensor} differs from MLX's");
    }
    for key in ["quantization", "quantization_config", "model_type", "rope_theta", "tie_word_embeddings"] {
        assert_eq!(config(&made)[key], config(&expected)[key], "{family}-{name}: {key}");
    }
    let reference = Tensors::open(expected.join("reference.safetensors"));
    let (ids, logits) = (reference.ids("input_ids"), reference.f32("logits"));
    let found = exact(&made, &ids);
    // MLX leaves Mistral's window out; within the first one the two agree.
    let inside = if window { config(&made)["sliding_window"].as_u64().unwrap() as usize } else { ids.len() };
    let inside = inside * (logits.len() / ids.len());
    assert_close(&found[..inside], &logits[..inside], 1e-3, &format!("{family}-{name}: logits"));
}

#[test]
fn what_mlx_converts_comes_out_the_same() {
    for family in ["llama", "qwen3"] {
        check(family, "affine-4b-g32", &affine(4, 32), false);
        check(family, "affine-4b-g64", &affine(4, 64), false);
        check(family, "affine-8b-g64", &affine(8, 64), false);
    }
    check("llama", "mxfp4-4b-g32", &options(None, None, Some(QuantMode::MxFp4), &[]), false);
    check("mistral", "affine-4b-g64", &affine(4, 64), true);
    check("llama_tied", "affine-4b-g64", &affine(4, 64), false);
    // 4 bits in groups of 64 are what nobody has to ask for.
    check("llama", "affine-4b-g64", &ConvertOptions::default(), false);
}

/// An MLX checkpoint that has what is asked for is written as it is.
#[test]
fn mlx_to_mlx_changes_nothing_unless_asked() {
    let names = ["llama-affine-4b-g32", "llama-affine-8b-g64", "llama-mxfp4-4b-g32", "llama-mxfp8-8b-g32"];
    for name in names {
        let Some(source) = oracle(&format!("mlx/{name}")) else { continue };
        let folder = scratch();
        let made = folder.path().join("made");
        let plan = convert(&source, &made, &ConvertOptions::default()).unwrap();
        assert!(
            plan.rows.iter().all(|r| matches!(r.how, How::Lossless | How::Kept)),
            "{name}: {:?}",
            plan.rows
        );
        assert_eq!(plan.bytes_in, plan.bytes_out, "{name}");
        let (ours, theirs) =
            (Tensors::open(made.join("model.safetensors")), Tensors::open(source.join("model.safetensors")));
        for tensor in theirs.names() {
            assert!(ours.bytes(&tensor) == theirs.bytes(&tensor), "{name}: {tensor}");
        }
        assert_eq!(config(&made)["quantization"], config(&source)["quantization"], "{name}");
    }
}

#[test]
fn mlx_to_fewer_bits_is_requantized() {
    let Some(source) = oracle("mlx/llama-affine-8b-g64") else { return };
    let folder = scratch();
    let made = folder.path().join("made");
    let plan = convert(&source, &made, &affine(4, 32)).unwrap();
    assert!(plan.rows.iter().all(|r| r.how == How::Requantized || r.how == How::Kept), "{:?}", plan.rows);
    assert_eq!(crate::encoding(&made, "lm_head.weight"), "affine4-g32-bf16");
    // It is another model now, but not a broken one.
    let (before, after) = (exact(&source, &crate::IDS), exact(&made, &crate::IDS));
    let rms = |v: &[f32]| (v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32).sqrt();
    let error = rms(&before.iter().zip(&after).map(|(a, b)| a - b).collect::<Vec<_>>()) / rms(&before);
    assert!(error > 1e-4 && error < 0.6, "the logits moved by {error} of their size");
}
