//! Any bytes at all, and valid files with some bytes changed: an error or a checkpoint, never a panic.

use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{Checkpoint, Expr};
use proptest::prelude::*;

use crate::support::{folder, load_expr};

fn safetensors() -> Vec<u8> {
    Safetensors::new()
        .metadata("format", "pt")
        .f32("norm", &[64], &[1.0; 64])
        .tensor("m.weight", "U32", &[2, 8], &[7; 64])
        .tensor("m.scales", "F16", &[2, 1], &[0; 4])
        .tensor("m.biases", "F16", &[2, 1], &[0; 4])
        .bytes()
}

fn gguf() -> Vec<u8> {
    Gguf::new()
        .str("general.architecture", "llama")
        .strings("tokens", &["a", "b"])
        .i32s("types", &[1, 2])
        .tensor("norm", 0, &[4], &[0; 16])
        .tensor("w", 12, &[1, 256], &[1; 144])
        .bytes()
}

/// Opens the bytes as a file, and loads every tensor if that works.
fn exercise(name: &str, bytes: &[u8]) {
    let dir = folder();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    match Checkpoint::open(&path) {
        Ok(checkpoint) => {
            for name in checkpoint.tensors.keys() {
                let _ = load_expr(&checkpoint, Expr::source(name));
            }
        }
        Err(error) => assert!(error.to_string().contains(name), "{error}"),
    }
}

#[test]
fn the_files_that_are_mutated_are_good() {
    for (name, bytes) in [("m.safetensors", safetensors()), ("m.gguf", gguf())] {
        let dir = folder();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Checkpoint::open(&path).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), gguf: bool) {
        exercise(if gguf { "m.gguf" } else { "m.safetensors" }, &bytes);
    }

    #[test]
    fn arbitrary_header(json in r#"\{("[a-z]":\{("dtype":"(F32|U8|F64)",?|"shape":\[[0-9]{0,20}(,[0-9]{1,3})?\],?|"data_offsets":\[[0-9]{1,3},[0-9]{1,20}\],?){0,3}\},?){0,3}\}"#, data in 0usize..64) {
        let bytes = portolan_testkit::fixture::safetensors_with_header(&json, &vec![0; data]);
        exercise("m.safetensors", &bytes);
    }

    #[test]
    fn gguf_magic_then_anything(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise("m.gguf", &[b"GGUF\x03\0\0\0".as_slice(), &rest].concat());
    }

    #[test]
    fn changed_bytes(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), gguf_file: bool) {
        let mut bytes = if gguf_file { gguf() } else { safetensors() };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(if gguf_file { "m.gguf" } else { "m.safetensors" }, &bytes);
    }

    #[test]
    fn round_trip(
        shape in prop::collection::vec(1usize..6, 0..4),
        seed: u32,
    ) {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n as u32).map(|i| (seed.wrapping_mul(i + 1) >> 8) as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for (name, file) in [
            ("m.safetensors", Safetensors::new().f32("w", &shape, &values).bytes()),
            ("m.gguf", Gguf::new().tensor("w", 0, &shape, &bytes).bytes()),
        ] {
            let dir = folder();
            let path = dir.path().join(name);
            std::fs::write(&path, file).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            let loaded = load_expr(&checkpoint, Expr::source("w")).unwrap();
            prop_assert_eq!(&loaded.weight.shape, &shape);
            prop_assert_eq!(loaded.decode(), values.clone());
        }
    }
}
