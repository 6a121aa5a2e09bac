//! A program: the launches of a step with every buffer placed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use portolan_device::{DType, MemoryKind, Slice};
use portolan_kernels::{
    CacheDecl, CacheView, GpuPrograms, Launch, Node, OpKind, StepShape, ValueId, View,
    exec::{Readback, Runner, StepInputs, Task},
};
use portolan_weights::{LoadTransferStats, Loader, WeightTensor};

use crate::{
    Error, Result,
    cache::Caches,
    plan::{Lowered, LoweredNode, Placement},
};

/// The launches of a step. Running one allocates nothing on the device.
#[derive(Debug)]
pub(crate) struct Program {
    tasks: Vec<Task>,
    /// The weights of each task, by their numbers in the plan.
    uses: Vec<Vec<usize>>,
    logits: View,
    /// Logits of the last step, `[R, vocab]`.
    host_logits: Readback,
    lazy: Option<Lazy>,
}

/// Weights that are loaded at their first use.
#[derive(Debug)]
struct Lazy {
    loader: Loader,
    /// Whether some are still missing.
    pending: bool,
}

impl Program {
    pub(crate) fn new(
        runner: &mut Runner,
        activation: DType,
        lowered: &Lowered,
        (placement, memory): (&Placement, MemoryKind),
        weights: &[WeightTensor],
        caches: &Caches,
    ) -> Result<Self> {
        let workspace = runner.device().alloc(placement.bytes, memory)?.whole();
        let graph = &lowered.graph;
        let view = |value: ValueId| -> Result<View> {
            let info = graph.value(value);
            let (offset, len) = placement.ranges[value.index()]
                .ok_or(Error::Internal { what: "a value that nothing makes is read" })?;
            let slice: Slice = workspace.slice(offset, len)?;
            Ok(View { slice, rows: info.rows, cols: info.cols, dtype: info.dtype })
        };
        let mut tasks = Vec::with_capacity(lowered.nodes.len());
        let uses = lowered.nodes.iter().map(|n| n.node.weights.iter().map(|w| w.index()).collect()).collect();
        for lowered in &lowered.nodes {
            let launch = launch_of(&lowered.node, activation, runner, weights, &caches.views, &view)?;
            launch.check(runner.device().caps())?;
            tasks.push(Task::new(launch, lowered.rows, lowered.variants.clone()));
        }
        runner.prepare(&mut tasks).map_err(|error| Error::from(error).taking("the kernels' scratch"))?;
        let logits = graph.logits.ok_or(Error::Internal { what: "the graph has no logits" })?;
        let logits = view(logits)?;
        let host_logits = runner.readback(logits.slice.len()).map_err(Error::from);
        let host_logits = host_logits.map_err(|error| error.taking("the logits on the host"))?;
        Ok(Program { tasks, uses, logits, host_logits, lazy: None })
    }

    /// Loads weights at their first use from here on.
    pub(crate) fn load_lazily(&mut self, loader: Loader) {
        self.lazy = Some(Lazy { loader, pending: true });
    }

    /// What a lazy load has done; none where all was loaded beforehand.
    pub(crate) fn transfers(&self) -> Option<&LoadTransferStats> {
        self.lazy.as_ref().map(|lazy| lazy.loader.stats())
    }

    /// Runs the tasks one by one, each after its weights have been loaded.
    fn run_lazily(&mut self, runner: &mut Runner, shape: StepShape) -> Result<()> {
        let Some(lazy) = &mut self.lazy else { return Ok(()) };
        for (task, uses) in self.tasks.iter().zip(&self.uses) {
            if task.variant_of(shape).is_none() {
                continue;
            }
            for &weight in uses {
                lazy.loader.load_one(weight, runner.stream())?;
            }
            runner.run(std::slice::from_ref(task), shape)?;
        }
        lazy.pending = !lazy.loader.is_all_resident();
        Ok(())
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
            _ if self.lazy.as_ref().is_some_and(|lazy| lazy.pending) => self.run_lazily(runner, shape)?,
            None => runner.run_program(&self.tasks, shape)?,
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
        self.host_logits.as_f32().get(row * vocab..(row + 1) * vocab).unwrap_or_default()
    }
}

/// A node with its values, weights and cache in their places.
fn launch_of(
    node: &Node,
    activation: DType,
    runner: &Runner,
    weights: &[WeightTensor],
    caches: &[CacheView],
    view: &dyn Fn(ValueId) -> Result<View>,
) -> Result<Launch> {
    Ok(Launch {
        op: node.op.clone(),
        scope: node.scope.clone(),
        activation,
        inputs: node.inputs.iter().map(|&v| view(v)).collect::<Result<_>>()?,
        weights: node.weights.iter().map(|w| weights[w.index()].clone()).collect(),
        cache: node.cache.map(|c| caches[c.index()].clone()),
        outputs: node.outputs.iter().map(|&v| view(v)).collect::<Result<_>>()?,
        step: runner.step_buffers(),
        scratch: None,
    })
}

/// By op and variant: launches and time.
pub(crate) type OpTimes = BTreeMap<(OpKind, &'static str), (usize, Duration)>;

/// Compiles the kernels of a plan, without its weights or caches: they take no memory of the device. Gives how many.
pub(crate) fn warm(plan: &crate::Plan) -> Result<usize> {
    let programs = GpuPrograms::new(&plan.device);
    let runner = Runner::new(&plan.device, plan.limits, &plan.working)?;
    // What decides a kernel is shapes and types; where the numbers would lie does not matter, since nothing runs.
    let nothing = plan.device.alloc(256, MemoryKind::Device)?.whole();
    let graph = &plan.lowered.graph;
    let view = |value: ValueId| {
        let info = graph.value(value);
        Ok(View { slice: nothing.clone(), rows: info.rows, cols: info.cols, dtype: info.dtype })
    };
    let weights = graph.weights.iter().zip(&plan.load.tensors).zip(&plan.lowered.layouts);
    let weights: Vec<WeightTensor> = weights
        .map(|((weight, tensor), &layout)| WeightTensor {
            name: weight.name.clone(),
            shape: weight.shape.clone(),
            encoding: tensor.resolved.encoding,
            layout,
            planes: vec![nothing.clone(); 4],
        })
        .collect();
    let cache = |cache: &CacheDecl| CacheView {
        kind: cache.kind,
        dtype: plan.caches.dtype(),
        k: nothing.clone(),
        v: nothing.clone(),
        pages: 1,
    };
    let caches: Vec<CacheView> = graph.caches.iter().map(cache).collect();
    let launches = (plan.lowered.nodes.iter())
        .map(|LoweredNode { node, .. }| launch_of(node, plan.activation, &runner, &weights, &caches, &view))
        .collect::<Result<Vec<_>>>()?;
    let wanted: Vec<_> = (plan.lowered.nodes.iter().zip(&launches))
        .flat_map(|(node, launch)| {
            node.variants.iter().filter_map(move |(_, v)| Some((v.entry.gpu()?, launch)))
        })
        .collect();
    programs.prepare(&wanted)?;
    runner.stream().synchronize()?;
    Ok(programs.len())
}
