//! The check of a launch: each part that does not fit is found and named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{DType, Device, MemoryKind, cpu::CpuOptions};
use portolan_kernels::{
    KernelError, Launch, Op, OpKind, RowSet, ValueType,
    conformance::{cases, place::Placer},
};
use portolan_weights::Layout;

/// A right launch of an op with rows, changed, and the error that must come of it.
#[track_caller]
fn check(op: OpKind, change: impl FnOnce(&mut Launch, &Device), expected: &str) {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let case = cases::of(op)
        .into_iter()
        .find(|c| c.rows() > 1 && c.shape.selected == 0)
        .unwrap_or_else(|| cases::of(op).remove(20));
    let placed = Placer::new(&device, DType::F32).unwrap().place(&case, Layout::Planes).unwrap();
    let mut launch = placed.launch.clone();
    assert_eq!(launch.check(device.caps()), Ok(()), "{op}");
    launch.scope = "layers.3".to_owned();
    change(&mut launch, &device);
    let error = launch.check(device.caps()).expect_err("it does not fit").to_string();
    assert!(error.contains(expected), "{op}: {error}");
    assert!(error.starts_with(&format!("layers.3: {op}: ")), "{error}");
}

#[test]
fn every_case_of_the_suite_fits() {
    // `Placer::place` checks, so it is enough to place one of each kind.
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let placer = Placer::new(&device, DType::F32).unwrap();
    for op in OpKind::ALL {
        for case in cases::of(op).iter().step_by(17) {
            if let Err(error) = placer.place(case, Layout::Planes) {
                panic!("{op} {}: {error}", case.name);
            }
        }
    }
}

#[test]
fn numbers_of_parts() {
    check(OpKind::Add, |l, _| drop(l.inputs.pop()), "number of inputs is 1, expected 2");
    check(OpKind::Embed, |l, _| l.weights.clear(), "number of weights is 0, expected 1");
    check(OpKind::GateUp, |l, _| l.weights.extend_from_within(..), "number of weights is 4, expected 2");
    check(OpKind::Attention, |l, _| l.cache = None, "number of caches is 0, expected 1");
    check(OpKind::AddRmsNorm, |l, _| drop(l.outputs.pop()), "number of outputs is 1, expected 2");
    check(OpKind::Qkv, |l, _| l.weights.truncate(2), "number of weights is 2, expected 3");
    check(OpKind::Qkv, |l, _| l.weights.extend_from_within(..1), "number of weights is");
    check(OpKind::NormRopeAppend, |l, _| drop(l.weights.pop()), "number of weights is 1, expected 2");
}

#[test]
fn shapes_and_types() {
    check(OpKind::Add, |l, _| l.inputs[1].cols += 1, "input 1 is");
    check(OpKind::Mul, |l, _| l.inputs[1].rows = RowSet::Selected, "input 1 is rows of Selected");
    check(OpKind::Matmul, |l, _| l.weights[0].shape[0] += 1, "shape of weight 0 is");
    check(OpKind::GateUp, |l, _| l.weights[1].shape[1] += 32, "shape of weight 1 is");
    check(OpKind::Argmax, |l, _| l.outputs[0].dtype = ValueType::F32, "output 0 is F32, expected [I32]");
    check(OpKind::Rope, |l, _| l.inputs[1].dtype = ValueType::Activation, "input 1 is Activation");
    check(OpKind::QuantizeRows, |l, _| l.outputs[0].dtype = ValueType::F32, "output 0 is F32");
    check(OpKind::Qkv, |l, _| l.outputs[2].dtype = ValueType::F32, "output 2 is");
    check(OpKind::Qkv, |l, _| l.weights.swap(0, 1), "shape of weight 0");
    check(OpKind::NormRopeAppend, |l, _| l.weights[1].shape[0] += 1, "shape of weight 1");
    check(OpKind::RmsNorm, |l, _| l.op = Op::RmsNorm { width: 0, eps: 0.0 }, "shape of weight 0");
    check(
        OpKind::Rope,
        |l, _| {
            if let Op::Rope { rot, .. } = &mut l.op {
                *rot += 1;
            }
        },
        "rotated elements",
    );
    check(
        OpKind::Attention,
        |l, _| {
            if let Op::Attention { heads, .. } = &mut l.op {
                *heads += 1;
            }
        },
        "is",
    );
    check(
        OpKind::Attention,
        |l, _| {
            if let Op::Attention { window, .. } = &mut l.op {
                *window = Some(0);
            }
        },
        "window is 0, expected 1",
    );
}

#[test]
fn rooms() {
    let shorter = |slice: &mut portolan_device::Slice| *slice = slice.slice(0, slice.len() - 1).unwrap();
    check(OpKind::Activate, |l, _| shorter(&mut l.inputs[0].slice), "bytes of a value is");
    check(OpKind::Activate, |l, _| shorter(&mut l.outputs[0].slice), "bytes of a value is");
    check(OpKind::Matmul, |l, _| shorter(&mut l.weights[0].planes[0]), "bytes of a plane of a weight is");
    check(
        OpKind::Matmul,
        |l, _| l.weights[0].planes.clear(),
        "number of planes of a weight is 0, expected 1",
    );
    check(OpKind::CacheAppend, |l, _| shorter(&mut l.cache.as_mut().unwrap().k), "bytes of the keys is");
    check(OpKind::Attention, |l, _| shorter(&mut l.cache.as_mut().unwrap().v), "bytes of the values is");
    let step = |l: &Launch| (*l.step).clone();
    check(
        OpKind::Attention,
        |l, _| {
            let mut step = step(l);
            step.max_pages += 1;
            l.step = step.into();
        },
        "bytes of the page table is",
    );
    check(
        OpKind::Embed,
        |l, _| {
            let mut step = step(l);
            shorter(&mut step.ids);
            l.step = step.into();
        },
        "bytes of the token ids is",
    );
    check(
        OpKind::Add,
        |l, _| {
            let slice = &mut l.outputs[0].slice;
            *slice = slice.slice(1, slice.len() - 1).unwrap();
        },
        "is",
    );
    check(OpKind::Matmul, |l, _| l.weights[0].layout = Layout::Packed("unknown"), "the layout of a weight");
}

#[test]
fn overlaps() {
    check(
        OpKind::Add,
        |l, _| l.outputs[0].slice = l.inputs[1].slice.clone(),
        "output 0 overlaps that of an input",
    );
    check(
        OpKind::AddRmsNorm,
        |l, _| l.outputs[1].slice = l.outputs[0].slice.clone(),
        "output 0 overlaps that of another output",
    );
    check(
        OpKind::Activate,
        |l, device| {
            let bytes = l.inputs[0].slice.len();
            let whole = device.alloc(2 * bytes, MemoryKind::Device).unwrap();
            l.inputs[0].slice = whole.slice(0, bytes).unwrap();
            l.outputs[0].slice = whole.slice(bytes - 4, bytes).unwrap();
        },
        "overlaps",
    );
}

#[test]
fn a_step_that_does_not_fit() {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let case = cases::of(OpKind::SelectRows).into_iter().find(|c| c.shape.selected == 2).unwrap();
    let placed = Placer::new(&device, DType::F32).unwrap().place(&case, Layout::Planes).unwrap();
    let (step, mut shape) = (&placed.launch.step, case.shape);
    assert!(step.holds(shape));
    shape.selected = 3;
    assert!(!step.holds(shape));
    shape = portolan_kernels::StepShape { rows: case.shape.rows + 1, ..case.shape };
    assert!(!step.holds(shape));
}

#[test]
fn memory_that_the_host_does_not_see_is_refused() {
    // There is no such memory on the CPU; the error's text is what a planner would show.
    let error = KernelError::NotHostMemory { scope: "layers.0".into(), op: OpKind::Add };
    assert_eq!(error.to_string(), "layers.0: add: the CPU cannot see its memory");
}
