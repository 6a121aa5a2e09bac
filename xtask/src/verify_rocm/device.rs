//! A real AMD GPU: the whole conformance suite, a text, and the benchmarks.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result};
use portolan::{
    device::{Device, env},
    kernels::OpKind,
};

use super::smoke;
use crate::{outcome::Outcome, test_run::watch};

/// Tokens of the text.
const TOKENS: usize = 32;

/// Runs all of it on the first AMD GPU, sample or not: it is seldom at hand.
pub(super) fn gate(root: &Path) -> Result<Outcome> {
    let is_emulator = env::path("PORTOLAN_HIP_LIBRARY")
        .is_some_and(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("emu")));
    if is_emulator {
        return Ok(Outcome::Skipped("no AMD GPU: PORTOLAN_HIP_LIBRARY names hip-emu".to_owned()));
    }
    let device = match Device::rocm(0) {
        Ok(device) => device,
        Err(error) => return Ok(Outcome::Skipped(format!("no AMD GPU: {error}"))),
    };
    let what = format!("{} ({})", device.caps().name, device.caps().arch);
    // Another process takes the device's memory.
    drop(device);
    let mut findings = Vec::new();
    for [package, test] in [["portolan-kernels", "gpu"], ["portolan", "oracle"], ["portolan", "gpu"]] {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args([
            "test",
            "--release",
            "-p",
            package,
            "--test",
            test,
            "--",
            "--nocapture",
        ]);
        let ran = watch(cargo)?;
        if let Outcome::Fail(found) = ran.outcome {
            findings.extend(found.into_iter().map(|finding| format!("{package} {test}: {finding}")));
        }
        let skips = ran.skips.into_iter().filter(|skip| !skip.starts_with("SKIPPED(cuda "));
        findings.extend(skips.map(|skip| format!("{package} {test}: {skip}")));
    }
    findings.extend(text(root)?.into_iter().map(|finding| format!("smoke: {finding}")));
    let bench = Command::new("cargo").current_dir(root).args(["bench", "--workspace"]).status();
    if !bench.context("cannot run cargo")?.success() {
        findings.push("cargo bench failed".to_owned());
    }
    Ok(Outcome::of(format!("{what}: conformance, families, {TOKENS} tokens of SmolLM2"), findings))
}

/// The default model's text, found by nothing but the system's own search for libraries.
fn text(root: &Path) -> Result<Vec<String>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["run", "--quiet", "--release", "-p", "portolan-cli", "--"]);
    cargo.env_remove("LD_LIBRARY_PATH").env("PORTOLAN_DEBUG_KERNELS", "1");
    let fused: BTreeSet<_> = OpKind::ALL.into_iter().filter(|op| op.is_fused()).map(OpKind::name).collect();
    match smoke::generate(cargo, &["-n", &TOKENS.to_string(), "--ignore-eos", "--device", "rocm"]) {
        Ok(run) => Ok(smoke::faults(&run, "rocm", TOKENS, &fused)),
        Err(error) => Ok(vec![format!("{error:#}")]),
    }
}
