//! What the tests of these kernels share. Accuracy over all sizes is the conformance suite's business; here stand
//! the things that are these kernels' own: the layout, sums that must not overflow, results that must not depend
//! on rows or threads.

use std::sync::Arc;

use portolan_device::{
    DType, Device, MemoryKind, Slice,
    cpu::{CpuOptions, Team},
};
use portolan_weights::{BlockScale, Element, Encoding, Layout, Plane, Planes, WeightTensor, decode_row};

use crate::{
    CacheView, Launch, Op, OpSpec, RowSet, StepBuffers, StepShape, ValueType, View,
    chart::{Entry, WeightSpec},
    row_bytes,
};

mod attention;
mod from_blocks;
mod golden;
mod integer;
mod names;
mod takes;

/// Whether this processor has what the kernels need.
pub(super) fn here() -> bool {
    let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let there = super::simd::available(device.caps()).is_ok();
    if !there {
        portolan_testkit::skipped("this processor lacks a feature of the fast kernels");
    }
    there
}

/// Numbers that look random (xorshift).
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    /// In `-1..1`.
    pub(super) fn float(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / 8_388_608.0 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Every encoding of the layout `rows8`.
pub(super) fn encodings() -> Vec<Encoding> {
    let mut all = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, meta) in [(32, DType::F16), (64, DType::BF16), (128, DType::F32)] {
            all.push(Encoding::Affine { bits, group, meta });
        }
    }
    for (bits, group, minima) in [(2, 16, true), (3, 16, false), (4, 32, true), (5, 32, true), (6, 16, false)]
    {
        all.push(Encoding::TwoLevel { bits, group, minima });
    }
    all.push(Encoding::FloatBlock { element: Element::E2M1, group: 32, scale: BlockScale::E8M0 });
    all.push(Encoding::FloatBlock { element: Element::E2M1, group: 16, scale: BlockScale::E4M3 });
    all
}

/// A weight as a file has it.
pub(super) struct Weight {
    pub(super) encoding: Encoding,
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) planes: Vec<Vec<u8>>,
}

impl Weight {
    /// Codes from `code`, a byte at a time; scales of a sensible size.
    pub(super) fn new(
        encoding: Encoding,
        rows: usize,
        k: usize,
        rng: &mut Rng,
        code: impl Fn(&mut Rng) -> u8,
    ) -> Self {
        let plane = |&plane: &Plane| -> Vec<u8> {
            let bytes = rows * encoding.row_bytes(plane, k);
            let float = |rng: &mut Rng| rng.float() * 0.1;
            match (encoding, plane) {
                (_, Plane::Codes) => (0..bytes).map(|_| code(rng)).collect(),
                (Encoding::Affine { meta: DType::F32, .. }, _) => {
                    (0..bytes / 4).flat_map(|_| float(rng).to_le_bytes()).collect()
                }
                (Encoding::Affine { meta: DType::BF16, .. }, _) => {
                    (0..bytes / 2).flat_map(|_| half::bf16::from_f32(float(rng)).to_le_bytes()).collect()
                }
                (Encoding::Affine { .. }, _) | (_, Plane::Super) => {
                    (0..bytes / 2).flat_map(|_| half::f16::from_f32(float(rng)).to_le_bytes()).collect()
                }
                (Encoding::FloatBlock { scale: BlockScale::E8M0, .. }, _) => {
                    (0..bytes).map(|_| 120 + rng.bits() as u8 % 10).collect()
                }
                // Every E4M3 scale but the NaNs, subnormals and negative ones among them.
                (Encoding::FloatBlock { .. }, _) => (0..bytes)
                    .map(|_| rng.bits() as u8)
                    .map(|b| if b & 0x7f == 0x7f { b ^ 1 } else { b })
                    .collect(),
                _ => (0..bytes).map(|_| rng.bits() as u8).collect(),
            }
        };
        Weight { encoding, rows, k, planes: encoding.planes().iter().map(plane).collect() }
    }

    pub(super) fn random(encoding: Encoding, rows: usize, k: usize, rng: &mut Rng) -> Self {
        Self::new(encoding, rows, k, rng, |rng| rng.bits() as u8)
    }

    /// Rows `first..first + n`.
    pub(super) fn part(&self, first: usize, n: usize) -> Planes<'_> {
        let mut planes: [&[u8]; 4] = [&[]; 4];
        for ((to, from), &plane) in planes.iter_mut().zip(&self.planes).zip(self.encoding.planes()) {
            let bytes = self.encoding.row_bytes(plane, self.k);
            *to = &from[first * bytes..(first + n) * bytes];
        }
        Planes { encoding: self.encoding, k: self.k, planes }
    }

    /// Row by row, as f32.
    pub(super) fn decoded(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.k];
        for (row, out) in out.chunks_exact_mut(self.k).enumerate() {
            decode_row(&self.part(0, self.rows), row, out);
        }
        out
    }

    /// In the layout `rows8`, made in parts as the loader does.
    pub(super) fn packed(&self) -> Vec<u8> {
        let repack = super::repack(Layout::Packed(super::rows8::NAME)).unwrap();
        let mut out = vec![0xa5; repack.plane_bytes(self.encoding, self.rows, self.k)[0]];
        for first in (0..self.rows).step_by(2 * repack.row_multiple()) {
            let n = (2 * repack.row_multiple()).min(self.rows - first);
            repack.run(&self.part(first, n), first, n, &mut [&mut out]);
        }
        out
    }
}

/// A device and a step, to build launches on.
pub(super) struct Bed {
    pub(super) device: Device,
    pub(super) step: Arc<StepBuffers>,
}

impl Bed {
    /// A step of one sequence whose rows have these positions; its pages are in reverse order.
    pub(super) fn new(positions: &[i32], pages: usize) -> Self {
        Self::with_pages(positions, &(0..pages as i32).rev().collect::<Vec<_>>())
    }

    /// A step of one sequence with a page table.
    pub(super) fn with_pages(positions: &[i32], pages: &[i32]) -> Self {
        let device = Device::cpu(&CpuOptions { threads: 2 }).unwrap();
        let place = |v: &[i32]| place(&device, bytemuck::cast_slice(v));
        let rows = positions.len();
        let step = StepBuffers {
            ids: place(&vec![0; rows]),
            positions: place(positions),
            row_seq: place(&vec![0; rows]),
            page_table: place(pages),
            state_slot: place(&[0]),
            select: place(&[0]),
            max_pages: pages.len(),
            max_rows: rows,
            max_seqs: 1,
        };
        Bed { device: device.clone(), step: Arc::new(step) }
    }

    pub(super) fn view(&self, dtype: ValueType, cols: usize, rows: usize, fill: &[u8]) -> View {
        let len = rows * row_bytes(dtype, cols, DType::F32);
        let bytes = if fill.is_empty() { &vec![0xff; len] } else { fill };
        View { slice: place(&self.device, bytes), rows: RowSet::Tokens, cols, dtype }
    }

    pub(super) fn floats(&self, values: &[f32], cols: usize) -> View {
        self.view(ValueType::Activation, cols, values.len() / cols, bytemuck::cast_slice(values))
    }

    /// In the layout `rows8`.
    pub(super) fn weight(&self, weight: &Weight) -> WeightTensor {
        WeightTensor {
            layout: Layout::Packed(super::rows8::NAME),
            planes: vec![place(&self.device, &weight.packed())],
            ..self.weight_of(weight)
        }
    }

    /// As planes.
    pub(super) fn weight_of(&self, weight: &Weight) -> WeightTensor {
        WeightTensor {
            name: "w".to_owned(),
            shape: vec![weight.rows, weight.k],
            encoding: weight.encoding,
            layout: Layout::Planes,
            planes: weight.planes.iter().map(|plane| place(&self.device, plane)).collect(),
        }
    }

    /// Runs the variant of that name, which must take the launch, on a team, for the first rows.
    #[track_caller]
    pub(super) fn run(&self, name: &str, launch: &Launch, rows: usize, threads: usize) {
        let weights: Vec<_> = launch.weights.iter().map(spec_of).collect();
        let input = launch.inputs.first();
        let spec = OpSpec {
            op: &launch.op,
            rows,
            activation: launch.activation,
            input: input.map_or(ValueType::Activation, |x| x.dtype),
            input_cols: input.map_or(0, |x| x.cols),
            weights: &weights,
            cache: launch.cache.as_ref().map(|c| (c.kind, c.dtype)),
        };
        let variant = super::variants(launch.op.kind()).iter().find(|v| v.name == name).unwrap();
        assert_eq!((variant.takes)(&spec, self.device.caps()), Ok(()), "{spec}");
        let Entry::Cpu(kernel) = variant.entry else { panic!("a kernel of the CPU") };
        kernel(
            &launch.clone(),
            StepShape { rows, selected: 1, seqs: 1, kv: 0 },
            &Team::new(threads).unwrap(),
        );
    }

    pub(super) fn launch(
        &self,
        op: Op,
        inputs: &[&View],
        weights: &[&WeightTensor],
        cache: Option<CacheView>,
        output: &View,
    ) -> Launch {
        Launch {
            op,
            scope: "test".to_owned(),
            activation: DType::F32,
            inputs: inputs.iter().map(|&v| v.clone()).collect(),
            weights: weights.iter().map(|&w| w.clone()).collect(),
            cache,
            outputs: vec![output.clone()],
            step: self.step.clone(),
            scratch: None,
        }
    }
}

pub(super) fn spec_of(weight: &WeightTensor) -> WeightSpec {
    WeightSpec { encoding: weight.encoding, layout: weight.layout, shape: weight.shape.clone() }
}

pub(super) fn place(device: &Device, bytes: &[u8]) -> Slice {
    let mut buffer = device.alloc(bytes.len(), MemoryKind::Device).unwrap();
    buffer.host_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
    buffer.whole()
}

pub(super) fn floats_of(view: &View, rows: usize) -> Vec<f32> {
    crate::cpu::access::read(&view.slice, rows * view.cols).to_vec()
}
