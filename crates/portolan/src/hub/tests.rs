//! Tests of the hub module: specs and options here, the rest in files of their own.

mod hub;
mod pip;
mod refusals;
mod server;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::spec::{HubName, Spec, is_safe_relative};
use super::{HubError, HubOptions, Progress};

/// Every entry of a folder, hidden ones too, sorted; empty if there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Bytes that differ from place to place, the same each time.
fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Progress that nobody looks at.
fn quiet() -> impl FnMut(Progress<'_>) {
    |_| {}
}

#[track_caller]
fn check_hub(spec: &str, owner: &str, name: &str, revision: &str, file: Option<&str>) {
    let [owner, name, revision] = [owner, name, revision].map(str::to_owned);
    let want = HubName { owner, name, revision, file: file.map(str::to_owned) };
    assert_eq!(Spec::parse(spec).unwrap(), Spec::Hub(want));
}

#[test]
fn hub_names_are_understood() {
    check_hub("mlx-community/Qwen3-0.6B-4bit", "mlx-community", "Qwen3-0.6B-4bit", "main", None);
    check_hub("o/n@v1.0", "o", "n", "v1.0", None);
    check_hub("o/n@refs/pr/7", "o", "n", "refs/pr/7", None);
    check_hub("o/n:a.gguf", "o", "n", "main", Some("a.gguf"));
    check_hub("o/n@dev:Q4/a-Q4_K_M.GGUF", "o", "n", "dev", Some("Q4/a-Q4_K_M.GGUF"));
    check_hub("Org/Model-GGUF", "Org", "Model-GGUF", "main", None);
}

#[test]
fn the_default_model_is_known_by_its_names() {
    for spec in ["smollm2", "SmolLM2", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"] {
        assert_eq!(Spec::parse(spec).unwrap(), Spec::Default, "{spec}");
    }
}

#[track_caller]
fn check_refused(spec: &str, want: &str) {
    let error = Spec::parse(spec).unwrap_err();
    let kind = match error {
        HubError::NotFound { .. } => "not found",
        HubError::BadSpec { .. } => "bad spec",
        _ => "other",
    };
    assert_eq!(kind, want, "{spec:?}: {error}");
    assert!(error.to_string().contains("owner/name"), "it says what is accepted: {error}");
}

#[test]
fn what_is_no_model_is_refused_with_what_is_accepted() {
    for spec in [
        "./nothing",
        "/nothing/here",
        "../x",
        "~/models/x",
        "models/llama.gguf",
        "llama.gguf",
        "a.safetensors",
        "a/b/c",
        "models\\x",
        "o/n@",
        "o/n@a/../b",
        "o/n:../../etc/x.gguf",
        "o/n:/abs.gguf",
        "o/n:x.bin",
        "/n",
        ".hidden/n",
        "o/.n",
        "o/n:",
        "o/n@a@b",
    ] {
        check_refused(spec, "not found");
    }
    for spec in ["", "llama", "gpt 4", "o:n", "smollm3", "n@main"] {
        check_refused(spec, "bad spec");
    }
}

#[test]
fn paths_that_exist_are_taken_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for name in ["m.gguf", "m.safetensors", "M.GGUF"] {
        let file = dir.path().join(name);
        fs::write(&file, b"x").unwrap();
        assert_eq!(Spec::parse(&text(&file)).unwrap(), Spec::Path(file));
    }
    assert_eq!(Spec::parse(&text(dir.path())).unwrap(), Spec::Path(dir.path().to_owned()));
    let other = dir.path().join("m.bin");
    fs::write(&other, b"x").unwrap();
    assert!(matches!(Spec::parse(&text(&other)), Err(HubError::UnsupportedFile { path }) if path == other));
}

#[test]
fn names_that_lead_out_of_a_folder_are_seen() {
    for name in ["a", "a.b/c", "..a", "a..", "a/.b"] {
        assert!(is_safe_relative(name), "{name}");
    }
    for name in
        ["", "..", "../a", "a/../b", "a/..", "/a", "./a", "a/./b", "a//b", "a/", "a\\b", "C:a", "a\0b"]
    {
        assert!(!is_safe_relative(name), "{name:?}");
    }
}

#[track_caller]
fn check_dir(vars: &[(&str, &str)], want: Option<&str>) {
    let var = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    match (HubOptions::from_vars(var), want) {
        (Ok(options), Some(want)) => assert_eq!(options.models_dir, PathBuf::from(want)),
        (Err(HubError::NoCacheFolder), None) => {}
        (got, want) => panic!("{got:?}, expected {want:?}"),
    }
}

#[test]
fn the_cache_folder_follows_the_environment() {
    let home = ("HOME", "/home/u");
    check_dir(&[home], Some("/home/u/.cache/portolan/models"));
    check_dir(&[home, ("XDG_CACHE_HOME", "/x")], Some("/x/portolan/models"));
    check_dir(&[home, ("XDG_CACHE_HOME", "relative")], Some("/home/u/.cache/portolan/models"));
    check_dir(&[home, ("XDG_CACHE_HOME", "/x"), ("PORTOLAN_MODELS_DIR", "/m")], Some("/m"));
    check_dir(&[home, ("PORTOLAN_MODELS_DIR", "")], Some("/home/u/.cache/portolan/models"));
    check_dir(&[], None);
}

#[test]
fn endpoint_and_token_follow_the_environment_and_the_token_is_not_printed() {
    let options = HubOptions::from_vars(|name| match name {
        "HOME" => Some("/h".into()),
        "HF_ENDPOINT" => Some("http://mirror/hf/".into()),
        "HF_TOKEN" => Some(" hf_secret\n".into()),
        _ => None,
    });
    let options = options.unwrap();
    assert_eq!(options.endpoint, "http://mirror/hf");
    assert_eq!(options.token.as_deref(), Some("hf_secret"));
    assert!(!format!("{options:?}").contains("secret"));
}
