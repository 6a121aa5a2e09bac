//! Attention for steps of few rows on matrix units: `kernels-cuda/attention_decode.cu`.

use portolan_device::DeviceCaps;

use super::{Args, COUNTERS, MOST_SCRATCH, Plan, SPLIT_ROWS, units_take};
use crate::{
    Launch, StepShape,
    chart::{Entry, OpSpec, Variant},
    gpu::{ArgBytes, Call, Defines, GpuKernel, simt::number, takes::Answer},
};

/// Warps of a block.
const WARPS: usize = 4;
/// Blocks that the chunks of a row come to at most, about: as many as an H200 holds at once.
const ROW_BLOCKS: usize = 384;
/// Groups of positions that are one chunk, whatever the length of a chunk is otherwise.
const ALONE: usize = 2;

static KERNEL: GpuKernel = GpuKernel {
    file: "attention_decode",
    entry: "attention_decode",
    args_size: size_of::<Args>(),
    defines,
    call,
    scratch,
};

/// The variant; what it does not set is as in `mma`, whose rounding it shares.
///
/// A row's result depends on no other row. But a step of more than [`SPLIT_ROWS`] rows takes another kernel, and then
/// other bits: who wants the same ones whatever the step is takes the split kernel for all.
pub(super) fn variant(mma: Variant) -> Variant {
    Variant {
        name: "decode",
        rows: (1, SPLIT_ROWS),
        // On an H200 with Llama 3.1 8B's shapes a token at depth 16,384 took 0.13 ms less than with the split kernel, and at
        // depth 4,096 0.16 ms more; with Qwen3 0.6B's it was the slower at both. So it waits to be asked for.
        opt_in: true,
        takes,
        describe: "activations of 16 bits, pages of f16 or of the same type; heads of 8 to 256 elements",
        entry: Entry::Gpu(&KERNEL),
        ..mma
    }
}

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    units_take(spec, caps, 8)
}

/// How the decode kernel cuts its work. Nothing of it depends on the step.
struct Cut {
    /// Query heads of a block.
    tile: usize,
    /// Positions that a warp takes at a time.
    tokens: usize,
    /// Chunks of a row at most.
    most: usize,
    /// Blocks of a multiprocessor, for whose sake registers are saved.
    blocks: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Cut {
    fn of(plan: &Plan) -> Self {
        let wide = plan.widest() > 128;
        let tile = plan.even_tile(if wide { 8 } else { 16 });
        let tokens = if wide { 16 } else { 32 };
        // Rows that end within a lane's pieces need more registers for addresses.
        let even = plan.k_dim.is_multiple_of(32) && plan.v_dim.is_multiple_of(64);
        // Pieces of 16 bytes by lane: four lanes share a key, eight share a value, of which a lane has a row of two.
        let pieces = tokens / 8 * (plan.k_dim.div_ceil(32) + 2 * plan.v_dim.div_ceil(64));
        Cut {
            tile,
            tokens,
            most: (ROW_BLOCKS / (plan.kv_heads * plan.group().div_ceil(tile)).max(1)).clamp(16, 64),
            blocks: if wide || tile > 8 || !even { 2 } else { 3 },
            shared: WARPS * 32 * 16 * pieces,
        }
    }

    /// Blocks for one chunk of each row.
    fn items(&self, plan: &Plan, rows: usize) -> usize {
        rows * plan.kv_heads * plan.group().div_ceil(self.tile)
    }

    /// Chunks of a row at most in a step.
    fn chunks(&self, plan: &Plan, launch: &Launch, shape: StepShape) -> usize {
        let groups = plan.chunks(launch, shape, WARPS * self.tokens);
        if groups <= ALONE { 1 } else { groups.min(self.most) }
    }

    /// Bytes of scratch where each of so many chunks of a row has a block of its own.
    fn scratch(&self, plan: &Plan, rows: usize, chunks: usize) -> usize {
        let sums = self.tile * plan.v_dim + (2 * self.tile).next_multiple_of(4);
        (COUNTERS + self.items(plan, rows) * chunks * sums) * size_of::<f32>()
    }
}

fn defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let plan = Plan::of(launch);
    let cut = Cut::of(&plan);
    let mut defines = plan.defines(launch);
    defines.extend([
        number("TILE", cut.tile),
        number("TOKENS", cut.tokens),
        number("MOST", cut.most),
        number("BLOCKS", cut.blocks),
        number("WARPS", WARPS),
        number("ALONE", ALONE),
        number("SHARED_BYTES", cut.shared),
    ]);
    defines
}

fn scratch(launch: &Launch, largest: StepShape, _: &DeviceCaps) -> usize {
    let plan = Plan::of(launch);
    let cut = Cut::of(&plan);
    let chunks = cut.chunks(&plan, launch, largest);
    cut.scratch(&plan, largest.rows.min(SPLIT_ROWS), chunks).min(MOST_SCRATCH)
}

fn call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let plan = Plan::of(launch);
    let cut = Cut::of(&plan);
    let (items, chunks) = (cut.items(&plan, shape.rows), cut.chunks(&plan, launch, shape));
    let room = launch.scratch.as_ref().map_or(0, |s| s.len());
    let split = chunks > 1 && items <= COUNTERS && cut.scratch(&plan, shape.rows, chunks) <= room;
    let splits = if split { chunks as u32 } else { 0 };
    let args = Args { splits, ..plan.args(launch, shape) };
    let grid = [items as u32, splits.max(1), 1];
    Call { grid, block: 32 * WARPS as u32, shared: cut.shared as u32, args: ArgBytes::new(&args) }
}
