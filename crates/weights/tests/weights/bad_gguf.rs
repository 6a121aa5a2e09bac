//! Every way in which a GGUF file can be broken has its own error, with the file and the numbers.

use portolan_testkit::fixture::Gguf;
use portolan_weights::{Checkpoint, ConfigSource, Encoding, WeightError, gguf::Array};

use crate::support::{folder, open_error, values};

fn good() -> Gguf {
    Gguf::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10000.0)
        .bool("flag", true)
        .strings("tokens", &["a", "b", "ü"])
        .i32s("types", &[1, -2, 3])
        .f32s("scores", &[0.5, -1.0])
        .tensor("norm", 0, &[4], &[0; 16])
        .tensor("w", 8, &[2, 32], &[1; 68])
}

#[track_caller]
fn check(file: &Gguf, expected: &str, right: impl Fn(&WeightError) -> bool) {
    let error = open_error("model.gguf", &file.bytes());
    assert!(right(&error), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(expected), "'{text}' does not say '{expected}'");
}

#[test]
fn versions_metadata_and_alignment() {
    for file in [good(), good().version(2), Gguf::new().alignment(64).tensor("w", 0, &[1], &[0; 4])] {
        let dir = folder();
        let path = dir.path().join("m.gguf");
        file.write(&path);
        Checkpoint::open(&path).unwrap();
    }
    let dir = folder();
    let path = dir.path().join("m.gguf");
    good().write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let ConfigSource::Gguf(metadata) = &checkpoint.config else { panic!("a GGUF file has metadata") };
    assert_eq!(metadata.architecture(), Some("llama"));
    assert_eq!(metadata.u32("llama.block_count"), Some(2));
    assert_eq!(metadata.i32("llama.block_count"), Some(2));
    assert_eq!(metadata.f32("llama.rope.freq_base"), Some(10000.0));
    assert_eq!(metadata.bool("flag"), Some(true));
    assert_eq!(metadata.strings("tokens").unwrap(), ["a", "b", "ü"]);
    assert_eq!(metadata.ints("types").unwrap(), [1, -2, 3]);
    assert_eq!(metadata.floats("scores").unwrap(), [0.5, -1.0]);
    assert_eq!(metadata.array("scores").map(Array::len), Some(2));
    // Of another type, or absent.
    assert_eq!(metadata.u32("tokens"), None);
    assert_eq!(metadata.str("flag"), None);
    assert_eq!(metadata.str("nothing"), None);
    let order: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(order[..2], ["general.architecture", "llama.block_count"]);
}

#[test]
fn integers_of_every_width() {
    let file = Gguf::new()
        .entry("u8", 0, &[200])
        .entry("i8", 1, &[0xff])
        .entry("u16", 2, &60000u16.to_le_bytes())
        .entry("i16", 3, &(-3i16).to_le_bytes())
        .entry("u64", 10, &(1u64 << 40).to_le_bytes())
        .entry("i64", 11, &(-5i64).to_le_bytes())
        .entry("f64", 12, &0.25f64.to_le_bytes())
        .list("u16s", 2, 2, &[1, 0, 0, 1])
        .list("nested", 9, 1, &[0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 9]);
    let dir = folder();
    let path = dir.path().join("m.gguf");
    file.write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let ConfigSource::Gguf(m) = &checkpoint.config else { panic!("a GGUF file has metadata") };
    assert_eq!((m.u32("u8"), m.i64("i8"), m.u64("i8")), (Some(200), Some(-1), None));
    assert_eq!((m.u32("u16"), m.i32("i16")), (Some(60000), Some(-3)));
    assert_eq!((m.u64("u64"), m.u32("u64"), m.i64("i64")), (Some(1 << 40), None, Some(-5)));
    assert_eq!((m.f32("f64"), m.ints("u16s")), (Some(0.25), Some(&[1, 256][..])));
    assert_eq!(m.array("nested"), Some(&Array::Arrays(vec![Array::Ints(vec![7, 9])])));
}

#[test]
fn dimensions_are_turned_round() {
    let bytes: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let dir = folder();
    let path = dir.path().join("m.gguf");
    Gguf::new().tensor("w", 0, &[2, 3], &bytes).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensor = checkpoint.get("w").unwrap();
    assert_eq!((tensor.rows(), tensor.k()), (2, 3));
    assert_eq!(tensor.encoding, Encoding::Dense(portolan_device::DType::F32));
    assert_eq!(values(&checkpoint, "w"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn cut_anywhere() {
    let bytes = good().bytes();
    assert!(matches!(open_error("model.gguf", &[]), WeightError::NotACheckpoint { .. }));
    for cut in 1..bytes.len() {
        let error = open_error("model.gguf", &bytes[..cut]);
        let WeightError::Truncated { expected, size, .. } = error else { panic!("cut at {cut}: {error:?}") };
        assert!(size == cut as u64 && expected > size, "cut at {cut}: {error}");
    }
}

#[test]
fn headers_that_lie() {
    let header = |e: &WeightError| matches!(e, WeightError::Header { .. });
    let version = |e: &WeightError| matches!(e, WeightError::GgufVersion { .. });
    let truncated = |e: &WeightError| matches!(e, WeightError::Truncated { .. });
    let offsets = |e: &WeightError| matches!(e, WeightError::Offsets { .. });
    check(&good().version(1), "version 1", version);
    check(&good().version(9), "newer", version);
    check(&good().version(3u32.swap_bytes()), "big-endian", version);
    check(&good().entry("x", 99, &[]), "unknown type 99", header);
    check(&good().entry("flag", 7, &[1]), "'flag' stands twice", header);
    check(&good().u32("general.alignment", 48), "general.alignment", header);
    // Lengths that no memory has.
    check(&good().list("x", 0, usize::MAX, &[]), "truncated", truncated);
    check(&good().list("x", 8, 1 << 60, &[]), "truncated", truncated);
    check(&good().entry("x", 8, &u64::MAX.to_le_bytes()), "truncated", truncated);
    let mut deep = vec![];
    for _ in 0..100 {
        deep.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    check(&good().list("x", 9, 1, &deep), "nested too deeply", header);
    check(&good().tensor("big", 0, &[4, 4], &[0; 60]), "from tensor 'big' on", truncated);
    check(&good().tensor("odd", 8, &[2, 33], &[0; 70]), "no whole blocks of Q8_0", header);
    check(&good().tensor("many", 0, &[1; 9], &[0; 4]), "9 dimensions", header);
    check(&good().tensor("w", 0, &[1], &[0; 4]), "'w' stands twice", |e| {
        matches!(e, WeightError::DuplicateTensor { .. })
    });
    check(&good().tensor("huge", 0, &[1 << 40, 1 << 40], &[0; 4]), "than can be counted", |e| {
        matches!(e, WeightError::TensorSize { .. })
    });
    // Two entries of the table for one place: the second's offset is patched to the first's.
    let file = Gguf::new().tensor("a", 0, &[8], &[0; 32]).tensor("b", 0, &[8], &[0; 32]);
    let mut bytes = file.bytes();
    let table = 24;
    let second_offset = table + 2 * (8 + 1 + 4 + 8 + 4 + 8) - 8;
    bytes[second_offset] = 0;
    assert!(offsets(&open_error("model.gguf", &bytes)));
    bytes[second_offset] = 33;
    assert!(offsets(&open_error("model.gguf", &bytes)));
}

#[test]
fn unsupported_types_are_named() {
    #[track_caller]
    fn unsupported(kind: u32, name: &str) {
        check(&good().tensor("blk.0.w", kind, &[256], &[0; 256]), name, |e| {
            matches!(e, WeightError::UnsupportedType { tensor, dtype, supported, .. }
                if tensor == "blk.0.w" && dtype == name && supported.contains("Q4_K"))
        });
    }
    unsupported(16, "IQ2_XXS");
    unsupported(20, "IQ4_NL");
    unsupported(34, "TQ1_0");
    unsupported(9, "Q8_1");
    unsupported(77, "number 77");
}

#[test]
fn a_scale_whose_bias_overflows_is_refused_at_load() {
    let mut block = [0u8; 34];
    block[..2].copy_from_slice(&half_bits(600.0));
    let dir = folder();
    let path = dir.path().join("m.gguf");
    Gguf::new().tensor("w", 8, &[2, 32], &[[0; 34], block].concat()).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let result = crate::support::load_expr(&checkpoint, portolan_weights::Expr::source("w"));
    let Err(WeightError::BlockScale { tensor, block, scale, .. }) = result else {
        panic!("the block was accepted")
    };
    assert_eq!((tensor.as_str(), block, scale), ("w", 1, 600.0));
}

fn half_bits(x: f32) -> [u8; 2] {
    half::f16::from_f32(x).to_le_bytes()
}
