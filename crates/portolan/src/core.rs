//! The engine's inner half: one model on one device, driven step by step.
//!
//! [`Core`] has no threads and no policy. [`crate::Engine`] drives one from a thread of its own; tests, benchmarks
//! and traces drive one directly.

use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use portolan_device::{DType, Device, DeviceKind, WorkingMemory};
use portolan_kernels::{
    Graph, PortPolicy, StepShape,
    exec::{Runner, StepInputs, StepLimits},
};
use portolan_models::Model;
use portolan_weights::{
    Checkpoint, LoadMode, LoadOptions as ReadOptions, LoadPlan, LoadRequest, LoadTransferStats, Loader,
    MemoryPlan, plan_load,
};

use crate::{
    Error, LoadOptions, Result,
    cache::{CacheLayout, Caches, PagePool, PrefixIndex, Sequence},
    plan::{Lowered, Placement, Target, lower, memory_plan, place},
    program::{OpTimes, Program},
};

/// A sequence in a [`Core`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(u64);

/// Which rows of a sequence's new tokens want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: a part of a prompt.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// New tokens of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct SeqStep<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Its new tokens, at least one.
    pub tokens: &'a [u32],
    /// Which of them want logits.
    pub want: Want,
}

/// Everything that is decided before a byte of a weight is read.
pub struct Plan {
    /// The checkpoint's headers.
    pub checkpoint: Checkpoint,
    /// Family, configuration and graph.
    pub model: Model,
    /// What will be read.
    pub load: LoadPlan,
    /// What memory it will take.
    pub memory: MemoryPlan,
    /// Most positions of a sequence.
    pub context: usize,
    pub(crate) lowered: Lowered,
    pub(crate) placement: Placement,
    pub(crate) caches: CacheLayout,
    pub(crate) limits: StepLimits,
    pub(crate) activation: DType,
    pub(crate) load_mode: LoadMode,
    /// Where the plan has put what is no weight.
    pub(crate) working: WorkingMemory,
    pub(crate) device: Device,
}

impl Plan {
    /// Plans a checkpoint on a device.
    pub fn new(path: &Path, device: &Device, options: &LoadOptions) -> Result<Self> {
        options.check()?;
        options.check_device(device.caps().kind())?;
        let checkpoint = Checkpoint::open(path)?;
        let model = Model::from_checkpoint(&checkpoint)?;
        Self::of_model(checkpoint, model, device, options)
    }

    fn of_model(
        checkpoint: Checkpoint,
        model: Model,
        device: &Device,
        options: &LoadOptions,
    ) -> Result<Self> {
        let graph = &model.graph;
        let context = options.context_of(model.config.context)?;
        let cache_tokens = options.cache_tokens.unwrap_or(context).max(context);
        let rows = options.chunk_of(device.caps().kind());
        let seqs = options.max_sequences.max(1);
        let limits = StepLimits {
            rows: rows.max(seqs),
            selected: options.max_logits.max(seqs),
            seqs,
            pages: context.div_ceil(portolan_kernels::PAGE_TOKENS),
        };
        let mut policy = PortPolicy::from_env()?;
        policy.exact = options.exact;
        policy.deterministic = options.deterministic;

        // Encodings first: the layout of a weight, and so its size, depends on the ports that read it.
        let mut requests: Vec<LoadRequest> = graph
            .weights
            .iter()
            .map(|w| LoadRequest { name: w.name.clone(), expr: w.expr.clone(), repack: None })
            .collect();
        let resolved = plan_load(&checkpoint, requests.clone())?;
        check_shapes(&checkpoint, graph, &resolved)?;
        let encodings: Vec<_> = resolved.tensors.iter().map(|t| t.resolved.encoding).collect();
        let cache_dtype = options.cache_dtype();
        let activation = options.activation_dtype(device.caps().kind());
        let target = Target { caps: device.caps(), policy: &policy, limits, cache_dtype, activation };
        let lowered = lower(target, graph, &encodings)?;
        for (request, &layout) in requests.iter_mut().zip(&lowered.layouts) {
            request.repack = portolan_kernels::chart::repack(layout);
        }
        let load = plan_load(&checkpoint, requests)?;

        warn_of_layers_left_out(&checkpoint, &load, model.config.layers);

        let placement = place(&lowered, limits, activation);
        let caches = CacheLayout::new(&graph.caches, cache_dtype, cache_tokens)?;
        let logits_bytes = limits.selected * graph.vocab * 4;
        let (memory, working) = memory_plan(device, &load, &placement, &caches, limits, logits_bytes)?;
        Ok(Plan {
            checkpoint,
            load,
            memory,
            context,
            lowered,
            placement,
            caches,
            limits,
            activation,
            load_mode: options.load,
            working,
            device: device.clone(),
            model,
        })
    }

    /// The device that it is for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Compiles the kernels of a GPU that the plan needs, and keeps them on disk, so that a later load finds them. Gives
    /// how many there are; none on the CPU.
    pub fn warm(&self) -> Result<usize> {
        if self.device.caps().kind() == DeviceKind::Cpu { Ok(0) } else { crate::program::warm(self) }
    }

    /// Refuses what no memory can hold; under `PORTOLAN_MEMORY_GUARD=0` warns and goes on.
    pub fn check_memory(&self) -> Result<()> {
        let Some((pool, need, available)) = self.memory.shortage() else { return Ok(()) };
        if portolan_device::env::switch("PORTOLAN_MEMORY_GUARD")? == Some(false) {
            tracing::warn!("the memory plan does not fit ({need} bytes of {available}); going on as asked");
            return Ok(());
        }
        Err(Error::DoesNotFit {
            model: self.checkpoint.path.clone(),
            pool: self.memory.pools[pool].name.clone(),
            need,
            available,
            plan: self.memory.to_string(),
        })
    }
}

/// A configuration that asks for fewer layers than the file holds gives a model that talks, and talks nonsense.
fn warn_of_layers_left_out(checkpoint: &Checkpoint, load: &LoadPlan, layers: usize) {
    let beyond = |name: &&String| {
        let layer = name.split_once("layers.").or_else(|| name.split_once("blk."));
        let number = layer.and_then(|(_, rest)| rest.split('.').next()?.parse::<usize>().ok());
        number.is_some_and(|number| number >= layers)
    };
    let left_out = load.unused.iter().filter(beyond).count();
    if left_out > 0 {
        tracing::warn!(
            "{}: the configuration asks for {layers} layers, and {left_out} tensors belong to later ones; they are \
             not read",
            checkpoint.path.display()
        );
    }
}

/// Compares what the checkpoint holds with what the graph needs; names every weight that does not fit.
pub(crate) fn check_shapes(checkpoint: &Checkpoint, graph: &Graph, load: &LoadPlan) -> Result<()> {
    let wrong: Vec<String> = graph
        .weights
        .iter()
        .zip(&load.tensors)
        .filter(|(w, t)| w.shape != t.resolved.shape)
        .map(|(w, t)| {
            let source = t.resolved.sources.first().map_or(w.name.as_str(), String::as_str);
            format!("{source} is {:?}, the configuration asks for {:?}", t.resolved.shape, w.shape)
        })
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::Shapes { model: checkpoint.path.clone(), wrong: wrong.join("; ") })
}

/// A model on a device.
pub struct Core {
    runner: Runner,
    program: Program,
    caches: Caches,
    pool: PagePool,
    prefixes: PrefixIndex,
    sequences: HashMap<SeqId, Sequence>,
    next: u64,
    limits: StepLimits,
    context: usize,
    window: Option<usize>,
    inputs: StepInputs,
    profile: Option<OpTimes>,
    /// Compiling kernels, or finding them compiled, and building the program.
    pub prepare_time: Duration,
    /// What loading did, before the first step.
    pub load_stats: LoadTransferStats,
}

impl Core {
    /// Loads a plan's weights. `progress` is told bytes done and bytes in all.
    pub fn load(plan: &Plan, progress: &mut dyn FnMut(u64, u64)) -> Result<Self> {
        plan.check_memory()?;
        let part = |part| move |error: Error| error.taking(part);
        let runner = Runner::new(&plan.device, plan.limits, &plan.working).map_err(Error::from);
        let mut runner = runner.map_err(part("the step buffers"))?;
        let caches =
            Caches::new(&plan.device, plan.caches.clone(), plan.working.caches).map_err(part("the cache"))?;
        let mut loader = Loader::new(&plan.checkpoint, &plan.load, &plan.device, &ReadOptions::default())?;
        let weights = loader.weights()?;
        let workspace = (&plan.placement, plan.working.workspace);
        let started = Instant::now();
        let mut program =
            Program::new(&mut runner, plan.activation, &plan.lowered, workspace, &weights, &caches)
                .map_err(part("the workspace"))?;
        let prepare_time = started.elapsed();
        if plan.load_mode == LoadMode::Eager {
            loader.load_all(runner.stream(), progress)?;
        }
        let load_stats = loader.stats().clone();
        if !loader.is_all_resident() {
            program.load_lazily(loader);
        }
        Ok(Core {
            runner,
            program,
            pool: PagePool::new(plan.caches.pages),
            window: plan.caches.common_window(),
            caches,
            prefixes: PrefixIndex::default(),
            sequences: HashMap::new(),
            next: 1,
            limits: plan.limits,
            context: plan.context,
            inputs: StepInputs::default(),
            profile: None,
            prepare_time,
            load_stats,
        })
    }

    /// What has been loaded so far: under `--load lazy` it grows in the steps that use a weight first.
    pub fn transfers(&self) -> LoadTransferStats {
        self.program.transfers().cloned().unwrap_or_else(|| self.load_stats.clone())
    }

    /// Most positions of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Columns of the logits.
    pub fn vocab(&self) -> usize {
        self.program.vocab()
    }

    /// Most rows, sequences and logits of a step.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// Free pages, pages that the prefix index would give up, and pages in all.
    pub fn pages(&self) -> (usize, usize, usize) {
        (self.pool.free(), self.prefixes.evictable(&self.pool), self.pool.total())
    }

    /// A new, empty sequence.
    pub fn create(&mut self) -> SeqId {
        self.insert(Sequence::default())
    }

    /// A new sequence that begins with as much of `tokens` as the cache still holds. Look at [`Core::len`]: the
    /// rest is to be computed.
    pub fn create_with_prefix(&mut self, tokens: &[u32]) -> SeqId {
        let sequence = self.prefixes.start(tokens, &mut self.pool);
        self.insert(sequence)
    }

    fn insert(&mut self, sequence: Sequence) -> SeqId {
        let id = SeqId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn get(&self, id: SeqId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or(Error::UnknownSequence)
    }

    /// Positions of a sequence that are in the cache.
    pub fn len(&self, id: SeqId) -> Result<usize> {
        Ok(self.get(id)?.len())
    }

    /// Its tokens.
    pub fn tokens(&self, id: SeqId) -> Result<&[u32]> {
        Ok(&self.get(id)?.tokens)
    }

    /// Forgets a sequence, but remembers its full pages as a prefix for later ones.
    pub fn remove(&mut self, id: SeqId) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            self.prefixes.publish(&sequence, &mut self.pool);
            sequence.truncate(0, &mut self.pool);
        }
    }

    /// Forgets a sequence and its pages.
    pub fn discard(&mut self, id: SeqId) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            sequence.truncate(0, &mut self.pool);
        }
    }

    /// Remembers a sequence's full pages, so that others that begin alike can start from them at once.
    pub fn publish(&mut self, id: SeqId) {
        if let Some(sequence) = self.sequences.get(&id) {
            self.prefixes.publish(sequence, &mut self.pool);
        }
    }

    /// Forgets every remembered prefix.
    pub fn clear_prefixes(&mut self) {
        self.prefixes.clear(&mut self.pool);
    }

    /// A second sequence with the same tokens. They share pages; the first to write a shared page copies it.
    pub fn fork(&mut self, id: SeqId) -> Result<SeqId> {
        let sequence = self.sequences.get(&id).ok_or(Error::UnknownSequence)?;
        let fork = sequence.fork(&mut self.pool);
        Ok(self.insert(fork))
    }

    /// Forgets all positions of a sequence from `len` on. Where all layers have windows, positions behind them
    /// are gone, and going back so far is an error.
    pub fn truncate(&mut self, id: SeqId, len: usize) -> Result<()> {
        let sequence = self.sequences.get_mut(&id).ok_or(Error::UnknownSequence)?;
        if len < sequence.len() && sequence.pages.iter().any(Option::is_none) {
            return Err(Error::CannotRollBack { len: sequence.len(), to: len });
        }
        sequence.truncate(len, &mut self.pool);
        Ok(())
    }

    /// Pages that a step with `more` new tokens of a sequence would take.
    pub fn pages_needed(&self, id: SeqId, more: usize) -> Result<usize> {
        Ok(self.get(id)?.pages_needed(more, &self.pool))
    }

    /// Runs a step. Logits of the rows that want them follow in the order of `batch`: see [`Core::logits`].
    /// On an error nothing of the step has become part of any sequence.
    pub fn step(&mut self, batch: &[SeqStep<'_>]) -> Result<StepShape> {
        self.check_batch(batch)?;
        let needed: usize =
            batch.iter().map(|s| self.pages_needed(s.seq, s.tokens.len())).sum::<Result<usize>>()?;
        self.prefixes.evict(needed, &mut self.pool);
        if self.pool.free() < needed {
            return Err(Error::CacheFull { needed, free: self.pool.free(), total: self.pool.total() });
        }
        let ran = self.run(batch);
        if ran.is_err() {
            // Pages that were taken for the step go back: a fork would share them, and both would write to them.
            for step in batch {
                if let Some(sequence) = self.sequences.get_mut(&step.seq) {
                    sequence.truncate(sequence.len(), &mut self.pool);
                }
            }
        }
        let shape = ran?;
        for step in batch {
            if let Some(sequence) = self.sequences.get_mut(&step.seq) {
                sequence.tokens.extend_from_slice(step.tokens);
                if let Some(window) = self.window {
                    sequence.release_before_window(window, &mut self.pool);
                }
            }
        }
        Ok(shape)
    }

    /// Gives the sequences of a step their pages, and runs it.
    fn run(&mut self, batch: &[SeqStep<'_>]) -> Result<StepShape> {
        for step in batch {
            self.grow(step.seq, step.tokens.len())?;
        }
        let shape = self.fill_inputs(batch)?;
        let padded = self.runner.bucket(shape);
        self.inputs.pad(padded);
        self.program.run(&mut self.runner, &self.inputs, padded, self.profile.as_mut())?;
        Ok(shape)
    }

    /// Logits `row` of the last step.
    pub fn logits(&self, row: usize) -> &[f32] {
        self.program.logits(row)
    }

    fn check_batch(&self, batch: &[SeqStep<'_>]) -> Result<()> {
        let rows = batch.iter().map(|s| s.tokens.len()).sum();
        let selected = batch.iter().map(|s| selected(s)).sum();
        for (what, value, most) in [
            ("rows", rows, self.limits.rows),
            ("rows that want logits", selected, self.limits.selected),
            ("sequences", batch.len(), self.limits.seqs),
        ] {
            if value > most {
                return Err(Error::StepTooLarge { what, value, most });
            }
        }
        for (index, step) in batch.iter().enumerate() {
            let len = self.len(step.seq)?;
            if step.tokens.is_empty() || batch[..index].iter().any(|other| other.seq == step.seq) {
                return Err(Error::Internal { what: "a step names a sequence twice or gives it no tokens" });
            }
            if len + step.tokens.len() > self.context {
                return Err(Error::ContextOverflow { need: len + step.tokens.len(), context: self.context });
            }
            if let Some(&id) = step.tokens.iter().find(|&&id| id as usize >= self.vocab()) {
                return Err(Error::BadToken { id, vocab: self.vocab() });
            }
        }
        Ok(())
    }

    /// Gives a sequence the pages for `more` positions, and makes its last page its own.
    fn grow(&mut self, id: SeqId, more: usize) -> Result<()> {
        let no_page = Error::CacheFull { needed: 1, free: 0, total: self.pool.total() };
        let Some(sequence) = self.sequences.get_mut(&id) else { return Err(Error::UnknownSequence) };
        if let Some(shared) = sequence.shared_tail(&self.pool) {
            let Some(own) = self.pool.take() else { return Err(no_page) };
            if let Err(error) = self.caches.copy_page(&mut self.runner, shared, own) {
                self.pool.release(own);
                return Err(error);
            }
            let last = sequence.len() / portolan_kernels::PAGE_TOKENS;
            sequence.pages[last] = Some(own);
            self.pool.release(shared);
        }
        let pages = (sequence.len() + more).div_ceil(portolan_kernels::PAGE_TOKENS);
        while sequence.pages.len() < pages {
            let Some(page) = self.pool.take() else { return Err(no_page) };
            sequence.pages.push(Some(page));
        }
        Ok(())
    }

    fn fill_inputs(&mut self, batch: &[SeqStep<'_>]) -> Result<StepShape> {
        let inputs = &mut self.inputs;
        for list in [
            &mut inputs.ids,
            &mut inputs.positions,
            &mut inputs.row_seq,
            &mut inputs.page_table,
            &mut inputs.state_slot,
            &mut inputs.select,
        ] {
            list.clear();
        }
        for (index, step) in batch.iter().enumerate() {
            let sequence = self.sequences.get(&step.seq).ok_or(Error::UnknownSequence)?;
            let first_row = inputs.ids.len();
            inputs.ids.extend(step.tokens.iter().map(|&id| id as i32));
            let position = sequence.len() as i32;
            inputs.positions.extend((0..step.tokens.len()).map(|i| position + i as i32));
            inputs.row_seq.extend(std::iter::repeat_n(index as i32, step.tokens.len()));
            let entries = sequence.pages.iter().map(|page| page.map_or(-1, |p| p.entry()));
            inputs.page_table.extend(entries.chain(std::iter::repeat(-1)).take(self.limits.pages));
            inputs.state_slot.push(0);
            let rows = first_row..inputs.ids.len();
            let wanted = rows.end - selected(step)..rows.end;
            inputs.select.extend(wanted.map(|row| row as i32));
        }
        let kv = inputs.positions.iter().max().map_or(0, |&last| last as usize + 1);
        Ok(StepShape { rows: inputs.ids.len(), selected: inputs.select.len(), seqs: batch.len(), kv })
    }

    /// Starts to add up the time of each op, or stops to; gives what was added up so far.
    pub(crate) fn profile(&mut self, next: Option<OpTimes>) -> Option<OpTimes> {
        std::mem::replace(&mut self.profile, next)
    }
}

fn selected(step: &SeqStep<'_>) -> usize {
    match step.want {
        Want::None => 0,
        Want::Last => 1,
        Want::All => step.tokens.len(),
    }
}
