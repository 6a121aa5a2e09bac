//! The conformance suite on the GPUs that are there: NVIDIA's through CUDA, AMD's through ROCm or its stand-in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use portolan_device::{DType, Device, DeviceCaps, DeviceError, DeviceId, DeviceKind, env, rocm::arch::Arch};

use portolan_kernels::{
    OpKind, chart,
    conformance::{
        self, CaseResult, Summary, cases,
        host::{Case, Weight},
        place::weight_specs,
    },
    gpu::offline::wanted as wanted_of,
    has_kernel_port,
};
use portolan_testkit::skipped;
use portolan_weights::Layout;

fn number(name: &str) -> Option<usize> {
    env::number(name).unwrap()
}

fn hash(case: &Case) -> u64 {
    let mut hash = DefaultHasher::new();
    case.name.hash(&mut hash);
    hash.finish()
}

/// `PORTOLAN_TEST_FEW=2`: of each variant the first cases that it takes in an order by chance, so many, which are named.
/// For a device where a case takes long.
fn run_few(device: &Device, few: usize, report: &mut dyn FnMut(CaseResult)) -> Summary {
    let mut all = Summary::default();
    for op in OpKind::ALL {
        let mut cases = cases::of(op);
        cases.sort_by_key(hash);
        for variant in chart::slot(op, device.caps().kind()).iter().filter(|v| wanted(op, v.name)) {
            let takes = |case: &&Case| {
                let weights = weight_specs(case, Layout::Planes);
                conformance::activations(device).iter().any(|&activation| {
                    let spec = case.spec(&weights, activation);
                    let rows = (variant.rows.0..=variant.rows.1).contains(&spec.rows);
                    rows && (variant.takes)(&spec, device.caps()).is_ok()
                })
            };
            let names: Vec<_> = cases.iter().filter(takes).take(few).map(|case| case.name.clone()).collect();
            names.iter().for_each(|name| println!("{op} {}: {name}", variant.name));
            let one = |o, v: &chart::Variant| o == op && v.name == variant.name;
            let keep = |case: &Case| names.contains(&case.name);
            all.rows.extend(conformance::run(device, &one, &keep, report).unwrap().rows);
        }
    }
    all
}

/// `PORTOLAN_TEST_ONLY=matmul,attention.mma` runs the variants of one op, and one variant of another.
fn wanted(op: OpKind, variant: &str) -> bool {
    let is = |only: &str| match only.split_once('.') {
        Some((o, v)) => o == op.name() && v == variant,
        None => only == op.name(),
    };
    std::env::var("PORTOLAN_TEST_ONLY").map_or(true, |list| list.split(',').any(is))
}

/// `PORTOLAN_TEST_SAMPLE=8` keeps every eighth case, and all with the encodings that most checkpoints have.
fn kept(case: &Case) -> bool {
    let sample = number("PORTOLAN_TEST_SAMPLE").unwrap_or(1) as u64;
    let common = ["affine4-g64-bf16", "affine4-g32-f16", "bf16"];
    let is_common = |w: &Weight| w.is_matrix() && common.contains(&w.encoding.to_string().as_str());
    sample <= 1 || hash(case).is_multiple_of(sample) || (sample < 100 && case.weights.iter().any(is_common))
}

/// Every variant of a kind of GPU against its reference, if there is such a GPU.
#[track_caller]
fn check(device: Result<Device, DeviceError>) {
    let device = match device {
        Ok(device) => device,
        Err(error) => return skipped(&error.to_string()),
    };
    println!("{:?}", device.caps());
    let mut failures = BTreeMap::<String, Vec<String>>::new();
    let mut report = |result: CaseResult| {
        if let Err(failure) = result.outcome {
            let key = format!("{} {} {}", result.op, result.variant, result.activation);
            failures.entry(key).or_default().push(format!("{}: {failure}", result.case));
        }
    };
    let summary = match number("PORTOLAN_TEST_FEW") {
        Some(few) => run_few(&device, few, &mut report),
        None => conformance::run(&device, &|op, v| wanted(op, v.name), &kept, &mut report).unwrap(),
    };
    println!("{summary}");
    for (variant, list) in &failures {
        println!("{variant}: {} failures", list.len());
        list.iter().take(6).for_each(|line| println!("    {line}"));
    }
    assert_eq!(summary.failed(), 0);
    let part = ["PORTOLAN_TEST_SAMPLE", "PORTOLAN_TEST_FEW", "PORTOLAN_TEST_ONLY"];
    if part.iter().all(|name| std::env::var_os(name).is_none()) && device.caps().kind() == DeviceKind::Cuda {
        assert_eq!(summary.not_run(), [], "variants that no case reaches");
    }
}

#[test]
fn every_variant_of_cuda_agrees_with_its_reference() {
    check(Device::cuda(0));
}

#[test]
fn every_variant_of_rocm_agrees_with_its_reference() {
    check(Device::rocm(0));
}

fn caps(kind: DeviceKind, arch: &str, features: &[&str], wave_width: u32) -> DeviceCaps {
    DeviceCaps {
        id: DeviceId { kind, ordinal: 0 },
        name: "none".to_owned(),
        arch: arch.to_owned(),
        features: features.iter().map(|f| (*f).to_owned()).collect(),
        wave_width,
        integrated: false,
        units: 132,
    }
}

/// A variant that no case reaches is proved by nothing. Needs no GPU.
#[test]
fn every_variant_is_reached_by_a_case() {
    let nvidia =
        [caps(DeviceKind::Cuda, "sm_90", &["mma_bf16", "cp_async", "overlap", "cluster", "wgmma"], 32)];
    let amd = ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"].map(|name| {
        let arch: Arch = name.parse().unwrap();
        caps(DeviceKind::Rocm, name, &arch.instructions(), if arch.major == 9 { 64 } else { 32 })
    });
    for all in [nvidia.as_slice(), &amd] {
        let of = |caps| wanted_of(caps, &[DType::BF16], &|_, _| true, &|_| true).unwrap();
        let reached: BTreeSet<_> = all.iter().flat_map(of).map(|w| (w.op, w.variant)).collect();
        for op in OpKind::ALL {
            for variant in chart::slot(op, all[0].kind()) {
                assert!(reached.contains(&(op, variant.name)), "{op} {}", variant.name);
            }
        }
    }
}

#[test]
fn candle_1911_every_primitive_has_a_port() {
    for kind in DeviceKind::ALL {
        for op in OpKind::ALL.into_iter().filter(|op| !op.is_fused()) {
            assert!(has_kernel_port(op, kind), "{op} on {kind}");
        }
    }
}
