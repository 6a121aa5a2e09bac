//! The conformance suite on hip-emu: at 32 and at 64 lanes, the threads of a block in three orders.

use std::path::Path;

use anyhow::Result;

use super::emu::{Emu, PROFILES};
use crate::outcome::Outcome;

/// A run of the suite: a device, the order of threads, and how much is checked.
type Run = (&'static str, &'static str, &'static str);

/// In the first order the emulator also looks for races in shared memory and for launches that write nothing; two more
/// show a barrier that is missing.
const ORDERS: [(&str, &str); 3] = [("forward", "full"), ("reverse", "strict"), ("random", "strict")];

/// Devices with fragments of matrix units of their own, or without any.
const OTHERS: [&str; 3] = ["gfx1030", "gfx1100", "gfx1201"];

/// Cases of a variant, where not all are run.
const FEW: usize = 1;

fn runs() -> Vec<Run> {
    let every = PROFILES.iter().flat_map(|&device| ORDERS.map(|(order, check)| (device, order, check)));
    every.chain(OTHERS.map(|device| (device, "forward", "strict"))).collect()
}

/// Runs the suite; a sample of its cases, if not `full`, which the log names.
pub(super) fn gate(root: &Path, full: bool) -> Result<Outcome> {
    let emu = match Emu::build(root)? {
        Ok(emu) => emu,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut findings = Vec::new();
    for run in runs() {
        findings.extend(one(&emu, run, full, &[])?);
    }
    let cases = if full { "all cases".to_owned() } else { format!("{FEW} case of each variant") };
    let what = format!("{cases}, 32 and 64 lanes, forward, reverse and random order, and {OTHERS:?}");
    Ok(Outcome::of(what, findings))
}

/// One run, and what is wrong.
fn one(emu: &Emu, (device, order, check): Run, full: bool, more: &[(&str, &str)]) -> Result<Vec<String>> {
    let mut profile = emu.profile(device).with("HIP_EMU_ORDER", order).with("HIP_EMU_CHECK", check);
    if !full {
        profile = profile.with("PORTOLAN_TEST_FEW", FEW);
    }
    for (name, value) in more {
        profile = profile.with(name, value);
    }
    let findings = profile.faults("kernels", "gpu", &["every_variant_of_rocm_agrees_with_its_reference"])?;
    Ok(findings.into_iter().map(|finding| format!("{device} {order}: {finding}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault in the text of a kernel, and a variant that has it.
    #[track_caller]
    fn check(emu: &Emu, variant: &str, edit: &str) {
        let run = (PROFILES[1], "forward", "strict");
        let more = [("PORTOLAN_TEST_ONLY", variant), ("HIP_EMU_EDIT", edit), ("PORTOLAN_TEST_FEW", "4")];
        let found = one(emu, run, false, &more).unwrap();
        let failed = found.iter().any(|finding| finding.contains("failed: every_variant_of_rocm"));
        assert!(failed, "{variant} with {edit}: {found:?}");
    }

    #[test]
    fn broken_kernels_fail() {
        let emu = match Emu::build(&crate::tree::root()).unwrap() {
            Ok(emu) => emu,
            Err(reason) => return portolan_testkit::skipped(&reason),
        };
        let run = (PROFILES[1], "forward", "strict");
        let right = one(&emu, run, false, &[("PORTOLAN_TEST_ONLY", "rms_norm.simt")]).unwrap();
        assert_eq!(right, Vec::<String>::new());
        // Lanes are added up from the eighth on: the rest of a wave is left out.
        check(
            &emu,
            "rms_norm.simt",
            "for (int mask = LANES / 2; mask > 0; mask /= 2) x += =>for (int mask = 8; mask > 0; mask /= 2) x += ",
        );
        // Parts of a sequence are merged by powers of 2, where they were summed by powers of e.
        check(&emu, "attention.split", "expf(m - top)=>exp2f(m - top)");
        // An argument of another size than the host's.
        check(&emu, "add.simt", "u64 elements;=>u64 elements[2];");
    }

    #[test]
    fn devices_and_orders() {
        let runs = runs();
        for device in PROFILES {
            for (order, check) in ORDERS {
                assert!(runs.contains(&(device, order, check)));
            }
        }
        assert_eq!(runs.len(), 9);
    }
}
