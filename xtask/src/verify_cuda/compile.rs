//! The kernels that the conformance suite runs, compiled by NVRTC with no GPU, and held against a budget.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use portolan::{
    device::{DType, DeviceCaps, DeviceId, DeviceKind, KernelResources, KernelSource, cuda::Compiler},
    kernels::gpu::offline::{Wanted, wanted},
};

use super::budget::Budget;
use crate::outcome::Outcome;

/// Ampere, Hopper with its own instructions, and Blackwell as in GeForce cards.
pub(super) const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_120"];

/// How many of an architecture's kernels are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// All, in many minutes.
    All,
    /// At least one of each variant, and so many in all if that is more.
    Sample(usize),
}

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

/// Some of the kernels: of every variant as many, spread evenly from its first to its last.
fn sample(all: Vec<Wanted>, most: usize) -> Vec<Wanted> {
    let mut by_variant: BTreeMap<_, Vec<Wanted>> = BTreeMap::new();
    for wanted in all {
        by_variant.entry((wanted.op, wanted.variant)).or_default().push(wanted);
    }
    let each = (most / by_variant.len().max(1)).max(1);
    let pick = |list: Vec<Wanted>| {
        let (each, last) = (each.min(list.len()), list.len().saturating_sub(1));
        let at = move |i: usize| if each == 1 { 0 } else { i * last / (each - 1) };
        (0..each).filter_map(move |i| list.get(at(i)).cloned())
    };
    by_variant.into_values().flat_map(pick).collect()
}

/// A kernel to compile, under the name that it has in the budget.
pub(super) struct Job<'a> {
    pub(super) name: String,
    pub(super) source: KernelSource<'a>,
}

/// Of a variant: kernels compiled, and the most that any of them takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Most {
    kernels: usize,
    taken: KernelResources,
}

/// Compiles for a target on all cores. What the variants take at most, by name; and what fails or is over the budget.
pub(super) fn compile(
    compiler: Compiler,
    jobs: &[Job<'_>],
    target: &str,
    budget: &(dyn Fn(&str) -> Option<Budget> + Sync),
) -> (BTreeMap<String, Most>, Vec<String>) {
    let next = AtomicUsize::new(0);
    let found: Mutex<(BTreeMap<String, Most>, Vec<String>)> = Mutex::default();
    let work = || {
        while let Some(Job { name, source }) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let compiled = compiler.compile(source, target);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            let finding = match compiled {
                Ok(taken) => {
                    let most = found.0.entry(name.clone()).or_default();
                    most.kernels += 1;
                    most.taken.registers = most.taken.registers.max(taken.registers);
                    most.taken.shared = most.taken.shared.max(taken.shared);
                    most.taken.local = most.taken.local.max(taken.local);
                    over(&taken, budget(name))
                }
                Err(log) => Some(log),
            };
            let defines = || {
                let defines = source.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
                defines.collect::<Vec<_>>().join(" ")
            };
            found.1.extend(finding.map(|f| format!("{target}: {name}, {source} {}: {f}", defines())));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What a kernel takes beyond its variant's budget.
fn over(taken: &KernelResources, budget: Option<Budget>) -> Option<String> {
    let Some(budget) = budget else {
        return Some("the variant has no line in the budget (xtask/src/verify_cuda/budget.rs)".to_owned());
    };
    if taken.registers == 0 {
        return Some("the assembler does not say how many registers it takes".to_owned());
    }
    let checks = [
        ("registers", taken.registers, budget.registers),
        ("bytes of shared memory", taken.shared, budget.shared),
        ("bytes of local memory", taken.local, budget.local),
    ];
    let over: Vec<_> = checks
        .iter()
        .filter(|(_, taken, most)| taken > most)
        .map(|(what, taken, most)| format!("{taken} {what}, the budget is {most}"))
        .collect();
    (!over.is_empty()).then(|| over.join("; "))
}

/// Compiles for one architecture, and prints a table of what each variant takes.
pub(super) fn gate(target: &str, amount: Amount) -> Result<Outcome> {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => return Ok(Outcome::Skipped(error.to_string())),
    };
    let caps = caps_of(target);
    let all = wanted(&caps, &[DType::F32, DType::F16, DType::BF16], &|_| true)?;
    let count = all.len();
    let chosen = match amount {
        Amount::All => all,
        Amount::Sample(most) => sample(all, most),
    };
    let job = |w| Job { name: name(w), source: w.source(&caps) };
    let jobs: Vec<_> = chosen.iter().map(job).collect();
    let (most, findings) = compile(compiler, &jobs, target, &super::budget::of);
    print(target, &most);
    let (major, minor) = compiler.version();
    let what = format!("{} of {count} kernels by NVRTC {major}.{minor}, within the budget", chosen.len());
    Ok(Outcome::of(what, findings))
}

/// As the budget has it.
fn name(wanted: &Wanted) -> String {
    format!("{} {}", wanted.op, wanted.variant)
}

fn print(target: &str, most: &BTreeMap<String, Most>) {
    println!(
        "{target}: {:<32} {:>7} {:>9} {:>8} {:>6}",
        "variant", "kernels", "registers", "shared", "local"
    );
    for (name, Most { kernels, taken }) in most {
        let KernelResources { registers, shared, local } = taken;
        println!("{target}: {name:<32} {kernels:>7} {registers:>9} {shared:>8} {local:>6}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Budget = Budget { registers: 32, shared: 1024, local: 0 };

    #[track_caller]
    fn check(registers: u32, shared: u32, local: u32, budget: Option<Budget>, says: Option<&str>) {
        let found = over(&KernelResources { registers, shared, local }, budget);
        match says {
            None => assert_eq!(found, None),
            Some(says) => assert!(found.as_ref().is_some_and(|f| f.contains(says)), "{found:?}"),
        }
    }

    #[test]
    fn a_kernel_over_its_budget_is_found() {
        check(32, 1024, 0, Some(SMALL), None);
        check(33, 0, 0, Some(SMALL), Some("33 registers, the budget is 32"));
        check(32, 1025, 0, Some(SMALL), Some("1025 bytes of shared memory"));
        check(32, 0, 8, Some(SMALL), Some("8 bytes of local memory"));
        check(33, 0, 8, Some(SMALL), Some("; 8 bytes"));
        check(0, 0, 0, Some(SMALL), Some("does not say"));
        check(1, 0, 0, None, Some("no line in the budget"));
    }

    /// How the gate ends for a text.
    fn broken(text: &str) -> Option<Vec<String>> {
        let compiler = match Compiler::open() {
            Ok(compiler) => compiler,
            Err(error) => {
                portolan_testkit::skipped(&error.to_string());
                return None;
            }
        };
        let source = KernelSource { file: "k.cu", text, headers: &[], entry: "k", defines: &[] };
        let job = Job { name: "add simt".to_owned(), source };
        Some(compile(compiler, &[job], "sm_90a", &|_| Some(SMALL)).1)
    }

    #[test]
    fn a_broken_kernel_fails() {
        let text = |body: &str| format!("extern \"C\" __global__ void k(float *p, int n) {{ {body} }}");
        // Elements that are written under a number that is known only when it runs cannot lie in registers.
        let spills =
            text("float a[64] = {}; for (int i = 0; i < 64; i++) a[(i * n) & 63] += p[i]; p[0] = a[n & 63];");
        for (text, says) in [
            (text("p[0] = 1.0f;"), None),
            (text("p[0] = missing;"), Some("missing")),
            (spills, Some("bytes of local memory")),
        ] {
            let Some(found) = broken(&text) else { return };
            assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
            assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
        }
    }

    #[test]
    fn some_kernels_of_each_architecture_compile_within_the_budget() {
        let compiler = match Compiler::open() {
            Ok(compiler) => compiler,
            Err(error) => return portolan_testkit::skipped(&error.to_string()),
        };
        for target in TARGETS {
            let caps = caps_of(target);
            let all = wanted(&caps, &[DType::BF16], &|_| true).unwrap();
            let few = |w: &&Wanted| ["add simt", "rms_norm simt", "matmul gemv1"].contains(&name(w).as_str());
            let few: Vec<_> = sample(all.clone(), 0).into_iter().filter(|w| few(&w)).collect();
            assert_eq!(few.len(), 3, "{target}");
            let jobs: Vec<_> = few.iter().map(|w| Job { name: name(w), source: w.source(&caps) }).collect();
            let (most, findings) = compile(compiler, &jobs, target, &super::super::budget::of);
            assert_eq!((most.len(), findings), (3, vec![]), "{target}");
            // The first, the last, and evenly between.
            let variants: std::collections::BTreeSet<_> = all.iter().map(name).collect();
            let picked = sample(all.clone(), 3 * variants.len());
            assert!(picked.contains(&all[0]) && picked.contains(&all[all.len() - 1]), "{target}");
            assert_eq!(picked.iter().map(name).collect::<std::collections::BTreeSet<_>>(), variants);
        }
    }

    #[test]
    fn every_variant_has_a_line_in_the_budget_and_no_line_is_left_over() {
        let mut names = std::collections::BTreeSet::new();
        for target in TARGETS {
            let types = [DType::F32, DType::F16, DType::BF16];
            names.extend(wanted(&caps_of(target), &types, &|_| true).unwrap().iter().map(name));
        }
        let lines: std::collections::BTreeSet<_> =
            super::super::budget::BUDGET.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(names, lines);
    }
}
