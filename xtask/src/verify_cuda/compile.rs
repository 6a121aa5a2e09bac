//! The kernels that the conformance suite runs, compiled by NVRTC with no GPU, and held against a budget.

use std::collections::BTreeMap;

use anyhow::Result;
use portolan::{
    device::{DType, DeviceCaps, DeviceId, DeviceKind, KernelResources, cuda::Compiler},
    kernels::gpu::offline::wanted,
};

use super::budget::Budget;
use crate::{
    compile_gate::{self, Job, jobs, on_all_cores, spread},
    outcome::Outcome,
};

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
    budget: &dyn Fn(&str) -> Option<Budget>,
) -> (BTreeMap<String, Most>, Vec<String>) {
    let compiled = on_all_cores(jobs, |job| compiler.compile(&job.source, target));
    let (mut by_variant, mut findings) = (BTreeMap::<String, Most>::new(), Vec::new());
    for (job, compiled) in jobs.iter().zip(compiled) {
        let finding = match compiled {
            Ok(taken) => {
                let most = by_variant.entry(job.name.clone()).or_default();
                most.kernels += 1;
                most.taken.registers = most.taken.registers.max(taken.registers);
                most.taken.shared = most.taken.shared.max(taken.shared);
                most.taken.local = most.taken.local.max(taken.local);
                over(&taken, budget(&job.name))
            }
            Err(log) => Some(log),
        };
        findings.extend(finding.map(|finding| format!("{target}: {}: {finding}", job.shown())));
    }
    (by_variant, findings)
}

/// What a kernel takes beyond its variant's budget.
fn over(taken: &KernelResources, budget: Option<Budget>) -> Option<String> {
    let Some(budget) = budget else {
        return Some("the variant has no line in the budget (xtask/src/verify_cuda/budget.rs)".to_owned());
    };
    if taken.registers == 0 {
        return Some("the assembler does not say how many registers it takes".to_owned());
    }
    compile_gate::over(&[
        ("registers", taken.registers, budget.registers),
        ("bytes of shared memory", taken.shared, budget.shared),
        ("bytes of local memory", taken.local, budget.local),
    ])
}

/// Compiles for one architecture, and prints a table of what each variant takes.
pub(super) fn gate(target: &str, amount: Amount) -> Result<Outcome> {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => return Ok(Outcome::Skipped(error.to_string())),
    };
    let caps = caps_of(target);
    let all = wanted(&caps, &[DType::F32, DType::F16, DType::BF16], &|_, _| true, &|_| true)?;
    let count = all.len();
    let chosen = match amount {
        Amount::All => all,
        Amount::Sample(most) => spread(all, most),
    };
    let (most, findings) = compile(compiler, &jobs(&chosen, &caps), target, &super::budget::of);
    print(target, &most);
    let (major, minor) = compiler.version();
    let what = format!("{} of {count} kernels by NVRTC {major}.{minor}, within the budget", chosen.len());
    Ok(Outcome::of(what, findings))
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
    use portolan::{device::KernelSource, kernels::gpu::offline::Wanted};

    use super::*;
    use crate::compile_gate::name;

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
            let all = wanted(&caps, &[DType::BF16], &|_, _| true, &|_| true).unwrap();
            let few = |w: &&Wanted| ["add simt", "rms_norm simt", "matmul gemv1"].contains(&name(w).as_str());
            let few: Vec<_> = spread(all.clone(), 0).into_iter().filter(|w| few(&w)).collect();
            assert_eq!(few.len(), 3, "{target}");
            let (most, findings) = compile(compiler, &jobs(&few, &caps), target, &super::super::budget::of);
            assert_eq!((most.len(), findings), (3, vec![]), "{target}");
            // The first, the last, and evenly between.
            let variants: std::collections::BTreeSet<_> = all.iter().map(name).collect();
            let picked = spread(all.clone(), 3 * variants.len());
            assert!(picked.contains(&all[0]) && picked.contains(&all[all.len() - 1]), "{target}");
            assert_eq!(picked.iter().map(name).collect::<std::collections::BTreeSet<_>>(), variants);
        }
    }

    #[test]
    fn every_variant_has_a_line_in_the_budget_and_no_line_is_left_over() {
        let mut names = std::collections::BTreeSet::new();
        for target in TARGETS {
            let types = [DType::F32, DType::F16, DType::BF16];
            names.extend(wanted(&caps_of(target), &types, &|_, _| true, &|_| true).unwrap().iter().map(name));
        }
        let lines: std::collections::BTreeSet<_> =
            super::super::budget::BUDGET.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(names, lines);
    }
}
