//! Faults that somebody found by trying to break the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{fs, path::Path, process::Command};

use portolan::{
    CacheType, Error, LoadOptions, Plan,
    device::{Device, cpu::CpuOptions},
    models::ModelError,
    tools::logits::Logits,
};
use portolan_testkit::{oracle, skipped, tiny};
use proptest::prelude::*;

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

/// A type that a device has no kernels for is refused when the model is planned, by the option's name.
#[test]
fn candle_2041_a_type_without_kernels_is_refused_at_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy("llama", folder.path());
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let plan = |activation| {
        let mut options = LoadOptions::default();
        options.activation = activation;
        Plan::new(folder.path(), &device, &options).map(drop)
    };
    for none in [CacheType::BF16, CacheType::F16] {
        let error = plan(Some(none)).unwrap_err();
        assert!(matches!(&error, Error::BadOption { option: "activations", .. }), "{error}");
        assert!(error.to_string().contains("f32 on the CPU"), "{error}");
    }
    assert!(plan(Some(CacheType::F32)).is_ok() && plan(None).is_ok());
}

/// Bytes of the cache, of the logits on the host, and of all, in the plan of the tiny model: keys and values of two heads
/// of 16 in three layers, in f32.
fn planned(context: usize, cache_tokens: usize, sequences: usize) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy("llama", folder.path());
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let mut options = LoadOptions::default();
    (options.exact, options.context, options.cache_tokens) = (true, Some(context), Some(cache_tokens));
    options.max_sequences = sequences;
    let plan = Plan::new(folder.path(), &device, &options).unwrap();
    let items = &plan.memory.items;
    let cache = items.iter().find(|item| item.what.starts_with("cache (")).unwrap();
    let all: u64 = items.iter().map(|item| item.bytes).sum();
    let needs: u64 = (0..plan.memory.pools.len()).map(|pool| plan.memory.need(pool)).max().unwrap();
    assert!(needs >= cache.bytes && all >= needs);
    (cache.bytes, all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..Default::default() })]

    /// The plan is exact in the cache and never smaller for more of anything.
    #[test]
    fn llama_cpp_26432_a_plan_grows_by_its_cache(
        tokens in 1usize..1 << 24, more in 0usize..1 << 24, context in 1usize..1 << 20, sequences in 1usize..64,
    ) {
        const A_TOKEN: u64 = 3 * 2 * 2 * 16 * 4;
        let (less, all) = planned(context, tokens, sequences);
        let (greater, of_greater) = planned(context, tokens.max(context) + more, sequences);
        let whole = |tokens: usize| tokens.max(context).next_multiple_of(32) as u64 * A_TOKEN;
        // Pages are whole, and none is so many that it could not be stated.
        prop_assert!(less >= whole(tokens) && less <= whole(tokens) + 64 * A_TOKEN, "{} for {}", less, whole(tokens));
        prop_assert_eq!(greater - less, whole(tokens.max(context) + more) - whole(tokens));
        prop_assert!(of_greater >= all);
        prop_assert!(planned(context, tokens, sequences + 1).1 >= all);
    }
}
