//! Every checkpoint of the oracle opens; small dense ones load to the numbers in their files.

use portolan_testkit::{Tensors, oracle};
use portolan_weights::{Checkpoint, ConfigSource, Dialect, Encoding, Expr};

use crate::support::{load_requests, request, values};

#[track_caller]
fn open_all(sub: &str, least: usize) -> Vec<Checkpoint> {
    let Some(dir) = oracle(sub) else { return Vec::new() };
    let mut folders: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= least, "only {} checkpoints under {}", folders.len(), dir.display());
    folders
        .iter()
        .map(|folder| {
            // The reference beside the model is no part of it.
            let checkpoint = Checkpoint::open(folder).unwrap_or_else(|e| panic!("{e}"));
            assert!(!checkpoint.contains("logits"), "{}", folder.display());
            assert!(matches!(checkpoint.config, ConfigSource::Json(_)), "{}", folder.display());
            checkpoint
        })
        .collect()
}

/// What is committed, then the whole oracle where it is there.
#[test]
fn tiny_checkpoints_open() {
    for checkpoint in open_all("tiny", 7) {
        assert_eq!(checkpoint.dialect, Dialect::Hf, "{}", checkpoint.path.display());
    }
    if let Some(whole) = std::env::var_os("PORTOLAN_ORACLE").filter(|root| !root.is_empty()) {
        for sub in ["tiny", "mlx"] {
            for entry in std::fs::read_dir(std::path::Path::new(&whole).join(sub)).unwrap() {
                let path = entry.unwrap().path();
                Checkpoint::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }
}

#[test]
fn mlx_checkpoints_open_and_load() {
    for checkpoint in open_all("mlx", 10) {
        let what = checkpoint.path.display().to_string();
        assert_eq!(checkpoint.dialect, Dialect::Mlx, "{what}");
        assert!(
            !checkpoint.tensors.keys().any(|n| n.ends_with(".scales") || n.ends_with(".biases")),
            "{what}"
        );
        let q = checkpoint.get("model.layers.0.self_attn.q_proj.weight").unwrap();
        let hidden = checkpoint.get("model.norm.weight").unwrap().k();
        assert_eq!(q.k(), hidden, "{what}");
        assert!(q.encoding.is_quantized(), "{what}");
        let all = checkpoint.tensors.keys().map(|n| request(n, Expr::source(n))).collect();
        let (loaded, stats) = load_requests(&checkpoint, all, 2).unwrap();
        assert_eq!(loaded.len(), stats.direct_tensors, "{what}: planes need no scratch");
        assert_eq!(stats.unused_tensors, 0);
        for weight in loaded {
            assert!(weight.decode().iter().all(|v| v.is_finite()), "{what}: {}", weight.weight.name);
        }
    }
}

#[track_caller]
fn check(family: &str) {
    let Some(dir) = oracle(&format!("tiny/{family}")) else { return };
    let checkpoint = Checkpoint::open(&dir).unwrap();
    for file in &checkpoint.files {
        let expected = Tensors::open(file);
        for name in expected.names() {
            let tensor = checkpoint.get(&name).unwrap();
            assert_eq!(tensor.shape, expected.shape(&name), "{name}");
            assert_eq!(tensor.encoding, Encoding::Dense(portolan_device::DType::BF16), "{name}");
            assert_eq!(values(&checkpoint, &name), expected.f32(&name), "{family}: {name}");
        }
    }
}

#[test]
fn dense_families_load() {
    check("llama");
    check("llama_sharded");
    check("llama_tied");
    check("mistral");
    check("qwen2");
    check("qwen3");
    check("smollm3");
}
