//! What a case must come to: its decomposition, run by the plain f32 kernels on the CPU.

use portolan_device::{DType, Device, MemoryKind, cpu::CpuOptions};
use portolan_weights::Layout;

use super::{
    host::Case,
    place::{Placer, Results},
};
use crate::{
    CacheDecl, CacheId, Decline, Graph, KernelError, Launch, Node, Result, ValueId, View, WeightId,
    cpu::plain, decompose::primitives, row_bytes,
};

/// The plain kernels on a CPU device of their own.
#[derive(Debug)]
pub struct Reference {
    placer: Placer,
}

impl Reference {
    /// Starts the device.
    pub fn new() -> Result<Self> {
        Ok(Reference { placer: Placer::new(&Device::cpu(&CpuOptions::default())?, DType::F32)? })
    }

    /// Runs a case: a primitive by its plain kernel, a fused op by its decomposition.
    ///
    /// # Errors
    /// When the case does not fit together, or memory runs out.
    pub fn run(&self, case: &Case) -> Result<Results> {
        let placed = self.placer.place(case, Layout::Planes)?;
        let whole = &placed.launch;
        let (mut graph, node) = graph_of(case);
        let nodes = primitives(&mut graph, node);
        let mut views: Vec<View> = whole.inputs.iter().chain(&whole.outputs).cloned().collect();
        for info in &graph.values[views.len()..] {
            let bytes = case.shape.of(info.rows) * row_bytes(info.dtype, info.cols, DType::F32);
            let slice = self.placer.device().alloc(bytes, MemoryKind::Device)?.whole();
            views.push(View { slice, rows: info.rows, cols: info.cols, dtype: info.dtype });
        }
        for node in nodes {
            let launch = Launch {
                op: node.op,
                scope: node.scope,
                activation: DType::F32,
                inputs: node.inputs.iter().map(|id| views[id.index()].clone()).collect(),
                weights: node.weights.iter().map(|id| whole.weights[id.index()].clone()).collect(),
                cache: node.cache.and(whole.cache.clone()),
                outputs: node.outputs.iter().map(|id| views[id.index()].clone()).collect(),
                step: whole.step.clone(),
                scratch: None,
            };
            self.primitive(&launch, case)?;
        }
        self.placer.results(&placed)
    }

    fn primitive(&self, launch: &Launch, case: &Case) -> Result<()> {
        let device = self.placer.device();
        launch.check(device.caps())?;
        let input = launch.inputs.first().map_or(crate::ValueType::Activation, |x| x.dtype);
        match (plain::kernel(launch.op.kind(), input), device.team()) {
            (Some(kernel), Some(team)) => {
                kernel(launch, case.shape, team);
                Ok(())
            }
            _ => Err(KernelError::NoPort {
                scope: launch.scope.clone(),
                op: launch.op.kind(),
                device: device.caps().kind(),
                spec: "the plain kernel".to_owned(),
                decline: Decline::NoPort,
            }),
        }
    }
}

/// A graph of one node: values are the inputs, then the outputs.
fn graph_of(case: &Case) -> (Graph, Node) {
    let ids = |from: usize, count: usize| (from..from + count).map(|i| ValueId(i as u32)).collect();
    let caches = case.cache.iter().map(|c| CacheDecl { name: "cache".to_owned(), kind: c.kind });
    let graph = Graph {
        values: case.inputs.iter().map(|x| &x.info).chain(&case.outputs).cloned().collect(),
        caches: caches.collect(),
        ..Graph::default()
    };
    let node = Node {
        op: case.op.clone(),
        scope: case.name.clone(),
        inputs: ids(0, case.inputs.len()),
        weights: (0..case.weights.len()).map(|i| WeightId(i as u32)).collect(),
        cache: case.cache.as_ref().map(|_| CacheId(0)),
        outputs: ids(case.inputs.len(), case.outputs.len()),
    };
    (graph, node)
}
