//! `cargo xtask verify-rocm`: what can be proved of the ROCm side on this machine.
//!
//! All gates but the last need no AMD GPU: kernels are compiled by clang, and run on hip-emu. docs/rocm.md says what each
//! gate proves.

mod abi;
mod budget;
mod clang;
mod code_object;
mod compile;
mod device;
mod dispatch;
mod emu;
mod end_to_end;
mod execute;
pub(crate) mod front_end;
mod headers;
mod hip_table;
mod occupancy;
mod ownership;
mod smoke;
mod tree;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use portolan::device::Device;

use crate::{
    about,
    gates::{self, Flags},
    outcome::Outcome,
    records,
    report::{self, Row, timed},
    tree::root,
};
use compile::Amount;

/// What to run.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify-rocm --only dispatch --only compile --full")]
pub(crate) struct Args {
    /// Run everything of each gate, and not a sample.
    #[arg(long)]
    full: bool,
    /// Kernels of an architecture that a sample compiles, spread evenly over the variants, and not two of each.
    #[arg(long, value_name = "N", conflicts_with = "full")]
    sample: Option<usize>,
    /// Compile for this architecture and no other. May be given several times.
    #[arg(long, value_name = "ARCH", value_parser = occupancy::TARGETS.map(|target| target.name))]
    arch: Vec<String>,
    #[command(flatten)]
    gates: Flags<Gate>,
}

/// A gate, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gate {
    /// Format, clippy, layers, documents, versions, and all tests.
    Tree,
    /// LOCAL_FIXES.md, the marks in the tree and the tests that it names agree.
    Records,
    /// The table of HIP's functions against declarations made by others.
    Abi,
    /// What the sources may not hold: launches outside the chart, names of backends, lanes counted by a literal.
    Dispatch,
    /// Every kernel variant compiles for six architectures, within its budget.
    Compile,
    /// The conformance suite on hip-emu.
    Execute,
    /// Nothing leaks, and each HIP call may fail.
    Ownership,
    /// Models on hip-emu give the CPU's tokens.
    EndToEnd,
    /// An AMD GPU.
    Device,
}

impl Gate {
    fn run(self, root: &Path, args: &Args) -> Result<Outcome> {
        let full = args.full;
        match self {
            Gate::Tree => tree::gate(root),
            Gate::Records => records::gate(root),
            Gate::Abi => abi::gate(root),
            Gate::Dispatch => dispatch::gate(root),
            Gate::Compile => compile::gate(Amount::of(full, args.sample), &args.arch),
            Gate::Execute => execute::gate(root, full),
            Gate::Ownership => ownership::gate(root, full),
            Gate::EndToEnd => end_to_end::gate(root, full),
            Gate::Device => device::gate(root),
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
        .map(|gate| timed(gates::name(&gate), || gate.run(&root, args)))
        .collect();
    args.gates.end(&rows, || report(&rows, args.full))
}

/// The results with what they are of.
fn report(rows: &[Row], full: bool) -> Result<serde_json::Value> {
    let device = match Device::rocm(0) {
        Ok(device) => format!("{} ({})", device.caps().name, device.caps().arch),
        Err(error) => format!("none: {error}"),
    };
    let clang = match clang::Clang::find()? {
        Ok(clang) => clang.version,
        Err(reason) => format!("none: {reason}"),
    };
    Ok(serde_json::json!({
        "commit": about::commit(),
        "date": about::date(),
        "rustc": about::said("rustc", &["--version"]),
        "clang": clang,
        "hiprtc": front_end::version(),
        "driver": about::said("cat", &["/sys/module/amdgpu/version"]),
        "kernel": about::said("uname", &["-r"]),
        "device": device,
        "full": full,
        "gates": report::json(rows),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_chosen_by_name_and_run_in_order() {
        let names = |only: &[Gate], skip: &[Gate]| {
            Flags::of(only, skip).chosen().iter().map(gates::name).collect::<Vec<_>>().join(" ")
        };
        let all = "tree records abi dispatch compile execute ownership end-to-end device";
        assert_eq!(names(&[], &[]), all);
        assert_eq!(names(&[Gate::Device, Gate::Abi], &[]), "abi device");
        assert_eq!(names(&[Gate::Device, Gate::Abi], &[Gate::Abi]), "device");
    }

    #[test]
    fn the_report_says_what_it_is_of() {
        let rows =
            [Row { name: "abi".into(), outcome: Outcome::Skipped("no compiler".into()), seconds: 0.0 }];
        let report = report(&rows, true).unwrap();
        assert_eq!(report["gates"][0]["outcome"], "SKIPPED");
        for key in ["commit", "date", "rustc", "clang", "hiprtc", "device"] {
            assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {report}");
        }
    }
}
