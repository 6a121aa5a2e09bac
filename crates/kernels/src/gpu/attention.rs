//! Attention over page tables: `attention_mma.cu`, `attention_decode.cu` and `attention_split.cu` of `kernels-cuda`, and
//! what `kernels-hip` has for them.

mod decode;
mod units_rocm;

use bytemuck::{Pod, Zeroable};
use portolan_device::{DType, DeviceCaps, DeviceKind};

use super::{
    ArgBytes, Call, Defines, GpuKernel,
    args::{CacheArgs, StepArgs, address},
    no_scratch,
    simt::number,
    takes::{self, Answer, check, value_dtype},
    type_name,
};
use crate::{
    CacheKind, Decline, Launch, Op, PAGE_TOKENS, StepShape, ValueType,
    chart::{Entry, OpSpec, Variant},
};

/// `Args` of all three files.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    q: u64,
    y: u64,
    scratch: u64,
    step: StepArgs,
    cache: CacheArgs,
    rows: u32,
    splits: u32,
    window: u32,
    scale: f32,
}

/// Positions of a chunk, and threads of a block, of the split kernel.
const SPLIT: usize = 256;
/// Elements of a head that it takes at most: the sums of a chunk lie in shared memory.
const SPLIT_DIMS: usize = 1024;
/// Counters at the start of its scratch, whatever the launch: those of one launch are not another's sums.
const COUNTERS: usize = 16_384;
/// Rows of a step whose chunks may go to blocks of their own. With more, the rows alone fill the device.
const SPLIT_ROWS: usize = 64;
/// Bytes of scratch that it asks for at most. Where a step needs more, a block goes over all chunks of a row.
const MOST_SCRATCH: usize = 64 << 20;

/// Fewest rows for matrix units. Fewer are decoding, whose rows are of sequences of their own: a block has a sequence's
/// rows alone, and the split kernel spreads a sequence over more blocks.
const MMA_ROWS: usize = 65;
/// Elements of a head that the registers of a warp hold.
const MMA_DIMS: usize = 256;
/// Warps of a block, of 16 queries each.
const MMA_WARPS: usize = 4;

static ATTENTION_SPLIT: GpuKernel = GpuKernel {
    file: "attention_split",
    entry: "attention_split",
    args_size: size_of::<Args>(),
    defines: split_defines,
    call: split_call,
    scratch: split_scratch,
};
static ATTENTION_MMA: GpuKernel = GpuKernel {
    file: "attention_mma",
    entry: "attention_mma",
    args_size: size_of::<Args>(),
    defines: mma_defines,
    call: mma_call,
    scratch: no_scratch,
};

pub(super) fn variants(kind: DeviceKind) -> Vec<Variant> {
    let split = Variant {
        name: "split",
        rows: (1, usize::MAX),
        exact: true,
        batch_invariant: true,
        rounds_weights: false,
        opt_in: false,
        takes: split_takes,
        describe: "pages of f32, f16 or bf16; heads of up to 1024 elements",
        entry: Entry::Gpu(&ATTENTION_SPLIT),
    };
    let mma = Variant {
        name: "mma",
        rows: (MMA_ROWS, usize::MAX),
        exact: false,
        batch_invariant: false,
        rounds_weights: true,
        takes: mma_takes,
        describe: "activations of 16 bits, pages of f16 or of the same type; heads of 16 to 256 elements",
        entry: Entry::Gpu(&ATTENTION_MMA),
        ..split
    };
    let decode = decode::variant(mma);
    match kind {
        DeviceKind::Cuda => vec![mma, decode, split],
        // The instructions of the others are NVIDIA's.
        _ => {
            let entry = Entry::Gpu(&units_rocm::KERNEL);
            vec![Variant { takes: units_rocm::takes, entry, ..mma }, split]
        }
    }
}

/// Elements of a key and of a value.
fn dims(kind: CacheKind) -> [usize; 2] {
    match kind {
        CacheKind::Paged { k_dim, v_dim, .. } => [k_dim, v_dim],
        _ => [0; 2],
    }
}

fn split_takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::attention(spec, caps)?;
    check(matches!(caps.wave_width, 32 | 64), Decline::Wave)?;
    let dims = spec.cache.map_or([0; 2], |(kind, _)| dims(kind));
    check(dims.iter().all(|dim| (1..=SPLIT_DIMS).contains(dim)), Decline::Shape)
}

/// What the kernels for NVIDIA's matrix units take.
fn units_take(spec: &OpSpec<'_>, caps: &DeviceCaps, unit: usize) -> Answer {
    check(caps.wave_width == 32, Decline::Wave)?;
    shapes_take(spec, caps, unit)
}

/// What matrix units take: types of 16 bits, heads of up to [`MMA_DIMS`] elements, a multiple of `unit`.
fn shapes_take(spec: &OpSpec<'_>, caps: &DeviceCaps, unit: usize) -> Answer {
    takes::attention(spec, caps)?;
    let Some((kind, dtype)) = spec.cache else { return Err(Decline::Shape) };
    let halves = matches!(spec.activation, DType::F16 | DType::BF16) && spec.input == ValueType::Activation;
    check(halves && (dtype == DType::F16 || dtype == spec.activation), Decline::Dtype)?;
    let fits = |dim: &usize| dim.is_multiple_of(unit) && (unit..=MMA_DIMS).contains(dim);
    check(dims(kind).iter().all(fits), Decline::Shape)
}

fn mma_takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    units_take(spec, caps, 16)?;
    scale_takes(spec)
}

/// For kernels that find the largest score before the scores are scaled.
fn scale_takes(spec: &OpSpec<'_>) -> Answer {
    check(matches!(*spec.op, Op::Attention { scale, .. } if scale > 0.0), Decline::Shape)
}

/// What a launch comes to. `Launch::check` lets no cache but pages through.
struct Plan {
    heads: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    scale: f32,
    window: Option<usize>,
}

impl Plan {
    fn of(launch: &Launch) -> Self {
        let (heads, scale, window) = match launch.op {
            Op::Attention { heads, scale, window } => (heads, scale, window),
            _ => (1, 1.0, None),
        };
        let (kv_heads, k_dim, v_dim) = match launch.cache.as_ref().map(|c| c.kind) {
            Some(CacheKind::Paged { kv_heads, k_dim, v_dim, .. }) => (kv_heads, k_dim, v_dim),
            _ => (1, 1, 1),
        };
        Plan { heads, kv_heads, k_dim, v_dim, scale, window }
    }

    /// Query heads that share a kv head.
    fn group(&self) -> usize {
        (self.heads / self.kv_heads.max(1)).max(1)
    }

    /// The most elements of a head, of a key or of a value.
    fn widest(&self) -> usize {
        self.k_dim.max(self.v_dim).max(1)
    }

    /// Query heads of a block: up to `most`, and so that the blocks of a kv head have about as many each.
    fn even_tile(&self, most: usize) -> usize {
        self.group().div_ceil(self.group().div_ceil(most))
    }

    /// Query heads of a block of the split kernel: up to four, fewer where heads are wide.
    fn tile(&self) -> usize {
        self.even_tile((SPLIT_DIMS / self.widest()).clamp(1, 4))
    }

    /// Blocks of the split kernel for one chunk of each row.
    fn items(&self, rows: usize) -> usize {
        rows * self.kv_heads * self.group().div_ceil(self.tile())
    }

    /// Chunks of `length` positions, counted from position 0, that a row sees of at most.
    fn chunks(&self, launch: &Launch, shape: StepShape, length: usize) -> usize {
        let table = launch.step.max_pages * PAGE_TOKENS;
        let positions = if shape.kv == 0 { table } else { shape.kv.min(table) };
        let seen = self.window.map_or(usize::MAX, |w| w.div_ceil(length) + 1);
        positions.div_ceil(length).min(seen).max(1)
    }

    /// Bytes of scratch where each of so many chunks of a row has a block of its own.
    fn scratch(&self, rows: usize, chunks: usize) -> usize {
        let sums = self.tile() * (self.v_dim + 2);
        (COUNTERS + self.items(rows) * chunks * sums) * size_of::<f32>()
    }

    /// The grid of a kernel for many rows, whose blocks take `queries` queries each.
    fn grid(&self, shape: StepShape, queries: usize) -> [u32; 3] {
        let tiles = (shape.rows * self.group()).div_ceil(queries);
        // Blocks for the sequences that the rows of a tile may belong to.
        let sequences = shape.seqs.clamp(1, queries.div_ceil(self.group()) + 1);
        [(tiles * self.kv_heads) as u32, sequences as u32, 1]
    }

    fn args(&self, launch: &Launch, shape: StepShape) -> Args {
        Args {
            q: address(&launch.inputs[0]),
            y: address(&launch.outputs[0]),
            scratch: launch.scratch.as_ref().map_or(0, |s| s.device_addr()),
            step: StepArgs::new(&launch.step),
            cache: CacheArgs::new(launch.cache.as_ref()),
            rows: shape.rows as u32,
            splits: 0,
            window: self.window.and_then(|w| u32::try_from(w).ok()).unwrap_or(u32::MAX),
            scale: self.scale,
        }
    }

    fn defines(&self, launch: &Launch) -> Defines {
        let cache = launch.cache.as_ref().map_or(DType::F32, |c| c.dtype);
        let at = |address: u64, bytes: u64| address.is_multiple_of(bytes);
        let keys =
            launch.cache.as_ref().is_some_and(|c| at(c.k.device_addr(), 16) && at(c.v.device_addr(), 16));
        let aligned = keys && at(address(&launch.outputs[0]), 4);
        vec![
            ("X_T", type_name(value_dtype(&launch.inputs[0], launch))),
            ("Y_T", type_name(value_dtype(&launch.outputs[0], launch))),
            ("C_T", type_name(cache)),
            number("K_DIM", self.k_dim),
            number("V_DIM", self.v_dim),
            number("GROUP", self.group()),
            number("ALIGNED", aligned.into()),
        ]
    }
}

fn split_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let plan = Plan::of(launch);
    let mut defines = plan.defines(launch);
    defines.extend([number("TILE", plan.tile()), number("SPLIT", SPLIT)]);
    defines
}

fn split_scratch(launch: &Launch, largest: StepShape, _: &DeviceCaps) -> usize {
    let plan = Plan::of(launch);
    plan.scratch(largest.rows.min(SPLIT_ROWS), plan.chunks(launch, largest, SPLIT)).min(MOST_SCRATCH)
}

fn split_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let plan = Plan::of(launch);
    let (items, chunks) = (plan.items(shape.rows), plan.chunks(launch, shape, SPLIT));
    let room = launch.scratch.as_ref().map_or(0, |s| s.len());
    let fits = shape.rows <= SPLIT_ROWS && items <= COUNTERS && plan.scratch(shape.rows, chunks) <= room;
    // The y of a grid has 16 bits.
    let split = fits && (2..=usize::from(u16::MAX)).contains(&chunks);
    let splits = if split { chunks as u32 } else { 0 };
    let args = Args { splits, ..plan.args(launch, shape) };
    let grid = [items as u32, splits.max(1), 1];
    Call { grid, block: SPLIT as u32, shared: 0, args: ArgBytes::new(&args) }
}

fn mma_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let plan = Plan::of(launch);
    // Sums of wide heads leave room for fewer scores, and for fewer blocks side by side.
    let (tokens, blocks) = match plan.k_dim + plan.v_dim {
        ..=128 => (64, 3),
        129..=256 => (64, 2),
        _ => (32, 1),
    };
    let mut defines = plan.defines(launch);
    defines.extend([number("WARPS", MMA_WARPS), number("TOKENS", tokens), number("BLOCKS", blocks)]);
    defines
}

fn mma_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let plan = Plan::of(launch);
    let grid = plan.grid(shape, 16 * MMA_WARPS);
    Call { grid, block: 32 * MMA_WARPS as u32, shared: 0, args: ArgBytes::new(&plan.args(launch, shape)) }
}
