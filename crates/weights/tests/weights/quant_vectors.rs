//! Every vector of the oracle under quant/, through open and load, to the bit.

use portolan_testkit::{Tensors, fixture, oracle};
use portolan_weights::{Checkpoint, Dialect, Expr};

use crate::support::{assert_same, folder, load_expr, values, write};

#[test]
fn mlx_vectors() {
    let Some(dir) = oracle("quant/mlx") else { return };
    let mut done = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".safetensors") else {
            continue;
        };
        let parts: Vec<&str> = name.split('-').collect();
        let [mode, bits, group, dtype] = parts[..] else { panic!("{name}") };
        let vector = Tensors::open(&path);
        let meta = match (mode, dtype) {
            ("affine", "bfloat16") => "BF16",
            ("affine", "float16") => "F16",
            ("affine", "float32") => "F32",
            _ => "U8",
        };
        let mut file = fixture::Safetensors::new()
            .tensor("m.weight", "U32", &vector.shape("wq"), &vector.bytes("wq"))
            .tensor("m.scales", meta, &vector.shape("scales"), &vector.bytes("scales"));
        if vector.has("biases") {
            file = file.tensor("m.biases", meta, &vector.shape("biases"), &vector.bytes("biases"));
        }
        let dir = folder();
        file.write(dir.path().join("model.safetensors"));
        let config = format!(
            r#"{{"quantization": {{"mode": "{mode}", "bits": {}, "group_size": {}}}}}"#,
            &bits[1..],
            &group[1..]
        );
        write(dir.path(), "config.json", &config);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.dialect, Dialect::Mlx, "{name}");
        assert_eq!(checkpoint.tensors.len(), 1, "{name}");
        // A scale of f16 or bf16 times a code is exact in f32, and one rounding is left, in the sum. A scale
        // of f32 is not: MLX rounds product and sum, as the definition here does; the oracle's own figure
        // rounds once.
        let twice = dtype == "float32";
        let expected = vector.f32(if twice { "mlx_dequantized" } else { "dequantized_f32_exact" });
        assert_same(&values(&checkpoint, "m.weight"), &expected, name);
        let decoded = load_expr(&checkpoint, Expr::source("m.weight").f32()).unwrap();
        assert_same(&decoded.decode(), &expected, name);
        done += 1;
    }
    assert!(done >= 35, "only {done} vectors were found");
}

#[test]
fn gguf_vectors() {
    let Some(dir) = oracle("quant/gguf") else { return };
    let index: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("index.json")).unwrap()).unwrap();
    let supported =
        ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"];
    for name in supported {
        let vector = Tensors::open(dir.join(format!("{name}.safetensors")));
        let kind = index[name]["type_id"].as_u64().unwrap() as u32;
        let dir = folder();
        let path = dir.path().join("model.gguf");
        fixture::Gguf::new().tensor("w", kind, &vector.shape("expected"), &vector.bytes("raw")).write(&path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let expected = vector.f32("expected");
        assert_same(&values(&checkpoint, "w"), &expected, name);
        let decoded = load_expr(&checkpoint, Expr::source("w").f32()).unwrap();
        assert_same(&decoded.decode(), &expected, name);
    }
}
