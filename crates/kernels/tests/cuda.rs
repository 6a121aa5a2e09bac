//! The conformance suite on an NVIDIA GPU, where there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{DType, Device, DeviceCaps, DeviceId, DeviceKind};
use std::hash::{DefaultHasher, Hash, Hasher};

use portolan_kernels::{
    OpKind, chart,
    conformance::{
        self,
        host::{Case, Weight},
    },
    gpu::offline::wanted as wanted_of,
    has_kernel_port,
};
use portolan_testkit::skipped;

/// `PORTOLAN_TEST_ONLY=matmul` runs one op, `matmul.mma` one variant.
fn wanted(op: OpKind, variant: &str) -> bool {
    std::env::var("PORTOLAN_TEST_ONLY").map_or(true, |only| match only.split_once('.') {
        Some((o, v)) => o == op.name() && v == variant,
        None => only == op.name(),
    })
}

/// `PORTOLAN_TEST_SAMPLE=8` keeps every eighth case, and all with the encodings that most checkpoints have.
fn kept(case: &Case) -> bool {
    let sample = std::env::var("PORTOLAN_TEST_SAMPLE").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    let common = ["affine4-g64-bf16", "affine4-g32-f16", "bf16"];
    let is_common = |w: &Weight| w.is_matrix() && common.contains(&w.encoding.to_string().as_str());
    let mut hash = DefaultHasher::new();
    case.name.hash(&mut hash);
    sample <= 1
        || hash.finish().is_multiple_of(sample)
        || (sample < 100 && case.weights.iter().any(is_common))
}

#[test]
fn every_variant_of_cuda_agrees_with_its_reference() {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => return skipped(&error.to_string()),
    };
    println!("{:?}", device.caps());
    let mut failures = std::collections::BTreeMap::<String, Vec<String>>::new();
    let summary = conformance::run(&device, &|op, v| wanted(op, v.name), &kept, &mut |result| {
        if let Err(failure) = result.outcome {
            let key = format!("{} {} {}", result.op, result.variant, result.activation);
            failures.entry(key).or_default().push(format!("{}: {failure}", result.case));
        }
    })
    .unwrap();
    println!("{summary}");
    for (variant, list) in &failures {
        println!("{variant}: {} failures", list.len());
        list.iter().take(6).for_each(|line| println!("    {line}"));
    }
    assert_eq!(summary.failed(), 0);
    if std::env::var_os("PORTOLAN_TEST_SAMPLE").is_none() && std::env::var_os("PORTOLAN_TEST_ONLY").is_none()
    {
        assert_eq!(summary.not_run(), [], "variants that no case reaches");
    }
}

/// A variant that no case reaches is proved by nothing. Needs no GPU.
#[test]
fn every_variant_of_cuda_is_reached_by_a_case() {
    let caps = DeviceCaps {
        id: DeviceId { kind: DeviceKind::Cuda, ordinal: 0 },
        name: "none".to_owned(),
        arch: "sm_90".to_owned(),
        features: ["mma_bf16", "cp_async", "overlap", "cluster", "wgmma"].map(str::to_owned).into(),
        wave_width: 32,
        integrated: false,
        units: 132,
    };
    let wanted = wanted_of(&caps, &[DType::BF16], &|_| true).unwrap();
    for op in OpKind::ALL {
        for variant in chart::slot(op, DeviceKind::Cuda) {
            assert!(wanted.iter().any(|w| (w.op, w.variant) == (op, variant.name)), "{op} {}", variant.name);
        }
    }
}

#[test]
fn every_primitive_has_a_port() {
    for op in OpKind::ALL {
        assert!(has_kernel_port(op, DeviceKind::Cuda), "{op}");
    }
}
