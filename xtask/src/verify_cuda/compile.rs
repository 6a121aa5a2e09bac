//! Every kernel that the conformance suite runs, compiled by NVRTC, with no GPU.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use portolan::{
    device::{DType, DeviceCaps, DeviceId, DeviceKind, KernelResources, cuda::Compiler},
    kernels::gpu::offline::{Wanted, wanted},
};

use crate::outcome::Outcome;

/// Architectures and the least registers and shared memory that a block may take on them.
pub(super) const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_120"];

/// Most kernels of an architecture that a sample compiles.
const SAMPLE: usize = 60;

/// Most registers a thread: above, fewer than 256 threads fit a multiprocessor.
const MOST_REGISTERS: u32 = 255;

/// What a device of an architecture can do, without one.
fn caps_of(target: &str) -> DeviceCaps {
    let arch = target.trim_end_matches('a');
    let major = arch.trim_start_matches("sm_").parse::<u32>().unwrap_or(0) / 10;
    let mut features = vec!["mma_bf16".to_owned(), "cp_async".to_owned()];
    if major >= 9 {
        features.extend(["overlap".to_owned(), "cluster".to_owned()]);
    }
    if major == 9 {
        features.push("wgmma".to_owned());
    }
    DeviceCaps {
        id: DeviceId { kind: DeviceKind::Cuda, ordinal: 0 },
        name: target.to_owned(),
        arch: arch.to_owned(),
        features,
        wave_width: 32,
        integrated: false,
        units: 128,
    }
}

/// Some of the kernels: the first and the last of every variant, and others spread evenly.
fn sample(all: Vec<Wanted>) -> Vec<Wanted> {
    let mut by_variant: BTreeMap<_, Vec<Wanted>> = BTreeMap::new();
    for wanted in all {
        by_variant.entry((wanted.op, wanted.variant)).or_default().push(wanted);
    }
    let each = (SAMPLE / by_variant.len().max(1)).max(2);
    let pick = |list: Vec<Wanted>| {
        let last = list.len() - 1;
        let each = each.min(list.len());
        let at = |i: usize| if each == 1 { 0 } else { i * last / (each - 1) };
        (0..each).map(|i| list[at(i)].clone()).collect::<Vec<_>>()
    };
    by_variant.into_values().flat_map(pick).collect()
}

/// A line of the table.
struct Row {
    kernels: usize,
    most: KernelResources,
}

/// Compiles for one architecture; `full` compiles all.
pub(super) fn gate(target: &str, full: bool) -> Result<Outcome> {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => return Ok(Outcome::Skipped(error.to_string())),
    };
    let caps = caps_of(target);
    let all = wanted(&caps, &[DType::F32, DType::F16, DType::BF16], &|_| true)?;
    let count = all.len();
    let chosen = if full { all } else { sample(all) };
    let next = AtomicUsize::new(0);
    let rows: Mutex<BTreeMap<String, Row>> = Mutex::default();
    let findings: Mutex<Vec<String>> = Mutex::default();
    let work = || {
        while let Some(wanted) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{} {}", wanted.op, wanted.variant);
            let finding = match compiler.compile(&wanted.source(&caps), target) {
                Ok(taken) => {
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    let row = rows
                        .entry(name.clone())
                        .or_insert(Row { kernels: 0, most: KernelResources::default() });
                    row.kernels += 1;
                    row.most.registers = row.most.registers.max(taken.registers);
                    row.most.shared = row.most.shared.max(taken.shared);
                    row.most.local = row.most.local.max(taken.local);
                    check(&taken)
                }
                Err(log) => Some(log),
            };
            if let Some(finding) = finding {
                let finding = format!("{name} ({} {:?}): {finding}", wanted.file, wanted.defines);
                findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    println!(
        "{target}: {:<32} {:>7} {:>9} {:>8} {:>6}",
        "variant", "kernels", "registers", "shared", "local"
    );
    for (name, row) in rows.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let KernelResources { registers, shared, local } = row.most;
        println!("{target}: {name:<32} {:>7} {registers:>9} {shared:>8} {local:>6}", row.kernels);
    }
    let (major, minor) = compiler.version();
    let what = format!("{} of {count} kernels by NVRTC {major}.{minor}, no spills", chosen.len());
    Ok(Outcome::of(what, findings.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// What is wrong with what a kernel takes.
fn check(taken: &KernelResources) -> Option<String> {
    if taken.registers > MOST_REGISTERS || taken.registers == 0 {
        return Some(format!("{} registers", taken.registers));
    }
    (taken.local > 0).then(|| format!("{} bytes of local memory: registers are spilled", taken.local))
}
