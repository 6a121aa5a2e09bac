//! Quantized modules: config against shapes.

use portolan_device::DType;
use portolan_testkit::fixture::Safetensors;
use portolan_weights::{Checkpoint, Encoding, Result, WeightError};
use proptest::prelude::*;

use crate::support::{folder, write};

/// A module of `rows` rows of `k` elements, all zero.
fn module(file: Safetensors, name: &str, rows: usize, k: usize, bits: usize, group: usize) -> Safetensors {
    let (columns, groups) = (k * bits / 32, k / group);
    let meta = vec![0; rows * groups * 2];
    file.tensor(&format!("{name}.weight"), "U32", &[rows, columns], &vec![0; rows * columns * 4])
        .tensor(&format!("{name}.scales"), "F16", &[rows, groups], &meta)
        .tensor(&format!("{name}.biases"), "F16", &[rows, groups], &meta)
}

fn open(file: &Safetensors, quantization: &str) -> Result<Checkpoint> {
    let dir = folder();
    file.write(dir.path().join("model.safetensors"));
    write(dir.path(), "config.json", &format!(r#"{{"quantization": {quantization}}}"#));
    Checkpoint::open(dir.path())
}

fn affine(bits: u8, group: u16) -> Encoding {
    Encoding::Affine { bits, group, meta: DType::F16 }
}

/// mlx-lm #1451 and mlx-vlm #1079 are the same.
#[test]
fn mlx_lm_1214_per_layer_override_on_on_disk_names() {
    // 6 bits of 512 elements are 96 columns, as 4 bits of 768 would be: only the override tells. It is found
    // under the name in the file, whatever a loader may rename it to.
    let name = "language_model.model.layers.0.mlp.down_proj";
    let file = module(module(Safetensors::new(), name, 4, 512, 6, 64), "model.up_proj", 4, 512, 4, 64);
    let quantization =
        format!(r#"{{"bits": 4, "group_size": 64, "{name}": {{"bits": 6, "group_size": 64}}}}"#);
    let checkpoint = open(&file, &quantization).unwrap();
    let down = checkpoint.get(&format!("{name}.weight")).unwrap();
    assert_eq!((down.shape.as_slice(), down.encoding), (&[4, 512][..], affine(6, 64)));
    let up = checkpoint.get("model.up_proj.weight").unwrap();
    assert_eq!((up.shape.as_slice(), up.encoding), (&[4, 512][..], affine(4, 64)));
    assert_eq!(checkpoint.tensors.len(), 2);
}

#[track_caller]
fn reads_as(k: usize, bits: usize, group: usize, quantization: &str, norm: usize) {
    let file = module(Safetensors::new(), "m", 2, k, bits, group).f32("norm", &[norm], &vec![0.0; norm]);
    let checkpoint = open(&file, quantization).unwrap();
    let tensor = checkpoint.get("m.weight").unwrap();
    assert_eq!((tensor.shape.as_slice(), tensor.encoding), (&[2, k][..], affine(bits as u8, group as u16)));
}

#[test]
fn shapes_win_over_a_wrong_default() {
    // The group is kept, and the bits follow.
    reads_as(256, 8, 64, r#"{"bits": 4, "group_size": 64}"#, 7);
    reads_as(256, 6, 64, r#"{"bits": 4, "group_size": 64}"#, 7);
    reads_as(256, 3, 128, r#"{"bits": 4, "group_size": 128}"#, 7);
    // No bits go with 64 here, so the bits are kept.
    reads_as(256, 4, 128, r#"{"bits": 4, "group_size": 32, "mode": "affine"}"#, 256);
    // 4 bits in 32 or 2 bits in 64: the length of a norm decides.
    reads_as(256, 4, 32, r#"{"bits": 4, "group_size": 64}"#, 256);
    reads_as(512, 2, 64, r#"{"bits": 4, "group_size": 64}"#, 512);
    // The default's mode does not matter where the dtype of the scales says otherwise.
    reads_as(256, 8, 64, r#"{"bits": 4, "group_size": 32, "mode": "mxfp4"}"#, 256);
    // No quantization in the config at all.
    reads_as(256, 4, 64, "null", 256);
    // `"group_size": null` is 64.
    reads_as(256, 8, 64, r#"{"bits": 4, "group_size": 32, "m": {"bits": 8, "group_size": null}}"#, 7);
}

#[track_caller]
fn refused(file: &Safetensors, quantization: &str, expected: &str) {
    let error = open(file, quantization).unwrap_err();
    assert!(matches!(&error, WeightError::Quantization { module, .. } if module == "m"), "{error:?}");
    assert!(error.to_string().contains(expected), "'{error}' does not say '{expected}'");
}

#[test]
fn contradictions_are_errors_with_the_numbers() {
    let good = || module(Safetensors::new(), "m", 2, 256, 4, 64);
    refused(
        &good(),
        r#"{"bits": 4, "group_size": 64, "m": {"bits": 8, "group_size": 64}}"#,
        "bits * group is 256",
    );
    refused(&good(), r#"{"bits": 4, "group_size": 64, "m": false}"#, "not quantized");
    refused(&good(), r#"{"bits": 4, "m": {"mode": "int4"}}"#, "int4");
    let u32s =
        |columns: usize| Safetensors::new().tensor("m.weight", "U32", &[2, columns], &vec![0; 8 * columns]);
    let scales = |file: Safetensors, dtype: &str, shape: &[usize], size: usize| {
        let bytes = vec![0; shape.iter().product::<usize>() * size];
        file.tensor("m.scales", dtype, shape, &bytes)
    };
    refused(&scales(u32s(32), "F16", &[3, 4], 2), "{}", "different rows");
    refused(&scales(u32s(32), "F16", &[2, 3], 2), "{}", "do not divide");
    refused(&scales(u32s(32), "F16", &[2, 0], 2), "{}", "do not divide");
    refused(&scales(u32s(32), "F16", &[2, 4], 2), "{}", "no biases");
    refused(&scales(u32s(32), "I32", &[2, 4], 4), "{}", "scales are i32");
    // 32 columns of 32 bits over 2 scales: no small float has 512 bits a group.
    refused(&scales(u32s(32), "U8", &[2, 2], 1), "{}", "product of 512");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bits_and_group_by_override(
        bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
        group in prop::sample::select(vec![32usize, 64, 128]),
        groups in 1usize..5,
    ) {
        let file = module(Safetensors::new(), "m", 2, group * groups, bits, group);
        let quantization =
            format!(r#"{{"bits": 4, "group_size": 64, "m": {{"bits": {bits}, "group_size": {group}}}}}"#);
        let checkpoint = open(&file, &quantization).unwrap();
        let tensor = checkpoint.get("m.weight").unwrap();
        prop_assert_eq!(tensor.encoding, affine(bits as u8, group as u16));
        prop_assert_eq!(tensor.k(), group * groups);
        prop_assert_eq!(tensor.bytes() as u64, tensor.file_bytes());
    }
}
