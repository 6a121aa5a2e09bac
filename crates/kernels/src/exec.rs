//! Runs launches in order on a device, and moves a step's numbers in and out.
//!
//! This is the safe door to the device for the crates above, which hold no `unsafe`. It rests on exclusivity: a
//! [`Runner`] is used through `&mut self`, every buffer that its launches name was placed by one planner, and
//! whatever it enqueues is complete, or ordered on its one stream, before it hands a byte back.

use std::sync::Arc;

use portolan_device::{Device, DeviceError, MemoryKind, Slice, Stream};

use crate::{
    KernelError, Launch, Result, StepBuffers, StepShape, View,
    chart::{Entry, Variant},
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

/// An op of a program: a launch and, by row count, the variant that serves it.
#[derive(Clone, Debug)]
pub struct Task {
    /// What is launched.
    pub launch: Launch,
    /// The variant for up to so many rows, ascending; the last covers the largest step.
    pub variants: Vec<(usize, &'static Variant)>,
}

impl Task {
    /// The variant for a number of rows.
    fn variant(&self, rows: usize) -> Option<&'static Variant> {
        self.variants.iter().find(|(most, _)| rows <= *most).map(|&(_, variant)| variant)
    }

    /// The variant that a step of this shape takes; none where it has no rows for it.
    pub fn variant_of(&self, shape: StepShape) -> Option<&'static Variant> {
        match self.rows(shape) {
            0 => None,
            rows => self.variant(rows),
        }
    }

    /// The rows that decide between variants: those of the first output, or of the step where there is none.
    fn rows(&self, shape: StepShape) -> usize {
        self.launch.outputs.first().map_or(shape.rows, |out| shape.of(out.rows))
    }
}

/// A device's stream and the buffers of a step.
#[derive(Debug)]
pub struct Runner {
    device: Device,
    stream: Stream,
    step: Arc<StepBuffers>,
}

impl Runner {
    /// Takes the step buffers from the device.
    pub fn new(device: &Device, limits: StepLimits) -> Result<Self> {
        let buffer = device.alloc(limits.bytes(), MemoryKind::Device)?;
        let mut offset = 0;
        let mut take = |n: usize| -> Result<Slice> {
            let slice = buffer.slice(offset, n * 4)?;
            offset += (n * 4).next_multiple_of(256);
            Ok(slice)
        };
        let step = StepBuffers {
            ids: take(limits.rows)?,
            positions: take(limits.rows)?,
            row_seq: take(limits.rows)?,
            page_table: take(limits.seqs * limits.pages)?,
            state_slot: take(limits.seqs)?,
            select: take(limits.selected)?,
            max_pages: limits.pages,
            max_rows: limits.rows,
            max_seqs: limits.seqs,
        };
        Ok(Runner { device: device.clone(), stream: device.stream()?, step: Arc::new(step) })
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

    /// Writes a step's inputs. Earlier work on the stream has read the old ones before they change.
    pub fn write(&mut self, inputs: &StepInputs) -> Result<()> {
        let step = self.step.clone();
        self.put(&step.ids, &inputs.ids)?;
        self.put(&step.positions, &inputs.positions)?;
        self.put(&step.row_seq, &inputs.row_seq)?;
        self.put(&step.page_table, &inputs.page_table)?;
        self.put(&step.state_slot, &inputs.state_slot)?;
        self.put(&step.select, &inputs.select)
    }

    fn put(&mut self, to: &Slice, values: &[i32]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let to = to.slice(0, bytes.len())?;
        // SAFETY: only launches of this runner read the step buffers, and they are ordered on the same stream.
        Ok(unsafe { self.stream.upload(&to, bytes) }?)
    }

    /// Runs a program's tasks in order. On a GPU it returns when all are enqueued.
    pub fn run(&mut self, tasks: &[Task], shape: StepShape) -> Result<()> {
        for task in tasks {
            let rows = task.rows(shape);
            if rows == 0 {
                continue;
            }
            let variant = task.variant(rows).ok_or_else(|| KernelError::Shape {
                scope: task.launch.scope.clone(),
                op: task.launch.op.kind(),
                what: "number of rows",
                found: rows,
                expected: task.variants.last().map_or(0, |(most, _)| *most),
            })?;
            match variant.entry {
                Entry::Cpu(kernel) => {
                    let team = self
                        .device
                        .team()
                        .ok_or(DeviceError::Unsupported { device: self.device.id(), what: "CPU kernels" })?;
                    kernel(&task.launch, shape, team);
                }
            }
        }
        Ok(())
    }

    /// Waits for the stream and copies the first `rows` rows of an f32 value out.
    pub fn read_f32(&mut self, view: &View, rows: usize, out: &mut Vec<f32>) -> Result<()> {
        out.resize(rows * view.cols, 0.0);
        if out.is_empty() {
            return Ok(());
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
        let from = view.slice.slice(0, bytes.len())?;
        // SAFETY: only launches of this runner write the value, and they are ordered on the same stream.
        Ok(unsafe { self.stream.download(bytes, &from) }?)
    }

    /// Copies within caches, ordered with the launches: for forks and snapshots.
    pub fn copy(&mut self, dst: &Slice, src: &Slice) -> Result<()> {
        // SAFETY: both are alive here and kept by the caller's caches, which outlive this stream's work; the
        // stream orders the copy with the launches that touch them.
        Ok(unsafe { self.stream.copy(dst, src) }?)
    }
}
