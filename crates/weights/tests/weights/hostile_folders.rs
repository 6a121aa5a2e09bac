//! Folders made to confuse: texts in other encodings, names that lead elsewhere, files that are none, shards by the
//! thousand.

use std::{fs::File, os::unix::fs::symlink, path::Path};

use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{Checkpoint, ConfigSource, Expr, WeightError};
use serde_json::{Value, json};

use crate::support::{folder, load_expr, values, write};

const INDEX: &str = "model.safetensors.index.json";

fn tensor(name: &str) -> Safetensors {
    Safetensors::new().f32(name, &[1], &[1.0])
}

/// Opens a folder of one tensor and this `config.json`.
fn with_config(config: &[u8]) -> Result<Value, String> {
    let dir = folder();
    tensor("a").write(dir.path().join("model.safetensors"));
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    match Checkpoint::open(dir.path()) {
        Ok(Checkpoint { config: ConfigSource::Json(config), .. }) => Ok(config),
        Ok(other) => panic!("{:?}", other.config),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("config.json"), "'{text}' does not name the file");
            Err(text)
        }
    }
}

#[track_caller]
fn refused(config: &[u8], part: &str) {
    let text = with_config(config).unwrap_err();
    assert!(text.contains(part), "'{text}' does not say '{part}'");
}

fn utf16(text: &str, mark: bool, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    mark.then_some(0xfeff).into_iter().chain(text.encode_utf16()).flat_map(bytes).collect()
}

#[test]
fn texts_of_a_config() {
    let text = r#"{"a": 1}"#;
    let good = || Ok(json!({"a": 1}));
    assert_eq!(with_config(text.as_bytes()), good());
    assert_eq!(with_config(format!("\u{feff}{text}").as_bytes()), good());
    // Of a key that stands twice the last counts, as in Python.
    assert_eq!(with_config(br#"{"a": 2, "a": 1}"#), good());
    for mark in [true, false] {
        refused(&utf16(text, mark, u16::to_le_bytes), "UTF-16");
        refused(&utf16(text, mark, u16::to_be_bytes), "UTF-16");
    }
    refused(b"{\"a\": \"\xff\"}", "not UTF-8");
    refused(b"\xef\xbb\xbf", "not valid JSON");
    refused(b"\xef\xbb\xbf<!doctype html>", "web page");
    refused(b"", "empty");
    refused(b" ", "not valid JSON");
    refused(b"{} {}", "not valid JSON");
    refused(b"{'a': 1}", "line 1");
    refused(b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull");
    for open in ["[", "{\"a\":"] {
        refused(open.repeat(200_000).as_bytes(), "recursion");
        // The words of Python take another way through the parser.
        refused(format!("{{\"b\": NaN, \"a\": {}", open.repeat(200_000)).as_bytes(), "recursion");
    }
    refused(br#"{"a": 1e999}"#, "number out of range");
    let infinite = with_config(br#"{"a": [Infinity, -Infinity, NaN]}"#).unwrap();
    assert_eq!(infinite, json!({"a": [f64::MAX, -f64::MAX, null]}));
}

/// Whoever reads it whole before looking at its size takes a terabyte of memory.
#[test]
fn texts_that_are_too_long() {
    let dir = folder();
    tensor("a").write(dir.path().join("model.safetensors"));
    for (name, most) in [("config.json", "16777216"), (INDEX, "67108864")] {
        let file = File::create(dir.path().join(name)).unwrap();
        file.set_len(1 << 40).unwrap();
        let text = Checkpoint::open(dir.path()).unwrap_err().to_string();
        for part in [name, "1099511627776", most] {
            assert!(text.contains(part), "'{text}' does not say '{part}'");
        }
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
}

#[test]
fn an_index_in_other_encodings() {
    let dir = folder();
    tensor("a").write(dir.path().join("x.safetensors"));
    let text = r#"{"weight_map": {"a": "x.safetensors"}}"#;
    let index = dir.path().join(INDEX);
    std::fs::write(&index, format!("\u{feff}{text}")).unwrap();
    assert_eq!(values(&Checkpoint::open(dir.path()).unwrap(), "a"), [1.0]);
    std::fs::write(&index, utf16(text, true, u16::to_le_bytes)).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(INDEX) && error.contains("UTF-16"), "{error}");
}

/// Nothing outside the folder is looked at, wherever a name of the index leads.
#[test]
fn an_index_that_leads_elsewhere() {
    let dir = folder();
    let inside = dir.path().join("model");
    std::fs::create_dir(&inside).unwrap();
    tensor("a").write(dir.path().join("x.safetensors"));
    let absolute = dir.path().join("x.safetensors");
    for name in [
        "../x.safetensors",
        absolute.to_str().unwrap(),
        "./../x.safetensors",
        "..\\x.safetensors",
        "..",
        "/",
        "a/b",
    ] {
        write(&inside, INDEX, &json!({"weight_map": {"a": name}}).to_string());
        let error = Checkpoint::open(&inside).unwrap_err();
        assert!(matches!(error, WeightError::Header { .. }), "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("no file name") && text.contains("'a'"), "{text}");
    }
    for name in ["", ".", "x.safetensors", "\0"] {
        write(&inside, INDEX, &json!({"weight_map": {"a": name}}).to_string());
        let error = Checkpoint::open(&inside).unwrap_err();
        assert!(matches!(error, WeightError::MissingShards { .. }), "{name}: {error:?}");
    }
    for map in [json!(null), json!([]), json!({"a": null}), json!({"a": ["x"]}), json!("x"), json!({})] {
        write(&inside, INDEX, &json!({"weight_map": map}).to_string());
        let error = Checkpoint::open(&inside).unwrap_err().to_string();
        assert!(error.contains(INDEX) && error.contains("weight_map") || error.contains("'a'"), "{error}");
    }
}

#[test]
fn no_regular_files() {
    let check = |path: &Path, name: &str| {
        let error = Checkpoint::open(path).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, WeightError::Io { .. }), "{error:?}");
        assert!(text.contains(name) && text.contains("not a regular file"), "{text}");
    };
    check(Path::new("/dev/zero"), "/dev/zero");
    check(Path::new("/dev/null"), "/dev/null");
    for name in ["model.safetensors", "config.json", INDEX] {
        let dir = folder();
        if name != "model.safetensors" {
            tensor("a").write(dir.path().join("model.safetensors"));
        }
        symlink("/dev/zero", dir.path().join(name)).unwrap();
        check(dir.path(), name);
        std::fs::remove_file(dir.path().join(name)).unwrap();
        std::fs::create_dir(dir.path().join(name)).unwrap();
        check(dir.path(), name);
    }
    let dir = folder();
    std::fs::create_dir(dir.path().join("m.gguf")).unwrap();
    check(dir.path(), "m.gguf");
    symlink("loop.safetensors", dir.path().join("loop.safetensors")).unwrap();
    assert!(Checkpoint::open(&dir.path().join("loop.safetensors")).is_err());
    let gone = Checkpoint::open(&dir.path().join("model\0.safetensors")).unwrap_err();
    assert!(matches!(gone, WeightError::Io { .. }), "{gone:?}");
}

/// Each name claims thousands of others; to compare all with all would not come to an end.
#[test]
fn sets_of_shards_by_the_thousand() {
    let dir = folder();
    for set in 0..3 {
        for i in 1..=700 {
            File::create(dir.path().join(format!("m{set}-{i:05}-of-10000.safetensors"))).unwrap();
        }
    }
    File::create(dir.path().join("x-00001-of-99999999999999999999.safetensors")).unwrap();
    File::create(dir.path().join("x-1-of-3.safetensors")).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    let WeightError::MissingShards { missing, total, .. } = &error else { panic!("{error:?}") };
    assert!(missing.len() >= 9_300 && *total >= 10_000, "{} of {total}", missing.len());
    let text = error.to_string();
    assert!(text.contains("m0-00701-of-10000.safetensors") && text.contains(" more"), "{text}");
    let dir = folder();
    Gguf::new().write(dir.path().join("m-00002-of-99999.gguf"));
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(matches!(&error, WeightError::MissingShards { missing, .. } if missing.len() == 99_998));
    assert!(error.to_string().len() < 100_000);
}

/// What changed between opening and loading: another size, another kind of file, no file.
#[test]
fn files_that_change_after_they_were_opened() {
    let numbers: Vec<f32> = (0..4096).map(|i| i as f32).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    let blocks = vec![0; 4096 / 32 * 34];
    let files = [
        ("m.safetensors", Safetensors::new().f32("w", &[4, 1024], &numbers).bytes()),
        ("m.gguf", Gguf::new().tensor("w", 0, &[4, 1024], &bytes).bytes()),
        ("q.gguf", Gguf::new().tensor("w", 8, &[4, 1024], &blocks).bytes()),
    ];
    for (name, whole) in files {
        let dir = folder();
        let path = dir.path().join(name);
        std::fs::write(&path, &whole).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let data = checkpoint.get("w").unwrap().spans()[0].offset;
        let load = |expr: Expr| load_expr(&checkpoint, expr).map(|w| w.decode());
        let good = load(Expr::source("w")).unwrap();
        for keep in [0, 1, data - 1, data, data + 1, data + 1000, whole.len() as u64 - 1] {
            std::fs::write(&path, &whole[..keep as usize]).unwrap();
            for expr in [Expr::source("w"), Expr::source("w").f32()] {
                let error = load(expr).unwrap_err();
                let WeightError::ShortRead { path: p, offset, want, got } = &error else {
                    panic!("{error:?}")
                };
                assert_eq!((p, offset + got), (&path, keep.max(*offset)), "{name} cut to {keep}: {error}");
                assert!(got < want && error.to_string().contains("load it again"), "{error}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        let error = load(Expr::source("w")).unwrap_err();
        assert!(matches!(&error, WeightError::NotFound { path: p } if *p == path), "{error:?}");
        symlink("/dev/zero", &path).unwrap();
        let error = load(Expr::source("w")).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        // Longer is as good, and whole again is good again.
        std::fs::write(&path, [whole.as_slice(), &[0; 100]].concat()).unwrap();
        assert_eq!(load(Expr::source("w")).unwrap(), good);
    }
}
