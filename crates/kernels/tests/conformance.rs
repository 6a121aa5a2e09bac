//! The conformance suite on the CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{Device, cpu::CpuOptions};
use portolan_kernels::{OpKind, conformance, has_kernel_port};

#[test]
fn every_variant_of_the_cpu_agrees_with_its_reference() {
    let device = Device::cpu(&CpuOptions::default()).unwrap();
    let mut failures = Vec::new();
    let summary = conformance::run(&device, &|_, _| true, &|_| true, &mut |result| {
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
