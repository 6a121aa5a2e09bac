//! The conformance suite on hip-emu: at 32 and at 64 lanes, the threads of a block in three orders.

use std::path::Path;

use anyhow::Result;

use super::emu::{Emu, PROFILES};
use crate::outcome::Outcome;

/// A barrier that is missing shows in one of them.
const ORDERS: [&str; 3] = ["forward", "reverse", "random"];

/// What has memory that threads share: there the emulator looks for races too, by code that is compiled for it.
const SHARING: &str = "matmul,gate_up.mma64,qkv.gemv1,attention,add_rms_norm,argmax,norm_rope_append";

/// Devices with matrix units of their own, or without any; what a sample runs on the first two. The third has gfx1151's code.
const OTHERS: [&str; 3] = ["gfx1030", "gfx1201", "gfx1100"];
const SAMPLED_OTHERS: usize = 2;
const SAMPLED_OPS: &str = "matmul,gate_up.mma64,attention.mma";

/// Cases of a variant, where not all are run.
const FEW: usize = 1;

/// A run of the suite: a device, the order of threads, how much is checked, and settings of the tests.
type Run = (&'static str, &'static str, &'static str, Vec<(&'static str, String)>);

fn runs(full: bool) -> Vec<Run> {
    let only = |ops: &str| match full {
        true => Vec::new(),
        false => vec![("PORTOLAN_TEST_FEW", FEW.to_string()), ("PORTOLAN_TEST_ONLY", ops.to_owned())],
    };
    let few = || only("").into_iter().take(1).collect::<Vec<_>>();
    let every = PROFILES.iter().flat_map(|&device| ORDERS.map(|order| (device, order, "strict", few())));
    let races = PROFILES.iter().skip(if full { 0 } else { 1 });
    let races = races.map(|&device| (device, "forward", "full", only(SHARING)));
    let others = OTHERS.iter().take(if full { OTHERS.len() } else { SAMPLED_OTHERS });
    let others = others.map(|&device| (device, "forward", "strict", only(SAMPLED_OPS)));
    every.chain(races).chain(others).collect()
}

/// Runs the suite; a sample of its cases, if not `full`, which the log names.
pub(super) fn gate(root: &Path, full: bool) -> Result<Outcome> {
    let emu = match Emu::build(root)? {
        Ok(emu) => emu,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let (mut findings, runs) = (Vec::new(), runs(full));
    for run in &runs {
        findings.extend(one(&emu, run)?);
    }
    let mut devices: Vec<_> = runs.iter().map(|run| run.0).collect();
    devices.dedup();
    let cases = if full { "all cases".to_owned() } else { format!("{FEW} case of each variant and type") };
    let what = format!(
        "{cases}, on {}; at 32 and 64 lanes, in forward, reverse and random order",
        devices.join(", ")
    );
    Ok(Outcome::of(what, findings))
}

/// One run, and what is wrong.
fn one(emu: &Emu, (device, order, check, settings): &Run) -> Result<Vec<String>> {
    let mut profile = emu.profile(device).with("HIP_EMU_ORDER", order).with("HIP_EMU_CHECK", check);
    for (name, value) in settings {
        profile = profile.with(name, value);
    }
    let findings = profile.faults("kernels", "gpu", &["every_variant_of_rocm_agrees_with_its_reference"])?;
    Ok(findings.into_iter().map(|finding| format!("{device} {order}: {finding}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs four cases of a variant, with a fault in its text; whether they fail.
    fn fails(emu: &Emu, variant: &str, edit: &str) -> bool {
        let settings = [("PORTOLAN_TEST_ONLY", variant), ("HIP_EMU_EDIT", edit), ("PORTOLAN_TEST_FEW", "4")];
        let settings = settings.map(|(name, value)| (name, value.to_owned())).to_vec();
        let found = one(emu, &(PROFILES[1], "forward", "strict", settings)).unwrap();
        assert!(
            found.is_empty() || found.iter().any(|f| f.contains("failed: every_variant_of_rocm")),
            "{found:?}"
        );
        !found.is_empty()
    }

    #[test]
    fn broken_kernels_fail() {
        let emu = match Emu::build(&crate::tree::root()).unwrap() {
            Ok(emu) => emu,
            Err(reason) => return portolan_testkit::skipped(&reason),
        };
        assert!(!fails(&emu, "rms_norm.simt", ""));
        // Lanes are added up from the eighth on: the rest of a wave is left out.
        let fold = "for (int mask = LANES / 2; mask > 0; mask /= 2) x += =>for (int mask = 8; mask > 0; mask /= 2) x += ";
        assert!(fails(&emu, "rms_norm.simt", fold));
        // Parts of a sequence are merged by powers of 2, where they were summed by powers of e.
        assert!(fails(&emu, "attention.split", "expf(m - top)=>exp2f(m - top)"));
        // Arguments of another size than the host's.
        assert!(fails(&emu, "add.simt", "u64 elements;=>u64 elements[2];"));
    }

    #[test]
    fn devices_and_orders() {
        for (full, count) in [(false, 9), (true, 11)] {
            let runs = runs(full);
            assert_eq!(runs.len(), count);
            for (device, order) in PROFILES.iter().flat_map(|&d| ORDERS.map(|o| (d, o))) {
                assert!(runs.iter().any(|run| (run.0, run.1) == (device, order)));
            }
            let is_limited = |run: &Run| run.3.iter().any(|(name, _)| *name == "PORTOLAN_TEST_FEW");
            assert!(runs.iter().all(|run| is_limited(run) != full));
        }
    }
}
