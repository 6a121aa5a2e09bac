//! The conformance suite on hip-emu: at 32 and at 64 lanes, the threads of a block in three orders.

use std::path::Path;

use anyhow::Result;

use super::emu::{Emu, PROFILES};
use crate::outcome::Outcome;

/// In the first order the emulator also looks for races in shared memory and for launches that write nothing; two more
/// show a barrier that is missing.
const ORDERS: [(&str, &str); 3] = [("forward", "full"), ("reverse", "strict"), ("random", "strict")];

/// Devices with matrix units of their own, or without any.
const OTHERS: [&str; 3] = ["gfx1030", "gfx1201", "gfx1100"];

/// What a sample runs on those of them whose code no other device has.
const SAMPLED_OTHERS: usize = 2;
const SAMPLED_OPS: &str = "matmul,gate_up.mma64,attention.mma";

/// Cases of a variant, where not all are run.
const FEW: usize = 1;

/// A run of the suite: a device, the order of threads, how much is checked, and settings of the tests.
type Run = (&'static str, &'static str, &'static str, Vec<(&'static str, String)>);

fn runs(full: bool) -> Vec<Run> {
    let few = || if full { Vec::new() } else { vec![("PORTOLAN_TEST_FEW", FEW.to_string())] };
    let every =
        PROFILES.iter().flat_map(|&device| ORDERS.map(|(order, check)| (device, order, check, few())));
    let others = OTHERS[..if full { OTHERS.len() } else { SAMPLED_OTHERS }].iter().map(|&device| {
        let mut settings = few();
        if !full {
            settings.push(("PORTOLAN_TEST_ONLY", SAMPLED_OPS.to_owned()));
        }
        (device, "forward", "strict", settings)
    });
    every.chain(others).collect()
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
        for (full, count) in [(false, 8), (true, 9)] {
            let runs = runs(full);
            assert_eq!(runs.len(), count);
            for (device, (order, check)) in PROFILES.iter().flat_map(|&d| ORDERS.map(|o| (d, o))) {
                assert!(runs.iter().any(|run| (run.0, run.1, run.2) == (device, order, check)));
            }
            let is_limited = |run: &Run| run.3.iter().any(|(name, _)| *name == "PORTOLAN_TEST_FEW");
            assert!(runs.iter().all(|run| is_limited(run) != full));
        }
    }
}
