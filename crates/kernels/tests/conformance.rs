//! The conformance suite on the CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use portolan_device::{Device, cpu::CpuOptions, env};
use portolan_kernels::{
    OpKind,
    conformance::{self, cases, host},
    has_kernel_port,
};

/// Cases of an op that any sample keeps.
const FEWEST: usize = 24;

/// The names of the cases to run. `PORTOLAN_TEST_SAMPLE=8` leaves every eighth of an op, in an order by chance.
fn kept() -> HashSet<String> {
    let sample = env::number("PORTOLAN_TEST_SAMPLE").unwrap().unwrap_or(1);
    let of = |op: OpKind| {
        let mut names: Vec<_> = cases::of(op).into_iter().map(|case| case.name).collect();
        names.sort_by_key(|name| {
            let mut hash = DefaultHasher::new();
            name.hash(&mut hash);
            hash.finish()
        });
        let n = if sample <= 1 { names.len() } else { (names.len() / sample).max(FEWEST) };
        names.into_iter().take(n)
    };
    OpKind::ALL.into_iter().flat_map(of).collect()
}

#[test]
fn every_variant_of_the_cpu_agrees_with_its_reference() {
    let device = Device::cpu(&CpuOptions::default()).unwrap();
    let mut failures = Vec::new();
    let kept = kept();
    let keep = |case: &host::Case| kept.contains(&case.name);
    let summary = conformance::run(&device, &|_, _| true, &keep, &mut |result| {
        if let Err(failure) = result.outcome {
            failures.push(format!("{} {} ({}): {failure}", result.op, result.variant, result.case));
        }
    })
    .unwrap();
    println!("{summary}");
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(20)].join("\n")
    );
    assert_eq!(summary.failed(), 0);
    // What this processor lacks, a processor that has it shows.
    let lacks_vnni = !device.caps().has_feature("avx512vnni");
    let (lacking, unreached): (Vec<_>, Vec<_>) =
        summary.not_run().into_iter().partition(|(_, name)| lacks_vnni && name.starts_with("avx512vnni"));
    if !lacking.is_empty() {
        portolan_testkit::skipped(&format!("this processor lacks AVX-512 VNNI: {lacking:?}"));
    }
    assert_eq!(unreached, [], "variants that no case reaches");
    for op in OpKind::ALL {
        let reached = summary.rows.iter().any(|r| r.op == op && r.cases > 0);
        assert_eq!(reached, has_kernel_port(op, device.caps().kind()), "{op}");
    }
}
