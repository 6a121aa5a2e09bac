//! Conversions to MLX checkpoints: against what MLX itself makes of the same weights, from GGUF without loss, and
//! whatever can be wrong with source, destination and wishes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "convert/gguf.rs"]
mod gguf;
#[path = "convert/hostile.rs"]
mod hostile;
#[path = "convert/mlx.rs"]
mod mlx;
#[path = "convert/wishes.rs"]
mod wishes;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use portolan::{
    CacheType, Core, LoadOptions, Plan, Result,
    device::{Device, cpu::CpuOptions},
    tools::{
        convert::{ConvertOptions, ConvertPlan, QuantMode},
        logits::logits,
    },
    weights::Checkpoint,
};

/// A folder that holds nothing yet.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn options(bits: Option<u8>, group: Option<u16>, mode: Option<QuantMode>, keep: &[&str]) -> ConvertOptions {
    let mut options = ConvertOptions::default();
    (options.bits, options.group_size, options.mode) = (bits, group, mode);
    options.keep = keep.iter().map(|k| k.parse().unwrap()).collect();
    options
}

fn affine(bits: u8, group: u16) -> ConvertOptions {
    options(Some(bits), Some(group), None, &[])
}

fn convert(source: &Path, destination: &Path, options: &ConvertOptions) -> Result<ConvertPlan> {
    let plan = ConvertPlan::new(source, destination, options)?;
    let (mut last, total) = (0, plan.disk_bytes);
    plan.run(&mut |done, all| {
        assert!(done > last && done <= all, "{done} of {all} after {last}");
        last = done;
        ControlFlow::Continue(())
    })?;
    assert_eq!(last, total, "the plan has all bytes that are written");
    let on_disk: u64 = files(destination).iter().map(|f| f.metadata().unwrap().len()).sum();
    assert_eq!(on_disk, total, "and no others");
    Ok(plan)
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

const IDS: [u32; 12] = [1, 3, 100, 5, 77, 400, 2, 9, 9, 250, 511, 30];

/// Exact logits of each id.
fn exact(path: &Path, ids: &[u32]) -> Vec<f32> {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.max_logits = 64;
    options.cache = Some(CacheType::F32);
    let cpu = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let plan = Plan::new(path, &cpu, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut core = Core::load(&plan, &mut |_, _| ()).unwrap();
    logits(&mut core, ids, 0, 64).unwrap().logits
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/tiny").join(name)
}

/// The encoding of a tensor, as messages have it.
fn encoding(path: &Path, name: &str) -> String {
    Checkpoint::open(path).unwrap().get(name).unwrap_or_else(|| panic!("no {name}")).encoding.to_string()
}

fn config(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap()
}
