//! Faults planted in right kernels: the suite must see each of them.

use std::sync::Arc;

use portolan_device::{Device, MemoryKind, cpu::CpuOptions};
use portolan_weights::Plane;

use super::*;
use crate::{Launch, Op, ValueType, chart::CpuKernel, cpu::plain};

type Kernel = fn(&Launch, StepShape, &Team);

/// The plain variant of an op with another kernel.
fn broken(op: OpKind, kernel: Kernel) -> Variant {
    let plain = chart::slot(op, portolan_device::DeviceKind::Cpu).last().unwrap();
    Variant { name: "broken", entry: Entry::Cpu(kernel), ..*plain }
}

/// What the suite finds first, and how many of how many cases fail.
fn failures(op: OpKind, kernel: Kernel) -> (Vec<Failure>, usize) {
    let device = Device::cpu(&CpuOptions::default()).unwrap();
    let mut found = Vec::new();
    let variant = broken(op, kernel);
    let rows = Suite::new(&device, portolan_device::DType::F32).unwrap().op(
        op,
        &[&variant],
        &|_| true,
        &mut |result| {
            found.extend(result.outcome.err());
        },
    );
    assert_eq!(rows[0].failed, found.len());
    (found, rows[0].cases)
}

/// Asserts that a fault fails at least `share` of the cases, and at least once in the expected way.
#[track_caller]
fn check(op: OpKind, kernel: Kernel, share: f64, expected: impl Fn(&Failure) -> bool) {
    let (found, cases) = failures(op, kernel);
    assert!(found.len() as f64 >= share * cases as f64, "{op}: {} of {cases} cases fail", found.len());
    assert!(found.iter().any(expected), "{op}: {:?}", found.first());
}

fn unwritten(failure: &Failure) -> bool {
    matches!(failure, Failure::Unwritten { .. })
}

fn wrong(failure: &Failure) -> bool {
    matches!(failure, Failure::Wrong { .. })
}

fn right(launch: &Launch, shape: StepShape, team: &Team) {
    let input = launch.inputs.first().map_or(ValueType::Activation, |x| x.dtype);
    plain::kernel(launch.op.kind(), input).unwrap()(launch, shape, team);
}

/// A buffer of the host with other content.
fn memory(bytes: &[u8]) -> portolan_device::Slice {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let mut buffer = device.alloc(bytes.len(), MemoryKind::Device).unwrap();
    buffer.host_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
    buffer.slice(0, bytes.len()).unwrap()
}

fn bytes_of(slice: &portolan_device::Slice) -> Vec<u8> {
    crate::cpu::access::read::<u8>(slice, slice.len()).to_vec()
}

#[test]
fn a_right_kernel_passes() {
    for op in [OpKind::Add, OpKind::Attention, OpKind::QuantizeRows, OpKind::CacheAppend] {
        assert_eq!(failures(op, right).0, []);
    }
}

#[test]
fn skips_the_last_row() {
    fn kernel(launch: &Launch, mut shape: StepShape, team: &Team) {
        shape.rows = shape.rows.saturating_sub(1);
        shape.selected = shape.selected.saturating_sub(1);
        right(launch, shape, team);
    }
    for op in [OpKind::Embed, OpKind::RmsNorm, OpKind::Rope, OpKind::Attention, OpKind::Argmax, OpKind::Mul] {
        // Some cases have no rows.
        check(op, kernel, 0.75, unwritten);
    }
    check(OpKind::CacheAppend, kernel, 0.8, unwritten);
    // The last row of int8 codes is -1 with scales that are no numbers.
    check(OpKind::QuantizeRows, kernel, 0.8, wrong);
}

#[test]
fn skips_the_last_column() {
    fn kernel(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        let y = &launch.outputs[0];
        let rows = crate::cpu::access::output::<u32>(y, shape);
        for row in 0..shape.of(y.rows) {
            // SAFETY: the kernel is done; nothing else refers to the output.
            unsafe { rows.row_mut(row)[y.cols - 1] = u32::MAX }
        }
    }
    for op in [OpKind::Matmul, OpKind::RmsNorm, OpKind::Activate, OpKind::Attention] {
        check(op, kernel, 0.8, unwritten);
    }
}

/// Runs attention with every position moved by `by`.
fn moved(launch: &Launch, shape: StepShape, team: &Team, by: i32) {
    let mut launch = launch.clone();
    let mut step = (*launch.step).clone();
    let positions: &[i32] = crate::cpu::access::read(&step.positions, shape.rows);
    let positions: Vec<i32> = positions.iter().map(|p| p + by).collect();
    step.positions = memory(bytemuck::cast_slice(&positions));
    launch.step = Arc::new(step);
    right(&launch, shape, team);
}

#[test]
fn off_by_one_in_the_context() {
    check(OpKind::Attention, |l, s, t| moved(l, s, t, -1), 0.8, wrong);
    // One position too many is NaN in the cache, or the next row's.
    check(OpKind::Attention, |l, s, t| moved(l, s, t, 1), 0.8, |_| true);
    fn narrow(launch: &Launch, shape: StepShape, team: &Team) {
        let mut launch = launch.clone();
        if let Op::Attention { window: Some(window), .. } = &mut launch.op {
            *window = (*window - 1).max(1);
        }
        right(&launch, shape, team);
    }
    check(OpKind::Attention, narrow, 0.15, wrong);
    fn wide(launch: &Launch, shape: StepShape, team: &Team) {
        let mut launch = launch.clone();
        if let Op::Attention { window: Some(window), .. } = &mut launch.op {
            *window += 1;
        }
        right(&launch, shape, team);
    }
    check(OpKind::Attention, wide, 0.15, |_| true);
}

#[test]
fn wrong_scale_of_a_group() {
    fn kernel(launch: &Launch, shape: StepShape, team: &Team) {
        let mut launch = launch.clone();
        let weight = &mut launch.weights[0];
        if let Some(scales) = weight.encoding.planes().iter().position(|p| *p == Plane::Scales) {
            let mut bytes = bytes_of(&weight.planes[scales]);
            // The last group has its neighbour's scale.
            let k = weight.shape[weight.shape.len() - 1];
            let groups = k / weight.encoding.group();
            let size = weight.encoding.row_bytes(Plane::Scales, k) / groups;
            let end = bytes.len();
            if groups > 1 {
                bytes.copy_within(end - 2 * size..end - size, end - size);
            }
            weight.planes[scales] = memory(&bytes);
        }
        right(&launch, shape, team);
    }
    // A third of the sizes has more than one group a row, and neighbours may have the same scale.
    check(OpKind::Matmul, kernel, 0.3, wrong);
    check(OpKind::Embed, kernel, 0.2, wrong);
}

#[test]
fn rounds_where_it_must_not() {
    fn kernel(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        let y = &launch.outputs[0];
        let rows = crate::cpu::access::output::<f32>(y, shape);
        for row in 0..shape.of(y.rows) {
            // SAFETY: the kernel is done; nothing else refers to the output.
            for y in unsafe { rows.row_mut(row) } {
                *y = half::f16::from_f32(*y).to_f32();
            }
        }
    }
    for op in [OpKind::Matmul, OpKind::RmsNorm, OpKind::Attention, OpKind::Rope, OpKind::Activate] {
        // A context of one position is a copy, out of a cache that may be f16.
        check(op, kernel, 0.7, wrong);
    }
}

#[test]
fn writes_beyond_its_output() {
    fn kernel(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        let y = &launch.outputs[0].slice;
        if let Some(end) = y.host_ptr() {
            // SAFETY: a guard follows the output, and the kernel is done.
            unsafe { *end.as_ptr().add(y.len()) = 0 }
        }
    }
    // Some cases have no rows, and run nothing.
    check(OpKind::Add, kernel, 0.8, |f| *f == Failure::Guard);
}

#[test]
fn depends_on_threads_or_on_other_rows() {
    fn threads(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        nudge(launch, shape, team.threads() == 3);
    }
    check(OpKind::RmsNorm, threads, 0.4, |f| *f == Failure::Threads);
    fn batch(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        nudge(launch, shape, shape.of(launch.outputs[0].rows) > 1);
    }
    check(OpKind::RmsNorm, batch, 0.4, |f| matches!(f, Failure::Batch { .. }));
    /// Changes the last bit of every element, which no tolerance sees.
    fn nudge(launch: &Launch, shape: StepShape, on: bool) {
        let y = &launch.outputs[0];
        let rows = crate::cpu::access::output::<u32>(y, shape);
        for row in 0..shape.of(y.rows) {
            // SAFETY: the kernel is done; nothing else refers to the output.
            let numbers = unsafe { rows.row_mut(row) }.iter_mut().filter(|y| **y << 1 != 0);
            numbers.for_each(|y| *y ^= u32::from(on));
        }
    }
}

#[test]
fn panics() {
    let quiet: CpuKernel = |_, _, _| std::panic::resume_unwind(Box::new("on purpose"));
    check(OpKind::Add, quiet, 0.8, |f| *f == Failure::Panicked);
}

#[test]
fn quantizes_with_the_wrong_rounding() {
    fn kernel(launch: &Launch, shape: StepShape, team: &Team) {
        right(launch, shape, team);
        let Op::QuantizeRows(how) = launch.op else { return };
        let (y, groups) = (&launch.outputs[0], launch.outputs[0].cols.div_ceil(32));
        let rows = crate::cpu::access::Rows::<i8>::new(&y.slice, shape.of(y.rows), how.row_bytes(y.cols));
        for row in 0..shape.of(y.rows) {
            // SAFETY: the kernel is done; nothing else refers to the output.
            let codes = &mut unsafe { rows.row_mut(row) }[..groups * 32 * how.planes()];
            // One step towards zero, as a truncating kernel would have about half of them; of 15 bits the low part.
            codes
                .chunks_mut(32)
                .skip(how.planes() - 1)
                .step_by(how.planes())
                .flatten()
                .for_each(|c| *c -= c.signum());
        }
    }
    check(OpKind::QuantizeRows, kernel, 0.8, wrong);
}
