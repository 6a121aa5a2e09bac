//! Sums, products and functions, element by element.

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    by_rows, fast,
    isa::NAMES,
    lanes::{F32x8, add8, load8, mul8, store8},
    simd::{activate8, load_tail, takes_activation, takes_floats},
};
use crate::{
    Activation, Decline, Launch, Op, OpSpec, StepShape, Variant,
    cpu::access::{output, values},
};

pub(super) const ADD: Variant = fast(NAMES.floats, takes_floats, "f32; any size", add);
pub(super) const MUL: Variant = fast(NAMES.floats, takes_floats, "f32; any size", mul);
pub(super) const ACTIVATE: Variant = fast(NAMES.floats, takes_activate, "silu, gelu_tanh, relu2", activate);

fn takes_activate(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    let Op::Activate(f) = *spec.op else { return Err(Decline::NoPort) };
    takes_activation(f)?;
    takes_floats(spec, caps)
}

/// What is done with eight elements of each input.
#[derive(Clone, Copy)]
enum Step {
    Add,
    Mul,
    Activate(Activation),
}

#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn apply(step: Step, a: F32x8, b: F32x8) -> F32x8 {
    match step {
        Step::Add => add8(a, b),
        Step::Mul => mul8(a, b),
        Step::Activate(f) => activate8(f, a),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn row(step: Step, a: &[f32], b: &[f32], y: &mut [f32]) {
    let (eights, rest) = y.as_chunks_mut::<8>();
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    for ((y, a), b) in eights.iter_mut().zip(a_eights).zip(b_eights) {
        // SAFETY: arrays of eight.
        unsafe { store8(y.as_mut_ptr(), apply(step, load8(a.as_ptr()), load8(b.as_ptr()))) };
    }
    if !rest.is_empty() {
        // SAFETY: the rests are as long as that of y, since the rows are.
        let (a, b) =
            unsafe { (load_tail(a_rest.as_ptr(), rest.len()), load_tail(b_rest.as_ptr(), rest.len())) };
        let mut lanes = [0.0; 8];
        // SAFETY: an array of eight.
        unsafe { store8(lanes.as_mut_ptr(), apply(step, a, b)) };
        rest.copy_from_slice(&lanes[..rest.len()]);
    }
}

fn run(step: Step, launch: &Launch, shape: StepShape, team: &Team) {
    let a = values(&launch.inputs[0], shape);
    let b = launch.inputs.get(1).map_or(a, |b| values(b, shape));
    let (rows, cols) = (shape.of(launch.outputs[0].rows), launch.outputs[0].cols);
    let y = output::<f32>(&launch.outputs[0], shape);
    by_rows(team, rows, cols, |r| {
        let at = r * cols..(r + 1) * cols;
        // SAFETY: the row belongs to this chunk alone; `takes` saw the features.
        unsafe { row(step, &a[at.clone()], &b[at], y.row_mut(r)) };
    });
}

fn add(launch: &Launch, shape: StepShape, team: &Team) {
    run(Step::Add, launch, shape, team);
}

fn mul(launch: &Launch, shape: StepShape, team: &Team) {
    run(Step::Mul, launch, shape, team);
}

fn activate(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Activate(f) = launch.op else { return };
    run(Step::Activate(f), launch, shape, team);
}
