//! A program: the launches of a step with every buffer placed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use portolan_device::{DType, MemoryKind, Slice};
use portolan_kernels::{
    Launch, OpKind, StepShape, View,
    exec::{Runner, StepInputs, Task},
};
use portolan_weights::WeightTensor;

use crate::{
    Error, Result,
    cache::Caches,
    plan::{Lowered, Placement},
};

/// The launches of a step. Running one allocates nothing on the device.
#[derive(Debug)]
pub(crate) struct Program {
    tasks: Vec<Task>,
    logits: View,
    /// Logits of the last step, `[R, vocab]`.
    host_logits: Vec<f32>,
}

impl Program {
    pub(crate) fn new(
        runner: &Runner,
        lowered: &Lowered,
        placement: &Placement,
        weights: &[WeightTensor],
        caches: &Caches,
    ) -> Result<Self> {
        let workspace = runner.device().alloc(placement.bytes, MemoryKind::Device)?.whole();
        let graph = &lowered.graph;
        let view = |value: portolan_kernels::ValueId| -> Result<View> {
            let info = graph.value(value);
            let (offset, len) = placement.ranges[value.index()]
                .ok_or(Error::Internal { what: "a value that nothing makes is read" })?;
            let slice: Slice = workspace.slice(offset, len)?;
            Ok(View { slice, rows: info.rows, cols: info.cols, dtype: info.dtype })
        };
        let mut tasks = Vec::with_capacity(lowered.nodes.len());
        for lowered in &lowered.nodes {
            let node = &lowered.node;
            let launch = Launch {
                op: node.op.clone(),
                scope: node.scope.clone(),
                inputs: node.inputs.iter().map(|&v| view(v)).collect::<Result<_>>()?,
                weights: node.weights.iter().map(|w| weights[w.index()].clone()).collect(),
                cache: node.cache.map(|c| caches.views[c.index()].clone()),
                outputs: node.outputs.iter().map(|&v| view(v)).collect::<Result<_>>()?,
                step: runner.step_buffers(),
            };
            launch.check(runner.device().caps())?;
            tasks.push(Task { launch, variants: lowered.variants.clone() });
        }
        let logits = graph.logits.ok_or(Error::Internal { what: "the graph has no logits" })?;
        Ok(Program { tasks, logits: view(logits)?, host_logits: Vec::new() })
    }

    /// Runs a step and brings its logits to the host. With a profile, adds the time of each op to it.
    pub(crate) fn run(
        &mut self,
        runner: &mut Runner,
        inputs: &StepInputs,
        shape: StepShape,
        profile: Option<&mut OpTimes>,
    ) -> Result<()> {
        runner.write(inputs)?;
        match profile {
            None => runner.run(&self.tasks, shape)?,
            Some(profile) => {
                for task in &self.tasks {
                    let started = Instant::now();
                    runner.run(std::slice::from_ref(task), shape)?;
                    runner.stream().synchronize()?;
                    let Some(variant) = task.variant_of(shape) else { continue };
                    let (count, time) = profile.entry((task.launch.op.kind(), variant.name)).or_default();
                    *count += 1;
                    *time += started.elapsed();
                }
            }
        }
        Ok(runner.read_f32(&self.logits, shape.selected, &mut self.host_logits)?)
    }

    /// Columns of the logits.
    pub(crate) fn vocab(&self) -> usize {
        self.logits.cols
    }

    /// Row `row` of the last step's logits.
    pub(crate) fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.vocab();
        self.host_logits.get(row * vocab..(row + 1) * vocab).unwrap_or_default()
    }
}

/// The type of an activation on a kind of device: the documented table (docs/ARCHITECTURE.md).
pub(crate) fn activation_dtype(_: portolan_device::DeviceKind) -> DType {
    DType::F32
}

/// By op and variant: launches and time.
pub(crate) type OpTimes = BTreeMap<(OpKind, &'static str), (usize, Duration)>;
