//! Rows that are looked up, and argmax: `kernels-cuda/gather.cu`.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;

use super::{
    Call, Defines, GpuKernel,
    args::{WeightArgs, address},
    no_scratch,
    simt::{self, BLOCK, UNIT, number, simt},
    takes,
    weights::weight_defines,
};
use crate::{Launch, OpKind, StepShape, chart::Variant};

/// Elements that a thread of embed makes.
const EACH: usize = 4;

/// Threads of a block that searches a part of a row.
const ARGMAX_BLOCK: usize = 256;

/// Columns of a part: four loads of each thread.
const PART: usize = ARGMAX_BLOCK * UNIT * 4;

/// Bytes where the parts of a row meet: `Best` of gather.cu.
const BEST: usize = 16;

/// `Args` of gather.cu with EMBED.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct EmbedArgs {
    table: WeightArgs,
    ids: u64,
    y: u64,
    vocab: u32,
    cols: u32,
    blocks: u32,
    unused: u32,
}

/// `Args` of gather.cu with SELECT.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct SelectArgs {
    x: u64,
    select: u64,
    y: u64,
    rows: u32,
    cols: u32,
    aligned: u32,
    blocks: u32,
}

/// `Args` of gather.cu with ARGMAX.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct ArgmaxArgs {
    x: u64,
    y: u64,
    best: u64,
    rows: u32,
    cols: u32,
    part: u32,
    parts: u32,
    aligned: u32,
    unused: u32,
}

static EMBED: GpuKernel = GpuKernel {
    file: "gather",
    entry: "embed",
    args_size: size_of::<EmbedArgs>(),
    defines: embed_defines,
    call: embed_call,
    scratch: no_scratch,
};
static SELECT_ROWS: GpuKernel = GpuKernel {
    file: "gather",
    entry: "select_rows",
    args_size: size_of::<SelectArgs>(),
    defines: select_defines,
    call: select_call,
    scratch: no_scratch,
};
static ARGMAX: GpuKernel = GpuKernel {
    file: "gather",
    entry: "argmax",
    args_size: size_of::<ArgmaxArgs>(),
    defines: argmax_defines,
    call: argmax_call,
    scratch: argmax_scratch,
};

pub(super) fn variants(op: OpKind) -> Vec<Variant> {
    match op {
        OpKind::Embed => vec![simt(takes::embed, "weights of any encoding as planes", &EMBED)],
        OpKind::SelectRows => vec![simt(takes::floats, "any size", &SELECT_ROWS)],
        OpKind::Argmax => vec![simt(takes::floats, "any size", &ARGMAX)],
        _ => Vec::new(),
    }
}

fn embed_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let mut defines = simt::block_and_types(BLOCK, &[("Y_T", &launch.outputs[0])], launch);
    defines.extend([number("EMBED", 1), number("EACH", EACH)]);
    defines.extend(weight_defines(launch.weights[0].encoding));
    defines
}

fn embed_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let (table, y) = (&launch.weights[0], &launch.outputs[0]);
    let blocks = y.cols.div_ceil(BLOCK * EACH).max(1);
    let args = EmbedArgs {
        table: WeightArgs::new(table),
        ids: launch.step.ids.device_addr(),
        y: address(y),
        vocab: table.shape.first().map_or(0, |n| *n as u32),
        cols: y.cols as u32,
        blocks: blocks as u32,
        unused: 0,
    };
    simt::call(shape.rows * blocks, BLOCK, &args)
}

fn select_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let types = [("X_T", &launch.inputs[0]), ("Y_T", &launch.outputs[0])];
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.push(number("SELECT", 1));
    defines
}

fn select_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let (x, y) = (&launch.inputs[0], &launch.outputs[0]);
    let blocks = y.cols.div_ceil(BLOCK * UNIT).max(1);
    let args = SelectArgs {
        x: address(x),
        select: launch.step.select.device_addr(),
        y: address(y),
        rows: shape.of(x.rows) as u32,
        cols: y.cols as u32,
        aligned: simt::aligned(y.cols, &[x, y]).into(),
        blocks: blocks as u32,
    };
    simt::call(shape.selected * blocks, BLOCK, &args)
}

fn argmax_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let mut defines = simt::block_and_types(ARGMAX_BLOCK, &[("X_T", &launch.inputs[0])], launch);
    defines.push(number("ARGMAX", 1));
    defines
}

fn argmax_scratch(launch: &Launch, largest: StepShape, _: &DeviceCaps) -> usize {
    let x = &launch.inputs[0];
    if x.cols > PART { largest.of(x.rows) * BEST } else { 0 }
}

fn argmax_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let x = &launch.inputs[0];
    let rows = shape.of(x.rows);
    let (best, part) = match &launch.scratch {
        Some(scratch) if x.cols > PART && scratch.len() >= rows * BEST => (scratch.device_addr(), PART),
        _ => (0, x.cols.max(1)),
    };
    let parts = x.cols.div_ceil(part).max(1);
    let args = ArgmaxArgs {
        x: address(x),
        y: address(&launch.outputs[0]),
        best,
        rows: rows as u32,
        cols: x.cols as u32,
        part: part as u32,
        parts: parts as u32,
        aligned: simt::aligned(x.cols, &[x]).into(),
        unused: 0,
    };
    simt::call(rows * parts, ARGMAX_BLOCK, &args)
}
