//! The kernels that the conformance suite runs, compiled by clang for every architecture, and held against a budget;
//! then the front end of a real hipRTC where one is installed.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use portolan::{device::DType, kernels::gpu::offline::wanted};

use super::{
    budget::{self, Budget},
    clang::Clang,
    code_object::Taken,
    front_end::{self, FrontEnd},
    occupancy::{TARGETS, Target},
};
use crate::{
    compile_gate::{self, Job, first_and_largest, jobs, on_all_cores, spread},
    outcome::Outcome,
};

/// This program, even where a build has replaced it since.
const SELF: &str = "/proc/self/exe";

/// Types of activations.
pub(super) const ACTIVATIONS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// How many of an architecture's kernels are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// All, in hours.
    All,
    /// So many, spread evenly.
    Spread(usize),
    /// The first and the largest of each variant.
    Two,
}

impl Amount {
    pub(super) fn of(full: bool, sample: Option<usize>) -> Self {
        match (full, sample) {
            (true, _) => Amount::All,
            (false, Some(most)) => Amount::Spread(most),
            (false, None) => Amount::Two,
        }
    }
}

/// Of a variant on an architecture: kernels compiled, and the most that any of them takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Most {
    kernels: usize,
    taken: Taken,
}

/// Compiles a sample, or all, for those architectures that are named, or for every one, and prints a table of what each
/// variant takes.
pub(super) fn gate(amount: Amount, named: &[String]) -> Result<Outcome> {
    let clang = match Clang::find()? {
        Ok(clang) => clang,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let (mut table, mut findings) = (BTreeMap::new(), Vec::new());
    let (mut compiled, mut count) = (0, 0);
    let targets: Vec<_> =
        TARGETS.iter().filter(|t| named.is_empty() || named.iter().any(|name| name == t.name)).collect();
    for target in &targets {
        let caps = target.caps()?;
        let all = wanted(&caps, &ACTIVATIONS, &|_, _| true, &|_| true)?;
        count += all.len();
        let chosen = match amount {
            Amount::All => all,
            Amount::Spread(most) => spread(all, most),
            Amount::Two => first_and_largest(all),
        };
        compiled += chosen.len();
        println!("{}: {} kernels", target.name, chosen.len());
        findings.extend(compile(&clang, &jobs(&chosen, &caps), target, &budget::of, &mut table));
    }
    print(&table);
    let mut what = format!(
        "{compiled} of {count} kernels of {} architectures by {}, within the budget",
        targets.len(),
        clang.version
    );
    match front_end::check(Path::new(SELF), amount == Amount::All)? {
        FrontEnd::Passed(said) => what += &format!("; {said}"),
        FrontEnd::Failed(found) => findings.extend(found),
    }
    Ok(Outcome::of(what, findings))
}

/// By variant, and by the number of the architecture.
type Table = BTreeMap<(String, usize), Most>;

/// Compiles for a target. What fails or is over the budget; what the variants take at most goes into the table.
fn compile(
    clang: &Clang,
    jobs: &[Job<'_>],
    target: &Target,
    budget: &dyn Fn(&str) -> Option<Budget>,
    table: &mut Table,
) -> Vec<String> {
    let number = TARGETS.iter().position(|t| t == target).unwrap_or(TARGETS.len());
    let compiled = on_all_cores(jobs, |job| clang.compile(&job.source, target.name));
    let mut findings = Vec::new();
    for (job, compiled) in jobs.iter().zip(compiled) {
        let finding = match compiled {
            Ok(taken) => {
                let most = table.entry((job.name.clone(), number)).or_default();
                most.kernels += 1;
                most.taken = most.taken.max(taken);
                fault(&taken, target, budget(&job.name))
            }
            Err(log) => Some(log),
        };
        findings.extend(finding.map(|finding| format!("{}: {}: {finding}", target.name, job.shown())));
    }
    findings
}

/// What is wrong with what a kernel takes.
fn fault(taken: &Taken, target: &Target, budget: Option<Budget>) -> Option<String> {
    let Some(budget) = budget else {
        return Some("the variant has no line in the budget (xtask/src/verify_rocm/budget.rs)".to_owned());
    };
    if taken.vgprs == 0 {
        return Some("the code object does not say how many registers it takes".to_owned());
    }
    if taken.wave != target.wave {
        return Some(format!("compiled for {} lanes, and the architecture has {}", taken.wave, target.wave));
    }
    let vgprs = if target.wave == 64 { budget.vgprs64 } else { budget.vgprs32 };
    compile_gate::over(&[
        ("vector registers", taken.vgprs, vgprs),
        ("bytes of shared memory", taken.lds, budget.lds),
        ("spilled vector registers", taken.vgpr_spills, 0),
        ("spilled scalar registers", taken.sgpr_spills, budget.scalars),
        ("bytes of scratch", taken.scratch, 0),
    ])
}

fn print(table: &Table) {
    println!(
        "{:<32} {:<8} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>6}",
        "variant", "arch", "kernels", "VGPRs", "AGPRs", "SGPRs", "LDS", "spills", "scratch", "waves"
    );
    for ((name, arch), Most { kernels, taken }) in table {
        let Some(target) = TARGETS.get(*arch) else { continue };
        let (arch, waves) = (target.name, target.waves_of(taken.vgprs));
        let spills = taken.vgpr_spills + taken.sgpr_spills;
        let Taken { vgprs, agprs, sgprs, lds, scratch, .. } = taken;
        println!(
            "{name:<32} {arch:<8} {kernels:>7} {vgprs:>6} {agprs:>6} {sgprs:>6} {lds:>6} {spills:>6} {scratch:>8} {waves:>6}"
        );
    }
}

#[cfg(test)]
mod tests;
