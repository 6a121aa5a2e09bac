//! Which files of a folder belong to a checkpoint.

use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{Checkpoint, ConfigSource, Dialect, NotWeights, WeightError};

use crate::support::{folder, values, write};

fn tensor(name: &str, value: f32) -> Safetensors {
    Safetensors::new().f32(name, &[1], &[value])
}

fn index(entries: &[(&str, &str)]) -> String {
    let map: serde_json::Map<_, _> = entries.iter().map(|&(t, f)| (t.to_owned(), f.into())).collect();
    serde_json::json!({ "metadata": {}, "weight_map": map }).to_string()
}

#[test]
fn one_file_shards_or_all() {
    let dir = folder();
    let open = || Checkpoint::open(dir.path()).unwrap();
    tensor("b", 2.0).write(dir.path().join("x.safetensors"));
    tensor("c", 3.0).write(dir.path().join("y.safetensors"));
    let all = open();
    assert_eq!(all.tensors.len(), 2);
    assert!(matches!(all.config, ConfigSource::None));
    // An index says which files count.
    write(dir.path(), "model.safetensors.index.json", &index(&[("c", "y.safetensors")]));
    let indexed = open();
    assert_eq!(indexed.tensors.keys().collect::<Vec<_>>(), ["c"]);
    assert_eq!(values(&indexed, "c"), [3.0]);
    assert_eq!(indexed.file_bytes(), std::fs::metadata(dir.path().join("y.safetensors")).unwrap().len());
    std::fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    // model.safetensors alone is the model.
    tensor("a", 1.0).write(dir.path().join("model.safetensors"));
    write(dir.path(), "config.json", r#"{"model_type": "llama", "x": Infinity}"#);
    let single = open();
    assert_eq!(single.tensors.keys().collect::<Vec<_>>(), ["a"]);
    assert!(matches!(&single.config, ConfigSource::Json(c) if c["model_type"] == "llama"));
    // Even when a stale index speaks of shards.
    write(dir.path(), "model.safetensors.index.json", &index(&[("c", "gone.safetensors")]));
    assert_eq!(open().tensors.keys().collect::<Vec<_>>(), ["a"]);
    // A file by name finds the config beside it.
    let file = Checkpoint::open(&dir.path().join("x.safetensors")).unwrap();
    assert_eq!(file.tensors.keys().collect::<Vec<_>>(), ["b"]);
    assert!(matches!(file.config, ConfigSource::Json(_)));
    assert_eq!(file.dialect, Dialect::Hf);
}

#[test]
fn colibri_1317_missing_shards_all_at_once() {
    let dir = folder();
    tensor("b", 2.0).write(dir.path().join("model-00002-of-00004.safetensors"));
    let shard = |i: usize| format!("model-0000{i}-of-00004.safetensors");
    let expected = [shard(1), shard(3), shard(4)];
    #[track_caller]
    fn check(dir: &std::path::Path, expected: &[String]) {
        let error = Checkpoint::open(dir).unwrap_err();
        let WeightError::MissingShards { missing, total, .. } = &error else { panic!("{error:?}") };
        assert_eq!((missing.as_slice(), *total), (expected, 4));
        assert!(expected.iter().all(|name| error.to_string().contains(name.as_str())), "{error}");
    }
    // By the names alone, and by an index.
    check(dir.path(), &expected);
    let shards: Vec<String> = (1..=4).map(shard).collect();
    let entries: Vec<(&str, &str)> =
        ["a", "b", "c", "d"].into_iter().zip(shards.iter().map(String::as_str)).collect();
    write(dir.path(), "model.safetensors.index.json", &index(&entries));
    check(dir.path(), &expected);

    let dir = folder();
    Gguf::new().write(dir.path().join("m-00002-of-00003.gguf"));
    let error = Checkpoint::open(&dir.path().join("m-00002-of-00003.gguf")).unwrap_err();
    assert!(matches!(&error, WeightError::MissingShards { missing, .. } if missing.len() == 2), "{error:?}");
}

#[test]
fn vmlx_swift_388_both_set_differences() {
    let dir = folder();
    tensor("a", 1.0).f32("extra", &[1], &[7.0]).write(dir.path().join("x.safetensors"));
    write(
        dir.path(),
        "model.safetensors.index.json",
        &index(&[("a", "x.safetensors"), ("lost", "x.safetensors")]),
    );
    let error = Checkpoint::open(dir.path()).unwrap_err();
    let WeightError::IndexMismatch { absent, unlisted, .. } = &error else { panic!("{error:?}") };
    assert_eq!(
        (absent.as_slice(), unlisted.as_slice()),
        (&["lost".to_owned()][..], &["extra".to_owned()][..])
    );
    // What the index merely forgot is there and is used.
    write(dir.path(), "model.safetensors.index.json", &index(&[("a", "x.safetensors")]));
    assert_eq!(values(&Checkpoint::open(dir.path()).unwrap(), "extra"), [7.0]);
}

#[test]
fn one_name_in_two_shards() {
    let dir = folder();
    tensor("a", 1.0).write(dir.path().join("x.safetensors"));
    tensor("a", 2.0).write(dir.path().join("y.safetensors"));
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, WeightError::DuplicateTensor { first, second, .. }
        if first.ends_with("x.safetensors") && second.ends_with("y.safetensors")),
        "{error:?}"
    );
}

#[test]
fn gguf_folders_and_split_files() {
    let dir = folder();
    let f32s = |x: f32| x.to_le_bytes();
    let part = |i: usize| dir.path().join(format!("m-0000{i}-of-00002.gguf"));
    Gguf::new().str("general.architecture", "llama").tensor("a", 0, &[1], &f32s(1.0)).write(part(1));
    Gguf::new().u32("split.no", 1).tensor("b", 0, &[1], &f32s(2.0)).write(part(2));
    for path in [part(1), part(2), dir.path().to_owned()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!((values(&checkpoint, "a"), values(&checkpoint, "b")), (vec![1.0], vec![2.0]));
        let ConfigSource::Gguf(metadata) = &checkpoint.config else { panic!("a GGUF file has metadata") };
        assert_eq!(metadata.architecture(), Some("llama"));
    }
    // A part under another name cannot find the rest.
    let alone = dir.path().join("alone.gguf");
    Gguf::new().u32("split.count", 2).write(&alone);
    assert!(Checkpoint::open(&alone).unwrap_err().to_string().contains("one of 2 files"));
    // Two models: which one?
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(
        matches!(&error, WeightError::NoWeights { reason, .. } if reason.contains("alone.gguf")),
        "{error:?}"
    );
}

#[test]
fn what_is_not_there() {
    let dir = folder();
    let error = |path: &std::path::Path| Checkpoint::open(path).unwrap_err();
    assert!(matches!(error(&dir.path().join("none")), WeightError::NotFound { .. }));
    assert!(matches!(error(dir.path()), WeightError::NoWeights { .. }));
    write(dir.path(), "pytorch_model.bin", "PK");
    assert!(error(dir.path()).to_string().contains("pytorch_model.bin"));
    let bin = error(&dir.path().join("pytorch_model.bin"));
    assert!(matches!(bin, WeightError::NotACheckpoint { what: NotWeights::OtherFormat, .. }), "{bin:?}");
    tensor("a", 1.0).write(dir.path().join("model.safetensors"));
    write(dir.path(), "config.json", "{\"a\": }");
    assert!(matches!(error(dir.path()), WeightError::Json { path, .. } if path.ends_with("config.json")));
    write(dir.path(), "config.json", "<html></html>");
    assert!(matches!(error(dir.path()), WeightError::NotACheckpoint { what: NotWeights::Html, .. }));
    for map in [r#"{"a": "../x.safetensors"}"#, r#"{"a": 7}"#, "{}"] {
        write(dir.path(), "model.safetensors.index.json", &format!(r#"{{"weight_map": {map}}}"#));
        let error = error(dir.path());
        assert!(
            matches!(&error, WeightError::Header { path, .. } if path.ends_with("model.safetensors.index.json")),
            "{error:?}"
        );
    }
}

#[test]
fn text_generation_inference_501_alias_metadata() {
    let dir = folder();
    let path = dir.path().join("model.safetensors");
    tensor("embed.weight", 1.0)
        .metadata("lm_head.weight", "embed.weight")
        .metadata("format", "pt")
        .write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.alias("lm_head.weight"), Some("embed.weight"));
    assert_eq!(checkpoint.alias("format"), None);
    assert_eq!(checkpoint.alias("embed.weight"), None);
}
