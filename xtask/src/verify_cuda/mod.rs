//! `cargo xtask verify-cuda`: what can be proved of the CUDA side on this machine.
//!
//! The compiler needs no GPU; the other gates do, and say SKIPPED with the reason where there is none. They run
//! through cargo, or from a folder of programs that were built elsewhere (`--prebuilt`), without cargo and the tree.

mod about;
mod arms;
mod budget;
mod compile;
mod profile;
mod programs;
mod traces;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use portolan::device::Device;

use crate::{
    gates::{self, Flags},
    outcome::Outcome,
    report::timed,
    test_run::watch,
};
use compile::Amount;
use programs::{Program, Programs};

/// What to run.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify-cuda --only compile --full")]
pub(crate) struct Args {
    /// Compile every kernel, and not a sample of them.
    #[arg(long)]
    full: bool,
    /// Kernels of an architecture that a sample compiles.
    #[arg(long, value_name = "N", default_value_t = 76, conflicts_with = "full")]
    sample: usize,
    #[command(flatten)]
    gates: Flags<Gate>,
    /// A folder with programs that were built elsewhere: portolan, conformance, oracle, gpu. Then neither cargo nor the
    /// tree is needed; PORTOLAN_ORACLE names the folder with the reference checkpoints.
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<PathBuf>,
}

/// A gate; those that need no GPU first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gate {
    /// NVRTC compiles the kernels for three architectures, within the budget.
    Compile,
    /// Every variant agrees with its reference.
    Conformance,
    /// Eager and lazy, pinned and pageable give the same tokens, and count what they should.
    Arms,
    /// The tiny checkpoints agree with transformers and MLX.
    Families,
    /// Traces of SmolLM2: the CPU's exact one against the GPU's.
    Smollm2,
}

/// Runs the gates; true if none fails.
///
/// # Errors
/// If the report cannot be written. A gate that breaks counts as failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let gpu = Device::cuda(0);
    let mut rows = Vec::new();
    for gate in args.gates.chosen() {
        let name = gates::name(&gate);
        if gate == Gate::Compile {
            let amount = if args.full { Amount::All } else { Amount::Sample(args.sample) };
            for target in compile::TARGETS {
                rows.push(timed(format!("{name} {target}"), || compile::gate(target, amount)));
            }
            continue;
        }
        rows.push(timed(name, || match &gpu {
            Ok(_) => gate.on_gpu(args),
            Err(error) => Ok(Outcome::Skipped(error.to_string())),
        }));
    }
    args.gates.end(&rows, || Ok(about::report(gpu.as_ref(), &rows)))
}

/// One kernel of each variant, for the chip with instructions of its own: what a change of the tree has to pass.
pub(crate) fn sample() -> Result<Outcome> {
    compile::gate("sm_90a", Amount::Sample(0))
}

impl Gate {
    /// Runs a gate that needs a GPU where there is one.
    fn on_gpu(self, args: &Args) -> Result<Outcome> {
        let programs = match Programs::find(args.prebuilt.as_deref()) {
            Ok(programs) => programs,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        };
        match self {
            Gate::Compile => Ok(Outcome::Skipped("it needs no GPU".to_owned())),
            Gate::Conformance => tests(&programs, &[Program::Conformance]),
            Gate::Families => tests(&programs, &[Program::Oracle, Program::Gpu]),
            Gate::Arms => arms::gate(&programs),
            Gate::Smollm2 => traces::gate(&programs),
        }
    }
}

/// Runs programs of tests. What a test skips, the gate has not looked at: then it is skipped too.
fn tests(programs: &Programs, names: &[Program]) -> Result<Outcome> {
    let (mut passed, mut findings, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for &name in names {
        let command = match programs.command(name) {
            Ok(command) => command,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        };
        let ran = watch(command)?;
        match ran.outcome {
            Outcome::Pass(what) => passed.push(format!("{}: {what}", name.name())),
            Outcome::Fail(found) => findings.extend(found.iter().map(|f| format!("{}: {f}", name.name()))),
            Outcome::Skipped(reason) => skips.push(reason),
        }
        skips.extend(ran.skips);
    }
    Ok(match (findings.is_empty(), skips.as_slice()) {
        (false, _) => Outcome::Fail(findings),
        (true, []) => Outcome::Pass(passed.join("; ")),
        (true, [one]) => Outcome::Skipped(one.clone()),
        (true, [one, rest @ ..]) => Outcome::Skipped(format!("{one} (and {} more)", rest.len())),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// A folder with a program of tests that is a script.
    fn prebuilt(script: &str) -> (tempfile::TempDir, Programs) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conformance");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let programs = Programs::find(Some(dir.path())).unwrap();
        (dir, programs)
    }

    #[track_caller]
    fn check(script: &str, word: &str, says: &str) {
        let (_dir, programs) = prebuilt(script);
        let outcome = super::tests(&programs, &[Program::Conformance]).unwrap();
        assert_eq!(outcome.word(), word, "{outcome:?}");
        assert!(outcome.detail().contains(says), "{outcome:?}");
    }

    #[test]
    fn a_program_of_tests_passes_fails_or_is_skipped() {
        const OK: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        check(OK, "PASS", "conformance: 2 passed");
        check(&format!("{OK}; echo 'SKIPPED(no oracle) in a' >>$PORTOLAN_SKIP_LOG"), "SKIPPED", "no oracle");
        check(&format!("{OK}; exit 1"), "FAIL", "conformance: 2 passed");
        check("echo 'test a ... FAILED'; exit 101", "FAIL", "0 passed");
        check("true", "FAIL", "0 passed");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_skip() {
        let (_dir, programs) = prebuilt("true");
        let outcome = super::tests(&programs, &[Program::Gpu]).unwrap();
        assert!(outcome.word() == "SKIPPED" && outcome.detail().contains("gpu"), "{outcome:?}");
    }
}
