//! Attention for steps of many rows on AMD's matrix units: `attention_mma.hip`, of `kernels-hip`.

use portolan_device::DeviceCaps;

use super::{Args, MMA_WARPS as WAVES, Plan, scale_takes, shapes_take};
use crate::{
    Launch, StepShape,
    chart::OpSpec,
    gpu::{ArgBytes, Call, Defines, GpuKernel, matrix, no_scratch, simt::number, takes::Answer},
};

pub(super) static KERNEL: GpuKernel = GpuKernel {
    file: "attention_mma",
    entry: "attention_mma",
    args_size: size_of::<Args>(),
    defines,
    call,
    scratch: no_scratch,
};

/// What CUDA's takes, where there are matrix units.
pub(super) fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    matrix::takes(caps)?;
    shapes_take(spec, caps, 16)?;
    scale_takes(spec)
}

/// How the kernel is cut: what registers and 64 KiB of shared memory allow, none of which spills.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    /// Tiles of 16 queries of a wave.
    tiles: usize,
    /// Positions of a tile.
    tokens: usize,
    /// Whether queries wait in shared memory.
    shared: bool,
}

impl Cut {
    fn of(plan: &Plan, caps: &DeviceCaps) -> Self {
        Cut::new(plan.k_dim + plan.v_dim, caps.wave_width)
    }

    /// For heads whose keys and values have `dims` elements together.
    fn new(dims: usize, lanes: u32) -> Self {
        // Of 64 lanes each has less of every fragment, and room for the queries of two tiles, which halves the reads of
        // shared memory.
        let cdna = lanes == 64;
        let tiles = if cdna { 2 } else { 1 };
        match dims {
            ..=128 => Cut { tiles, tokens: 64, shared: false },
            129..=256 => Cut { tiles, tokens: 32, shared: false },
            _ => Cut { tiles, tokens: if cdna { 32 } else { 16 }, shared: !cdna },
        }
    }
}

fn defines(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let plan = Plan::of(launch);
    let cut = Cut::of(&plan, caps);
    let mut defines = plan.defines(launch);
    defines.extend([
        number("WAVES", WAVES),
        number("QT", cut.tiles),
        number("TOKENS", cut.tokens),
        number("Q_SHARED", cut.shared.into()),
        matrix::define(caps),
    ]);
    defines
}

fn call(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let plan = Plan::of(launch);
    let grid = plan.grid(shape, 16 * Cut::of(&plan, caps).tiles * WAVES);
    let block = caps.wave_width * WAVES as u32;
    Call { grid, block, shared: 0, args: ArgBytes::new(&plan.args(launch, shape)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of shared memory of a block, as `attention_mma.hip` and `attention_tiles.h` declare it.
    fn shared(cut: Cut, k_dim: usize, v_dim: usize, depth: usize) -> usize {
        let queries = 16 * cut.tiles * WAVES;
        let (k_row, v_row) = (k_dim.next_multiple_of(depth) / 8 + 1, cut.tokens / 8 + 1);
        let units = cut.tokens * k_row + v_dim * v_row + if cut.shared { queries * k_row } else { 1 };
        units * 16 + queries * 2 * 4
    }

    #[test]
    fn blocks_fit_shared_memory() {
        for (lanes, depth) in [(32, 16), (64, 32)] {
            for k_dim in (16..=256).step_by(16) {
                for v_dim in (16..=256).step_by(16) {
                    let cut = Cut::new(k_dim + v_dim, lanes);
                    let bytes = shared(cut, k_dim, v_dim, depth);
                    assert!(bytes <= 64 << 10, "{cut:?} of {k_dim} and {v_dim}: {bytes} bytes");
                    assert!(cut.tokens.is_multiple_of(depth), "{cut:?}");
                }
            }
        }
    }
}
