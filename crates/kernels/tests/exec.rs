//! Tasks of a program: which of them a step runs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use portolan_device::{DType, Device, DeviceKind, MemoryKind, WorkingMemory, cpu::CpuOptions};
use portolan_kernels::{
    Launch, Op, RowSet, StepShape, ValueType, Variant, View, chart,
    exec::{Runner, StepLimits, Task},
};

const LIMITS: StepLimits = StepLimits { rows: 4, selected: 4, seqs: 1, pages: 1 };

/// `out = a + b` for steps of one or two rows, `a * b` for larger ones, of a = 2 and b = 3: what a step of so many rows
/// leaves in the first row.
#[track_caller]
fn check(rows: usize, expected: [&str; 2], result: f32) {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let mut runner = Runner::new(&device, LIMITS, &WorkingMemory::default()).unwrap();
    let view = |number: f32| {
        let mut buffer = device.alloc(4 * LIMITS.rows, MemoryKind::Device).unwrap();
        let numbers = [number; LIMITS.rows];
        buffer.host_mut().unwrap()[..4 * LIMITS.rows].copy_from_slice(bytemuck::cast_slice(&numbers));
        View { slice: buffer.whole(), rows: RowSet::Tokens, cols: 1, dtype: ValueType::F32 }
    };
    let (inputs, out) = (vec![view(2.0), view(3.0)], view(-1.0));
    let task = |op: Op, rows| {
        let variant: &'static Variant = chart::slot(op.kind(), DeviceKind::Cpu).last().unwrap();
        let launch = Launch {
            op,
            scope: "test".to_owned(),
            activation: DType::F32,
            inputs: inputs.clone(),
            weights: Vec::new(),
            cache: None,
            outputs: vec![out.clone()],
            step: Arc::clone(&runner.step_buffers()),
            scratch: None,
        };
        Task::new(launch, rows, vec![(LIMITS.rows, variant)])
    };
    let tasks = [task(Op::Add, (1, 2)), task(Op::Mul, (3, usize::MAX))];
    let shape = StepShape { rows, selected: 0, seqs: 1, kv: 0 };
    let run =
        tasks.each_ref().map(|task| if task.variant_of(shape).is_some() { "runs" } else { "goes past" });
    assert_eq!(run, expected, "{rows} rows");
    runner.run(&tasks, shape).unwrap();
    let mut back = runner.readback(4 * LIMITS.rows).unwrap();
    runner.read_f32(&out, 1, &mut back).unwrap();
    assert_eq!(back.as_f32(), [result], "{rows} rows");
}

#[test]
fn a_step_goes_past_tasks_that_are_not_for_its_rows() {
    check(0, ["goes past", "goes past"], -1.0);
    check(1, ["runs", "goes past"], 5.0);
    check(2, ["runs", "goes past"], 5.0);
    check(3, ["goes past", "runs"], 6.0);
    check(4, ["goes past", "runs"], 6.0);
}
