//! `cargo xtask verify-neon`: the CPU's kernels for aarch64, on a machine that need not be one.
//!
//! They are compiled for aarch64 and their tests run, under QEMU where the machine is another. QEMU computes what the
//! processor would, so results are proved and speed is not.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{
    about,
    gates::{self, Flags},
    outcome::Outcome,
    report::{self, Row, timed},
    test_run,
    tree::root,
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATORS: [&str; 2] = ["qemu-aarch64", "qemu-aarch64-static"];
/// Where Debian and Ubuntu put the C library of another processor.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";
/// Of the conformance suite's cases every so-many-th. All of them take QEMU two minutes on two cores.
const SAMPLE: usize = 4;

/// What to run.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify-neon --only kernels --full")]
pub(crate) struct Args {
    /// Run all cases of the conformance suite, and not a sample.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    gates: Flags<Gate>,
}

/// A gate, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gate {
    /// The whole workspace compiles for aarch64, tests and all.
    Check,
    /// The tests of the kernels pass: those of their own, and the conformance suite.
    Kernels,
}

impl Gate {
    fn run(self, root: &Path, full: bool) -> Result<Outcome> {
        let tools = match Tools::find(cfg!(all(target_arch = "aarch64", target_os = "linux")), there) {
            Ok(tools) => tools,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        };
        match self {
            Gate::Check => check(&tools, root),
            Gate::Kernels => kernels(&tools, root, full),
        }
    }
}

/// Runs the gates; true if none fails.
///
/// # Errors
/// If the report cannot be written. A gate that breaks counts as failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root();
    let rows: Vec<Row> = args
        .gates
        .chosen()
        .into_iter()
        .map(|gate| timed(gates::name(&gate), || gate.run(&root, args.full)))
        .collect();
    args.gates.end(&rows, || Ok(report(&rows, args.full)))
}

/// The results with what they are of.
fn report(rows: &[Row], full: bool) -> serde_json::Value {
    serde_json::json!({
        "commit": about::commit(),
        "date": about::date(),
        "rustc": about::said("rustc", &["--version"]),
        "emulator": EMULATORS.iter().find_map(|name| about::said(name, &["--version"])),
        "full": full,
        "gates": report::json(rows),
    })
}

/// What this machine builds and runs programs for aarch64 with.
#[derive(Debug, PartialEq, Eq)]
struct Tools {
    /// None on a machine that runs them itself.
    emulator: Option<&'static str>,
}

impl Tools {
    /// The tools, or which one is lacking and what to install.
    fn find(native: bool, there: impl Fn(&str, &[&str]) -> bool) -> Result<Tools, String> {
        if native {
            return Ok(Tools { emulator: None });
        }
        let lacks = |what: &str, how: &str| Err(format!("{what} is not here: {how}"));
        if !there("target", &[TARGET]) {
            return lacks(&format!("Rust's {TARGET}"), &format!("rustup target add {TARGET}"));
        }
        if !there(LINKER, &["--version"]) || !there("folder", &[SYSROOT]) {
            return lacks(LINKER, "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross");
        }
        match EMULATORS.into_iter().find(|name| there(name, &["--version"])) {
            Some(emulator) => Ok(Tools { emulator: Some(emulator) }),
            None => lacks(EMULATORS[0], "apt-get install qemu-user"),
        }
    }

    /// A command of cargo that builds for aarch64 and runs what it built.
    fn cargo(&self, root: &Path, args: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(args).args(["--target", TARGET]);
        if let Some(emulator) = self.emulator {
            cargo
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{emulator} -L {SYSROOT}"))
                // For the crates that compile C.
                .env("CC_aarch64_unknown_linux_gnu", LINKER);
        }
        println!("$ cargo {} --target {TARGET}", args.join(" "));
        cargo
    }
}

/// Whether a program answers; `target` and `folder` are whether Rust has a target, and whether a folder is there.
fn there(program: &str, args: &[&str]) -> bool {
    match (program, args) {
        ("folder", [path]) => Path::new(path).is_dir(),
        ("target", [target]) => about::said("rustc", &["--print", "target-libdir", "--target", target])
            .is_some_and(|folder| Path::new(&folder).is_dir()),
        _ => about::said(program, args).is_some(),
    }
}

fn check(tools: &Tools, root: &Path) -> Result<Outcome> {
    let status = tools.cargo(root, &["check", "--workspace", "--all-targets"]).status();
    let status = status.context("cannot run cargo")?;
    let findings = if status.success() { Vec::new() } else { vec![format!("cargo check: {status}")] };
    Ok(Outcome::of(format!("the workspace for {TARGET}"), findings))
}

fn kernels(tools: &Tools, root: &Path, full: bool) -> Result<Outcome> {
    let mut cargo = tools
        .cargo(root, &["test", "-p", "portolan-kernels", "--lib", "--test", "conformance", "--no-fail-fast"]);
    // These show the suite faults in plain kernels, over thousands of cases: they are of no processor.
    cargo.args(["--", "--skip", "conformance::faults"]);
    if !full {
        cargo.env("PORTOLAN_TEST_SAMPLE", SAMPLE.to_string());
    }
    Ok(match test_run::watch(cargo)?.outcome {
        Outcome::Pass(what) => {
            let on = tools.emulator.unwrap_or("this processor");
            let cases = if full { "all cases".to_owned() } else { format!("every {SAMPLE}th case") };
            Outcome::Pass(format!("{what}, on {on}; of the conformance suite {cases}"))
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_chosen_by_name_and_run_in_order() {
        let names = |only: &[Gate], skip: &[Gate]| {
            Flags::of(only, skip).chosen().iter().map(gates::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[], &[]), "check kernels");
        assert_eq!(names(&[Gate::Kernels, Gate::Check], &[]), "check kernels");
        assert_eq!(names(&[], &[Gate::Check]), "kernels");
    }

    #[test]
    fn what_is_lacking_is_named_with_what_to_install() {
        #[track_caller]
        fn check(native: bool, here: &[&str], expected: Result<Option<&'static str>, &str>) {
            let there = |program: &str, _: &[&str]| here.contains(&program);
            match (Tools::find(native, there), expected) {
                (Ok(tools), Ok(emulator)) => assert_eq!(tools.emulator, emulator),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
        check(true, &[], Ok(None));
        check(false, &[], Err("rustup target add aarch64-unknown-linux-gnu"));
        check(false, &["target"], Err("gcc-aarch64-linux-gnu"));
        check(false, &["target", LINKER], Err("libc6-dev-arm64-cross"));
        check(false, &["target", LINKER, "folder"], Err("qemu-user"));
        check(false, &["target", LINKER, "folder", "qemu-aarch64-static"], Ok(Some("qemu-aarch64-static")));
        check(false, &["target", LINKER, "folder", "qemu-aarch64"], Ok(Some("qemu-aarch64")));
    }

    #[test]
    fn tests_run_on_aarch64_and_a_broken_one_fails() {
        let tools = match Tools::find(cfg!(target_arch = "aarch64"), there) {
            Ok(tools) => tools,
            Err(reason) => return portolan_testkit::skipped(&reason),
        };
        let manifest = "[workspace]\n[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        for (expected, word) in [("aarch64", "PASS"), ("x86_64", "FAIL")] {
            let source =
                format!("#[test]\nfn a() {{ assert_eq!(std::env::consts::ARCH, \"{expected}\") }}\n");
            let dir = crate::tree::sample(&[("Cargo.toml", manifest), ("src/lib.rs", &source)]);
            let mut cargo = tools.cargo(dir.path(), &["test", "--lib"]);
            cargo.env("CARGO_TARGET_DIR", dir.path().join("target"));
            let outcome = test_run::watch(cargo).unwrap().outcome;
            assert_eq!(outcome.word(), word, "{outcome:?}");
        }
    }
}
