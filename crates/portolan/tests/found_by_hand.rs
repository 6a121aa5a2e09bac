//! Faults that somebody found by trying to break the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{fs, path::Path, process::Command};

use portolan::{
    Error, LoadOptions, Plan,
    device::{Device, cpu::CpuOptions},
    models::ModelError,
    tools::logits::Logits,
};
use portolan_testkit::{oracle, skipped};

fn plan(path: &Path) -> Result<Plan, Error> {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    Plan::new(path, &device, &LoadOptions::default())
}

/// Families that are not supported are refused by their names, whatever else their configuration has or lacks.
#[test]
fn other_families_are_refused_by_name() {
    for name in ["mamba", "mamba2", "falcon_mamba", "qwen3_vl", "apertus", "mixtral", "gpt_oss", "nemotron_h"]
    {
        let Some(path) = oracle(&format!("tiny/{name}")) else { continue };
        match plan(&path) {
            Err(Error::Model(ModelError::UnknownFamily { .. })) => {}
            Err(other) => panic!("{name}: {other}"),
            Ok(_) => panic!("{name} was accepted"),
        }
    }
}

/// A pipe in place of a file would be waited for until somebody writes to it.
#[cfg(unix)]
#[test]
fn pipes_are_no_checkpoints() {
    let tiny = oracle("tiny/llama").unwrap();
    for name in ["config.json", "model.safetensors"] {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            if file != name {
                fs::copy(tiny.join(file), folder.path().join(file)).unwrap();
            }
        }
        let made = Command::new("mkfifo").arg(folder.path().join(name)).status();
        if !made.is_ok_and(|status| status.success()) {
            return skipped("no mkfifo");
        }
        let error = plan(folder.path()).err().expect("a pipe was accepted").to_string();
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
    }
}

fn some_logits() -> Logits {
    Logits { input_ids: vec![1], logits: vec![0.5, 1.5], vocab: 2, ..Default::default() }
}

#[cfg(unix)]
#[test]
fn an_output_file_is_like_any_other() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (plain, target, link) =
        (folder.path().join("plain"), folder.path().join("target"), folder.path().join("link"));
    fs::write(&plain, "").unwrap();
    let usual = fs::metadata(&plain).unwrap().permissions().mode();
    some_logits().save(&folder.path().join("new")).unwrap();
    assert_eq!(fs::metadata(folder.path().join("new")).unwrap().permissions().mode(), usual);
    // A link stays a link, and its target is written.
    fs::write(&target, "old").unwrap();
    symlink(&target, &link).unwrap();
    some_logits().save(&link).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_ne!(fs::read(&target).unwrap(), b"old");
    // Nothing half-written is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

/// What is no regular file is written to and stays what it is.
#[cfg(unix)]
#[test]
fn an_output_pipe_is_not_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    if !Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        return skipped("no mkfifo");
    }
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    some_logits().save(&pipe).unwrap();
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let file = folder.path().join("file");
    some_logits().save(&file).unwrap();
    assert_eq!(reader.join().unwrap(), fs::read(file).unwrap());
}
