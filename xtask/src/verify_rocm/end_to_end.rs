//! Whole models on hip-emu: what the families and the real default model give is what the CPU gives.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    emu::{Emu, PROFILES},
    smoke,
};
use crate::outcome::Outcome;

/// Tokens of SmolLM2 that are compared.
const TOKENS: usize = 8;

/// Families, loading, and the default model; the families' exact tests alone, if not `full`.
pub(super) fn gate(root: &Path, full: bool) -> Result<Outcome> {
    let emu = match Emu::build(root)? {
        Ok(emu) => emu,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut findings = Vec::new();
    for device in PROFILES {
        let (profile, names): (_, &[&str]) = match full {
            true => (emu.profile(device), &[]),
            false => (emu.profile(device).with("PORTOLAN_TEST_FEW", 1), &["tiny_exact", "mlx_exact"]),
        };
        let mut found = profile.faults("portolan", "oracle", names)?;
        found.extend(profile.faults("portolan", "gpu", &[])?);
        findings.extend(found.into_iter().map(|finding| format!("{device}: {finding}")));
    }
    // These choose their devices by themselves.
    findings.extend(emu.profile(PROFILES[0]).faults("cli", "hip_emu", &[])?);
    let expected = match fetch(&emu)? {
        Some(error) => return Ok(Outcome::Fail(vec![error])),
        None => tokens(emu.portolan(), "cpu")?,
    };
    for device in PROFILES {
        let profile = emu.profile(device);
        let found = match tokens(profile.portolan(), "rocm") {
            Ok(found) if found == expected => Vec::new(),
            Ok(found) => vec![format!("SmolLM2 gives {found:?}, the CPU gives {expected:?}")],
            Err(error) => vec![format!("SmolLM2: {error:#}")],
        };
        let found = found.into_iter().chain(profile.violations()?);
        findings.extend(found.map(|finding| format!("{device}: {finding}")));
    }
    let families = if full { "all tests of the families" } else { "the families' exact tests" };
    let what = format!(
        "{families} and {TOKENS} tokens of SmolLM2 ({expected:?}) on {PROFILES:?}; four arms, a ring that goes round, \
         an APU's two pools"
    );
    Ok(Outcome::of(what, findings))
}

/// Sees that the default model is there; the error if it is not to be had.
fn fetch(emu: &Emu) -> Result<Option<String>> {
    let output = emu.portolan().args(["pull", "smollm2"]).output().context("cannot run portolan")?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok((!output.status.success()).then(|| format!("portolan pull smollm2: {}", said.trim())))
}

/// The first tokens after a prompt, the likeliest each, with plain f32 kernels: a rounding to 16 bits may part them.
fn tokens(command: Command, device: &str) -> Result<Vec<u64>> {
    let args = ["--exact", "-n", &TOKENS.to_string(), "-c", "128", "--device", device];
    Ok(smoke::generate(command, &args)?.tokens)
}
