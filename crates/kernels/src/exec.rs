//! Runs launches in order on a device, and moves a step's numbers in and out.
//!
//! This is the safe door to the device for the crates above, which hold no `unsafe`. It rests on exclusivity: a
//! [`Runner`] is used through `&mut self`, every buffer that its launches name was placed by one planner, and
//! whatever it enqueues is complete, or ordered on its one stream, before it hands a byte back.

use std::{collections::HashMap, sync::Arc};

use portolan_device::{
    Buffer, Device, DeviceError, DeviceKind, Graph, MemoryKind, Slice, Stream, WorkingMemory, env,
};

use crate::{
    KernelError, Launch, Result, StepBuffers, StepShape, View,
    chart::{Entry, Variant},
    gpu::{GpuPrograms, Prepared},
};

/// The largest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Most rows.
    pub rows: usize,
    /// Most rows that want logits.
    pub selected: usize,
    /// Most sequences.
    pub seqs: usize,
    /// Most pages of one sequence.
    pub pages: usize,
}

impl StepLimits {
    /// Bytes of the step buffers, each rounded up to 256.
    pub fn bytes(&self) -> usize {
        let round = |n: usize| (n * 4).next_multiple_of(256);
        3 * round(self.rows) + round(self.seqs * self.pages) + round(self.seqs) + round(self.selected)
    }
}

/// What changes from step to step, on the host. The fields are those of [`StepBuffers`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StepInputs {
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    pub row_seq: Vec<i32>,
    /// `[S, max_pages]`.
    pub page_table: Vec<i32>,
    pub state_slot: Vec<i32>,
    pub select: Vec<i32>,
}

impl StepInputs {
    /// Adds rows that belong to no sequence, up to a shape.
    pub fn pad(&mut self, shape: StepShape) {
        let to = |list: &mut Vec<i32>, len: usize, value| list.resize(list.len().max(len), value);
        to(&mut self.ids, shape.rows, 0);
        to(&mut self.positions, shape.rows, 0);
        to(&mut self.row_seq, shape.rows, -1);
        to(&mut self.select, shape.selected, 0);
    }
}

/// An op of a program: a launch and, by row count, the variant that serves it.
#[derive(Clone, Debug)]
pub struct Task {
    /// What is launched.
    pub launch: Launch,
    /// Fewest and most rows that it is there for; a step with others goes past it. A fused op and what it comes apart to
    /// share a step's row counts so.
    rows: (usize, usize),
    /// The variant for up to so many rows, ascending; the last covers the most that a step can have.
    variants: Vec<(usize, &'static Variant)>,
    /// The compiled kernel of each variant; empty on the CPU.
    prepared: Vec<Prepared>,
}

impl Task {
    /// A task that [`Runner::prepare`] has still to see: for steps of `rows`, fewest and most, with the variant for up to so
    /// many rows, ascending.
    pub fn new(launch: Launch, rows: (usize, usize), variants: Vec<(usize, &'static Variant)>) -> Self {
        Task { launch, rows, variants, prepared: Vec::new() }
    }

    /// The place of the variant for a number of rows.
    fn index(&self, rows: usize) -> Option<usize> {
        self.variants.iter().position(|(most, _)| rows <= *most)
    }

    /// The variant that a step of this shape takes; none where the step goes past it.
    pub fn variant_of(&self, shape: StepShape) -> Option<&'static Variant> {
        self.rows(shape).and_then(|rows| self.index(rows)).map(|i| self.variants[i].1)
    }

    /// The rows that decide between variants: those of the first output, or of the step where there is none. None where
    /// there are none, or the task is not there for so many.
    fn rows(&self, shape: StepShape) -> Option<usize> {
        let rows = self.launch.outputs.first().map_or(shape.rows, |out| shape.of(out.rows));
        (rows > 0 && self.rows.0 <= rows && rows <= self.rows.1).then_some(rows)
    }
}

/// Steps of up to so many rows, each wanting logits, are captured: those of decoding.
const MOST_CAPTURED_ROWS: usize = 64;

/// Captured steps that are kept; a step of another shape than these is launched kernel by kernel.
const MOST_GRAPHS: usize = 64;

/// A device's stream and the buffers of a step.
#[derive(Debug)]
pub struct Runner {
    device: Device,
    stream: Stream,
    step: Arc<StepBuffers>,
    /// All of the step's buffers, and where they end.
    whole: Slice,
    /// What they are to hold next.
    host: Vec<u8>,
    gpu: Option<Gpu>,
}

/// What only a GPU has.
#[derive(Debug)]
struct Gpu {
    programs: GpuPrograms,
    /// What scratch is taken from.
    scratch_kind: MemoryKind,
    /// By file of device code, so that what one kernel counts is not another's scratch.
    scratch: HashMap<&'static str, Slice>,
    graphs: HashMap<StepShape, Graph>,
    /// Whether steps are captured at all.
    capture: bool,
}

impl Runner {
    /// Takes the step buffers, from the kind of memory that a plan gave them. Scratch is taken from its own later.
    pub fn new(device: &Device, limits: StepLimits, memory: &WorkingMemory) -> Result<Self> {
        let buffer = device.alloc(limits.bytes(), memory.step)?;
        let mut offset = 0;
        let mut take = |n: usize| -> Result<Slice> {
            let slice = buffer.slice(offset, n * 4)?;
            offset += (n * 4).next_multiple_of(256);
            Ok(slice)
        };
        // The page tables come last: a step writes as much of them as it has sequences.
        let step = StepBuffers {
            ids: take(limits.rows)?,
            positions: take(limits.rows)?,
            row_seq: take(limits.rows)?,
            select: take(limits.selected)?,
            state_slot: take(limits.seqs)?,
            page_table: take(limits.seqs * limits.pages)?,
            max_pages: limits.pages,
            max_rows: limits.rows,
            max_seqs: limits.seqs,
        };
        let gpu = (device.caps().kind() != DeviceKind::Cpu)
            .then(|| -> Result<Gpu> {
                Ok(Gpu {
                    programs: GpuPrograms::new(device),
                    scratch_kind: memory.scratch,
                    scratch: HashMap::new(),
                    graphs: HashMap::new(),
                    capture: env::switch("PORTOLAN_GRAPHS")? != Some(false),
                })
            })
            .transpose()?;
        let stream = device.stream()?;
        let whole = buffer.whole();
        // SAFETY: the memory is new. What a step leaves unwritten then holds zeros, and no stray page.
        unsafe { stream.fill(&whole, 0) }?;
        Ok(Runner { device: device.clone(), stream, step: Arc::new(step), host: Vec::new(), whole, gpu })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream that everything runs on; weights are loaded on it too.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The buffers that launches refer to.
    pub fn step_buffers(&self) -> Arc<StepBuffers> {
        self.step.clone()
    }

    /// Compiles what a program's tasks need on a GPU, and gives them scratch.
    ///
    /// # Errors
    /// The compiler's; when memory runs out.
    pub fn prepare(&mut self, tasks: &mut [Task]) -> Result<()> {
        let Some(gpu) = &mut self.gpu else { return Ok(()) };
        let largest = self.step.max_shape();
        let mut bytes: HashMap<&'static str, usize> = HashMap::new();
        for task in tasks.iter() {
            for kernel in task.variants.iter().filter_map(|(_, v)| v.entry.gpu()) {
                let room = bytes.entry(kernel.file).or_default();
                *room = (*room).max(gpu.programs.scratch_bytes(kernel, &task.launch, largest));
            }
        }
        for (file, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            let room = gpu.programs.scratch(&self.stream, bytes, gpu.scratch_kind)?;
            gpu.scratch.insert(file, room);
        }
        for task in tasks.iter_mut() {
            let file = task.variants.iter().find_map(|(_, v)| {
                let kernel = v.entry.gpu()?;
                gpu.scratch.contains_key(kernel.file).then_some(kernel.file)
            });
            task.launch.scratch = file.and_then(|file| gpu.scratch.get(file).cloned());
        }
        let kernels =
            |task: &Task| task.variants.iter().filter_map(|(_, v)| v.entry.gpu()).collect::<Vec<_>>();
        let wanted: Vec<_> = tasks
            .iter()
            .flat_map(|task| kernels(task).into_iter().map(|kernel| (kernel, &task.launch)))
            .collect();
        let mut prepared = gpu.programs.prepare(&wanted)?.into_iter();
        for task in tasks {
            let count = kernels(task).len();
            task.prepared = prepared.by_ref().take(count).collect();
        }
        Ok(())
    }

    /// The shape that a step is run with: on a GPU a step of decoding is padded to one of few sizes, so that a captured
    /// one can be run again. The inputs are to be padded with [`StepInputs::pad`].
    pub fn bucket(&self, shape: StepShape) -> StepShape {
        let kv = shape.kv.next_power_of_two().max(256);
        let plain = StepShape { kv, ..shape };
        if self.gpu.as_ref().is_none_or(|gpu| !gpu.capture) || !is_decode(shape) {
            return plain;
        }
        let rows = match shape.rows {
            rows @ 0..=8 => rows.next_power_of_two(),
            rows @ 9..=32 => rows.next_multiple_of(8),
            rows => rows.next_multiple_of(16),
        };
        let max = self.step.max_shape();
        if rows > max.rows || rows > max.selected {
            return plain;
        }
        StepShape { rows, selected: rows, seqs: max.seqs, kv }
    }

    /// Writes a step's inputs. Earlier work on the stream has read the old ones before they change.
    pub fn write(&mut self, inputs: &StepInputs) -> Result<()> {
        let step = self.step.clone();
        let mut end = 0;
        for (to, values) in [
            (&step.ids, &inputs.ids),
            (&step.positions, &inputs.positions),
            (&step.row_seq, &inputs.row_seq),
            (&step.select, &inputs.select),
            (&step.state_slot, &inputs.state_slot),
            (&step.page_table, &inputs.page_table),
        ] {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            // Whether the values fit is the slice's to say.
            let part = to.slice(0, bytes.len())?;
            let start = part.offset() - self.whole.offset();
            end = start + bytes.len();
            self.host.resize(self.host.len().max(end), 0);
            self.host[start..end].copy_from_slice(bytes);
        }
        let to = self.whole.slice(0, end)?;
        // SAFETY: only launches of this runner read the step buffers, and they are ordered on the same stream.
        Ok(unsafe { self.stream.upload(&to, &self.host[..end]) }?)
    }

    /// Runs a program's tasks in order. On a GPU it returns when all are enqueued.
    pub fn run(&mut self, tasks: &[Task], shape: StepShape) -> Result<()> {
        for task in tasks {
            let Some(rows) = task.rows(shape) else { continue };
            let index = task.index(rows).ok_or_else(|| KernelError::Shape {
                scope: task.launch.scope.clone(),
                op: task.launch.op.kind(),
                what: "number of rows",
                found: rows,
                expected: task.variants.last().map_or(0, |(most, _)| *most),
            })?;
            match task.variants[index].1.entry {
                Entry::Cpu(kernel) => {
                    let team = self
                        .device
                        .team()
                        .ok_or(DeviceError::Unsupported { device: self.device.id(), what: "CPU kernels" })?;
                    kernel(&task.launch, shape, team);
                }
                Entry::Gpu(_) => {
                    let prepared = task.prepared.get(index).ok_or(DeviceError::Unsupported {
                        device: self.device.id(),
                        what: "kernels that were not prepared",
                    })?;
                    // SAFETY: the launch was checked when the program was built and holds its buffers, which
                    // live as long as the program; all that touches them goes through this one stream; and the shape
                    // is one that the step's buffers hold.
                    unsafe { prepared.enqueue(&self.device, &self.stream, &task.launch, shape) }?;
                }
            }
        }
        Ok(())
    }

    /// As [`Runner::run`], for all tasks of the one program that this runner serves: on a GPU a step of decoding is
    /// captured the first time, and replayed after. Where capture fails, the step runs without, and this is said once.
    pub fn run_program(&mut self, tasks: &[Task], shape: StepShape) -> Result<()> {
        let captured = |gpu: &Gpu| gpu.capture && is_decode(shape);
        if !self.gpu.as_ref().is_some_and(captured) {
            return self.run(tasks, shape);
        }
        if !self.gpu.as_ref().is_some_and(|gpu| gpu.graphs.contains_key(&shape)) {
            let room = self.gpu.as_ref().is_some_and(|gpu| gpu.graphs.len() < MOST_GRAPHS);
            match if room { self.capture(tasks, shape) } else { return self.run(tasks, shape) } {
                Ok(graph) => {
                    if let Some(gpu) = &mut self.gpu {
                        gpu.graphs.insert(shape, graph);
                    }
                }
                Err(KernelError::Device(lost @ DeviceError::Lost { .. })) => return Err(lost.into()),
                Err(error) => {
                    tracing::warn!(
                        "{}: a step cannot be captured, so it runs kernel by kernel: {error}",
                        self.device.id()
                    );
                    if let Some(gpu) = &mut self.gpu {
                        gpu.capture = false;
                    }
                    return self.run(tasks, shape);
                }
            }
        }
        match self.gpu.as_ref().and_then(|gpu| gpu.graphs.get(&shape)) {
            // SAFETY: the recording names what the tasks name, which lives as long as the program.
            Some(graph) => Ok(unsafe { self.stream.launch(graph) }?),
            None => self.run(tasks, shape),
        }
    }

    fn capture(&mut self, tasks: &[Task], shape: StepShape) -> Result<Graph> {
        self.stream.begin_capture()?;
        let ran = self.run(tasks, shape);
        // The capture is ended whatever happened within.
        let graph = self.stream.end_capture();
        ran?;
        Ok(graph?)
    }

    /// Room on the host for what [`Runner::read_f32`] reads.
    pub fn readback(&self, bytes: usize) -> Result<Readback> {
        Ok(Readback { buffer: self.device.alloc(bytes, MemoryKind::Pinned)?, len: 0 })
    }

    /// Waits for the stream and copies the first `rows` rows of an f32 value out.
    pub fn read_f32(&mut self, view: &View, rows: usize, out: &mut Readback) -> Result<()> {
        let bytes = rows * view.cols * 4;
        out.len = 0;
        if bytes > 0 {
            let (from, to) = (view.slice.slice(0, bytes)?, out.buffer.slice(0, bytes)?);
            // SAFETY: only launches of this runner write the value, and they are ordered on the same stream; nobody
            // reads `out` before the copy is done, since it is borrowed until the wait below.
            let copied = unsafe { self.stream.copy(&to, &from) };
            self.stream.synchronize()?;
            copied?;
        }
        out.len = bytes / 4;
        Ok(())
    }

    /// Copies within caches, ordered with the launches: for forks and snapshots.
    pub fn copy(&mut self, dst: &Slice, src: &Slice) -> Result<()> {
        // SAFETY: both are alive here and kept by the caller's caches, which outlive this stream's work; the
        // stream orders the copy with the launches that touch them.
        Ok(unsafe { self.stream.copy(dst, src) }?)
    }
}

/// A step in which every row wants logits, and few of them.
fn is_decode(shape: StepShape) -> bool {
    shape.rows > 0 && shape.rows == shape.selected && shape.rows <= MOST_CAPTURED_ROWS
}

/// Numbers that were read from the device, in memory that it copies to directly.
#[derive(Debug)]
pub struct Readback {
    buffer: Buffer,
    /// Elements that are there.
    len: usize,
}

impl Readback {
    /// What was read last.
    pub fn as_f32(&self) -> &[f32] {
        let whole = self.buffer.whole();
        // SAFETY: only `read_f32` writes the buffer, through `&mut`, and it has waited for its copy.
        let Some(bytes) = (unsafe { whole.host_bytes() }) else { return &[] };
        // SAFETY: the bytes belong to the buffer, which lives as long as `self`; `whole` only counts as one more owner.
        let bytes: &[u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), self.len * 4) };
        bytemuck::cast_slice(bytes)
    }
}
