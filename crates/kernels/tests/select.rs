//! The choice of a port and its reasons.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{DType, Device, DeviceCaps, DeviceKind, cpu::CpuOptions};
use portolan_kernels::{
    CacheKind, Decline, Op, OpKind, OpSpec, PortPolicy, ValueType, Variant, chart,
    chart::{WeightSpec, select_among},
    has_kernel_port, select_port,
};
use portolan_weights::{Encoding, Foreign, Layout};

fn caps(kind: DeviceKind) -> DeviceCaps {
    let mut caps = Device::cpu(&CpuOptions { threads: 1 }).unwrap().caps().clone();
    caps.id.kind = kind;
    caps
}

fn weight(encoding: Encoding, layout: Layout) -> [WeightSpec; 1] {
    [WeightSpec { encoding, layout, shape: vec![8, 64] }]
}

const F32: Encoding = Encoding::Dense(DType::F32);

fn matmul(weights: &[WeightSpec], input: ValueType, input_cols: usize) -> OpSpec<'_> {
    OpSpec { op: &Op::Matmul, rows: 4, activation: DType::F32, input, input_cols, weights, cache: None }
}

fn policy(exact: bool, deterministic: bool, switch: Option<bool>) -> PortPolicy {
    PortPolicy { exact, deterministic, switches: switch.map(|on| (OpKind::Matmul, on)).into_iter().collect() }
}

/// The plain variant, changed.
fn variant(change: impl FnOnce(&mut Variant)) -> Variant {
    let mut variant = *chart::slot(OpKind::Matmul, DeviceKind::Cpu).last().unwrap();
    change(&mut variant);
    variant
}

#[track_caller]
fn check(slot: &[Variant], policy: &PortPolicy, expected: Result<&str, Decline>) {
    let weights = weight(F32, Layout::Planes);
    let spec = matmul(&weights, ValueType::Activation, 64);
    let found = select_among(slot, &spec, &caps(DeviceKind::Cpu), policy).map(|v| v.name);
    assert_eq!(found, expected);
}

#[test]
fn reasons_of_the_policy_and_of_the_variant() {
    let none = policy(false, false, None);
    check(&[], &none, Err(Decline::NoPort));
    let fast = || variant(|v| (v.name, v.exact) = ("fast", false));
    let plain = || variant(|_| ());
    check(&[fast(), plain()], &none, Ok("fast"));
    check(&[fast(), plain()], &policy(true, false, None), Ok("plain"));
    check(&[fast()], &policy(true, false, None), Err(Decline::NotExact));
    let varying = || variant(|v| (v.name, v.batch_invariant) = ("varying", false));
    check(&[varying(), plain()], &policy(false, true, None), Ok("plain"));
    check(&[varying()], &policy(false, true, None), Err(Decline::NotBatchInvariant));
    let opt_in = || variant(|v| (v.name, v.opt_in) = ("opt_in", true));
    check(&[opt_in(), plain()], &none, Ok("plain"));
    check(&[opt_in()], &none, Err(Decline::OptIn));
    check(&[opt_in(), plain()], &policy(false, false, Some(true)), Ok("opt_in"));
    check(&[opt_in(), plain()], &policy(false, false, Some(false)), Err(Decline::Closed));
    check(&[variant(|v| v.rows = (1, 3)), variant(|v| v.rows = (5, 9))], &none, Err(Decline::Shape));
    check(&[variant(|v| (v.name, v.rows) = ("four", (4, 4)))], &none, Ok("four"));
    for reason in [Decline::Wave, Decline::Arch, Decline::NotGpu] {
        let slot = match reason {
            Decline::Wave => variant(|v| v.takes = |_, _| Err(Decline::Wave)),
            Decline::Arch => variant(|v| v.takes = |_, _| Err(Decline::Arch)),
            _ => variant(|v| v.takes = |_, _| Err(Decline::NotGpu)),
        };
        check(&[slot], &none, Err(reason));
        check(&[slot, plain()], &none, Ok("plain"));
    }
}

#[track_caller]
fn check_cpu(spec: &OpSpec<'_>, policy: &PortPolicy, expected: Result<&str, Decline>) {
    assert_eq!(select_port(spec, &caps(DeviceKind::Cpu), policy).map(|v| v.name), expected, "{spec}");
}

#[test]
fn the_cpu_under_exact_takes_the_plain_port_or_says_why_not() {
    let exact = policy(true, false, None);
    let ok = weight(Encoding::Affine { bits: 3, group: 32, meta: DType::BF16 }, Layout::Planes);
    check_cpu(&matmul(&ok, ValueType::Activation, 64), &exact, Ok("plain"));
    check_cpu(&matmul(&ok, ValueType::Activation, 63), &exact, Err(Decline::Shape));
    check_cpu(&matmul(&ok, ValueType::Q8Rows, 64), &exact, Err(Decline::Dtype));
    let packed = weight(F32, Layout::Packed("of another device"));
    check_cpu(&matmul(&packed, ValueType::Activation, 64), &exact, Err(Decline::Dtype));
    let foreign = weight(Encoding::Foreign(Foreign::I64), Layout::Planes);
    check_cpu(&matmul(&foreign, ValueType::Activation, 64), &exact, Err(Decline::Dtype));
    let integers = weight(Encoding::Dense(DType::I32), Layout::Planes);
    check_cpu(&matmul(&integers, ValueType::Activation, 64), &exact, Err(Decline::Dtype));
    // 64 columns make no super-group of 256.
    let k4 = weight(Encoding::TwoLevel { bits: 4, group: 32, minima: true }, Layout::Planes);
    check_cpu(&matmul(&k4, ValueType::Activation, 64), &exact, Err(Decline::Shape));

    let of = |op, input_cols, cache| OpSpec {
        op,
        rows: 1,
        activation: DType::F32,
        input: ValueType::Activation,
        input_cols,
        weights: &[],
        cache,
    };
    let attention = Op::Attention { heads: 6, scale: 1.0, window: None };
    let pages = CacheKind::Paged { kv_heads: 2, k_dim: 8, v_dim: 8, window: None };
    check_cpu(&of(&attention, 48, Some((pages, DType::F16))), &exact, Ok("plain"));
    check_cpu(&of(&attention, 40, Some((pages, DType::F16))), &exact, Err(Decline::Shape));
    check_cpu(&of(&attention, 48, Some((pages, DType::I8))), &exact, Err(Decline::Dtype));
    let latent = CacheKind::Latent { rank: 8, rope: 8 };
    check_cpu(&of(&attention, 48, Some((latent, DType::F16))), &exact, Err(Decline::Shape));
    check_cpu(&of(&Op::RmsNorm { width: 0, eps: 0.0 }, 8, None), &exact, Err(Decline::Shape));
    let gate_up = Op::GateUp(portolan_kernels::Activation::Silu);
    assert!(select_port(&of(&gate_up, 8, None), &caps(DeviceKind::Cpu), &exact).is_err());
}

#[test]
fn a_device_without_ports_has_none() {
    let weights = weight(F32, Layout::Planes);
    let spec = matmul(&weights, ValueType::Activation, 64);
    for device in [DeviceKind::Cuda, DeviceKind::Rocm] {
        assert_eq!(has_kernel_port(OpKind::Matmul, device), !chart::slot(OpKind::Matmul, device).is_empty());
        if !has_kernel_port(OpKind::Matmul, device) {
            let found = select_port(&spec, &caps(device), &PortPolicy::default());
            assert_eq!(found.map(|v| v.name), Err(Decline::NoPort));
        }
    }
    for op in OpKind::ALL {
        assert!(op.is_fused() || has_kernel_port(op, DeviceKind::Cpu), "{op}");
    }
}

#[test]
fn closing_ignores_what_the_device_has() {
    let weights = weight(F32, Layout::Planes);
    let spec = matmul(&weights, ValueType::Activation, 64);
    check_cpu(&spec, &policy(false, false, Some(false)), Err(Decline::Closed));
    assert!(has_kernel_port(OpKind::Matmul, DeviceKind::Cpu));
}
