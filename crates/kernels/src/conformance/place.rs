//! A case in the memory of a device: poisoned outputs between guards, weights in a layout.

use std::sync::Arc;

use portolan_device::{DType, Device, MemoryKind, Slice, Stream};
use portolan_weights::{Layout, WeightTensor};

use super::host::{Case, Weight, decode, encode};
use crate::{CacheView, Launch, Result, StepBuffers, ValueInfo, View, chart, chart::WeightSpec, row_bytes};

/// What outputs and guards hold before the kernel runs: a NaN as f32, f16 or bf16, and -1 as an integer.
pub(super) const POISON: u8 = 0xff;
/// Bytes before and behind what a kernel writes.
const GUARD: usize = 256;

/// Memory that a kernel writes, with guards around it.
#[derive(Debug)]
struct Guarded {
    whole: Slice,
    inner: Slice,
}

/// A case in the memory of a device.
#[derive(Debug)]
pub struct Placed {
    /// Ready to run.
    pub launch: Launch,
    outputs: Vec<Guarded>,
    cache: Vec<Guarded>,
}

/// What a kernel left behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The bytes of each output.
    pub outputs: Vec<Vec<u8>>,
    /// The bytes of keys and values, where there is a cache.
    pub cache: Vec<Vec<u8>>,
    /// Whether all guards are as they were.
    pub guards_whole: bool,
}

/// Places cases on one device.
#[derive(Debug)]
pub struct Placer {
    device: Device,
    stream: Stream,
    activation: DType,
}

/// The weights of a case as the chart sees them, its matrices in `layout`.
pub fn weight_specs(case: &Case, layout: Layout) -> Vec<WeightSpec> {
    let spec = |w: &Weight| WeightSpec {
        encoding: w.encoding,
        layout: if w.is_matrix() { layout } else { Layout::Planes },
        shape: w.shape.clone(),
    };
    case.weights.iter().map(spec).collect()
}

impl Placer {
    /// For cases on `device` with activations of a type.
    pub fn new(device: &Device, activation: DType) -> Result<Self> {
        Ok(Placer { stream: device.stream()?, device: device.clone(), activation })
    }

    /// What the cases are placed on, and run on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of activations.
    pub fn activation(&self) -> DType {
        self.activation
    }

    /// Bytes in device memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Slice> {
        let buffer = self.device.alloc(bytes.len(), MemoryKind::Device)?;
        let slice = buffer.slice(0, bytes.len())?;
        if !bytes.is_empty() {
            // SAFETY: the buffer is new, so nothing else touches it.
            unsafe { self.stream.upload(&slice, bytes)? };
        }
        Ok(slice)
    }

    fn guarded(&self, content: &[u8]) -> Result<Guarded> {
        let mut bytes = vec![POISON; content.len() + 2 * GUARD];
        bytes[GUARD..GUARD + content.len()].copy_from_slice(content);
        let whole = self.upload(&bytes)?;
        Ok(Guarded { inner: whole.slice(GUARD, content.len())?, whole })
    }

    /// Uploads a case, its matrices in `layout`, and checks the launch that comes of it.
    pub fn place(&self, case: &Case, layout: Layout) -> Result<Placed> {
        let activation = self.activation();
        let inputs = (case.inputs.iter())
            .map(|x| Ok(view(self.upload(&x.bytes(activation))?, &x.info)))
            .collect::<Result<Vec<_>>>()?;
        let weights = case.weights.iter().enumerate();
        let weights = weights.map(|(i, w)| self.weight(i, w, layout)).collect::<Result<Vec<_>>>()?;
        let outputs = (case.outputs.iter())
            .map(|y| {
                let bytes = case.shape.of(y.rows) * row_bytes(y.dtype, y.cols, activation);
                self.guarded(&vec![POISON; bytes])
            })
            .collect::<Result<Vec<_>>>()?;
        let cache = match &case.cache {
            Some(c) => vec![self.guarded(&encode(c.dtype, &c.k))?, self.guarded(&encode(c.dtype, &c.v))?],
            None => Vec::new(),
        };
        let cache_view = case.cache.as_ref().map(|c| CacheView {
            kind: c.kind,
            dtype: c.dtype,
            k: cache[0].inner.clone(),
            v: cache[1].inner.clone(),
            pages: c.pages,
        });
        let launch = Launch {
            op: case.op.clone(),
            scope: case.name.clone(),
            activation,
            inputs,
            weights,
            cache: cache_view,
            outputs: outputs.iter().zip(&case.outputs).map(|(g, y)| view(g.inner.clone(), y)).collect(),
            step: Arc::new(self.step(case)?),
            scratch: None,
        };
        launch.check(self.device.caps())?;
        Ok(Placed { launch, outputs, cache })
    }

    /// The same launch over copies of its weights and its cache: for a benchmark that must not find them in the
    /// processor's caches.
    pub fn copy(&self, launch: &Launch) -> Result<Launch> {
        let mut copy = launch.clone();
        for plane in copy.weights.iter_mut().flat_map(|w| &mut w.planes) {
            *plane = self.upload(&self.download(plane)?)?;
        }
        if let Some(cache) = &mut copy.cache {
            cache.k = self.upload(&self.download(&cache.k)?)?;
            cache.v = self.upload(&self.download(&cache.v)?)?;
        }
        Ok(copy)
    }

    fn step(&self, case: &Case) -> Result<StepBuffers> {
        let step = &case.step;
        let ints = |values: &[i32], room: usize| {
            let mut values = values.to_vec();
            // Entries that the step does not use hold anything: here what would lead astray.
            values.resize(room.max(values.len()), i32::MAX);
            self.upload(bytemuck::cast_slice(&values))
        };
        Ok(StepBuffers {
            ids: ints(&step.ids, case.shape.rows)?,
            positions: ints(&step.positions, case.shape.rows)?,
            row_seq: ints(&step.row_seq, case.shape.rows)?,
            page_table: ints(&step.page_table, case.shape.seqs * step.max_pages)?,
            state_slot: ints(&[], case.shape.seqs)?,
            select: ints(&step.select, case.shape.selected)?,
            max_pages: step.max_pages,
            max_rows: case.shape.rows,
            max_seqs: case.shape.seqs,
        })
    }

    fn weight(&self, index: usize, weight: &Weight, layout: Layout) -> Result<WeightTensor> {
        let layout = if weight.is_matrix() { layout } else { Layout::Planes };
        let planes = match chart::repack(layout) {
            Some(repack) => {
                let (rows, k) = (weight.rows(), weight.cols());
                let bytes = repack.plane_bytes(weight.encoding, rows, k);
                let mut packed: Vec<Vec<u8>> = bytes.into_iter().map(|n| vec![0; n]).collect();
                let mut out: Vec<&mut [u8]> = packed.iter_mut().map(Vec::as_mut_slice).collect();
                // In two parts, as a loader would.
                let first = repack.row_multiple().min(rows);
                repack.run(&weight.rows_of(0, first), 0, first, &mut out);
                if first < rows {
                    repack.run(&weight.rows_of(first, rows - first), first, rows - first, &mut out);
                }
                packed
            }
            None => weight.planes.clone(),
        };
        Ok(WeightTensor {
            name: format!("weight {index}"),
            shape: weight.shape.clone(),
            encoding: weight.encoding,
            layout,
            planes: planes.iter().map(|p| self.upload(p)).collect::<Result<_>>()?,
        })
    }

    fn download(&self, slice: &Slice) -> Result<Vec<u8>> {
        let mut bytes = vec![0; slice.len()];
        if !bytes.is_empty() {
            // SAFETY: the kernel is done, or comes before on this stream, and nothing else writes.
            unsafe { self.stream.download(&mut bytes, slice)? };
        }
        Ok(bytes)
    }

    /// What the kernel left behind.
    pub fn results(&self, placed: &Placed) -> Result<Results> {
        let mut guards_whole = true;
        let mut read = |guarded: &Guarded| -> Result<Vec<u8>> {
            let mut bytes = self.download(&guarded.whole)?;
            let end = GUARD + guarded.inner.len();
            guards_whole &= bytes[..GUARD].iter().chain(&bytes[end..]).all(|&b| b == POISON);
            bytes.truncate(end);
            Ok(bytes.split_off(GUARD))
        };
        let outputs = placed.outputs.iter().map(&mut read).collect::<Result<_>>()?;
        let cache = placed.cache.iter().map(&mut read).collect::<Result<_>>()?;
        Ok(Results { outputs, cache, guards_whole })
    }
}

fn view(slice: Slice, info: &ValueInfo) -> View {
    View { slice, rows: info.rows, cols: info.cols, dtype: info.dtype }
}

/// The floats of an output.
pub(super) fn floats(info: &ValueInfo, bytes: &[u8], activation: DType) -> Vec<f32> {
    let dtype = if info.dtype == crate::ValueType::Activation { activation } else { DType::F32 };
    decode(dtype, bytes)
}

/// The rows of a set in a case, for messages.
pub(super) fn place_of(info: &ValueInfo, element: usize) -> (usize, usize) {
    let cols = info.cols.max(1);
    (element / cols, element % cols)
}
