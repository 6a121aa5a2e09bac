//! Ops on each element, and rows rounded to int8: `kernels-cuda/elementwise.cu`.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;

use super::{
    Call, Defines, GpuKernel,
    args::address,
    no_scratch,
    simt::{self, BLOCK, UNIT, number, simt},
    takes,
};
use crate::{Activation, Decline, Launch, Op, OpKind, OpSpec, RowCodes, StepShape, View, chart::Variant};

/// `Args` of elementwise.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    x: u64,
    b: u64,
    y: u64,
    elements: u64,
    function: u32,
    aligned: u32,
}

/// `Args` of elementwise.cu with QUANTIZE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct QuantizeArgs {
    x: u64,
    y: u64,
    rows: u32,
    cols: u32,
    aligned: u32,
    unused: u32,
}

static ACTIVATE: GpuKernel = GpuKernel {
    file: "elementwise",
    entry: "activate_elements",
    args_size: size_of::<Args>(),
    defines,
    call,
    scratch: no_scratch,
};
static ADD: GpuKernel = GpuKernel { entry: "add_elements", ..ACTIVATE };
static MUL: GpuKernel = GpuKernel { entry: "mul_elements", ..ACTIVATE };
static QUANTIZE_ROWS: GpuKernel = GpuKernel {
    file: "elementwise",
    entry: "quantize_rows",
    args_size: size_of::<QuantizeArgs>(),
    defines: quantize_defines,
    call: quantize_call,
    scratch: no_scratch,
};

pub(super) fn variants(op: OpKind) -> Vec<Variant> {
    const ANY: &str = "any size";
    match op {
        OpKind::Activate => vec![simt(takes::floats, "every function", &ACTIVATE)],
        OpKind::Add => vec![simt(takes::floats, ANY, &ADD)],
        OpKind::Mul => vec![simt(takes::floats, ANY, &MUL)],
        OpKind::QuantizeRows => vec![simt(takes_quantize, "int8; any size", &QUANTIZE_ROWS)],
        _ => Vec::new(),
    }
}

fn takes_quantize(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes::floats(spec, caps)?;
    if *spec.op == Op::QuantizeRows(RowCodes::Int8) { Ok(()) } else { Err(Decline::Dtype) }
}

fn defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let mut types = vec![("X_T", &launch.inputs[0]), ("Y_T", &launch.outputs[0])];
    types.extend(launch.inputs.get(1).map(|b| ("B_T", b)));
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.push(match launch.op {
        Op::Add => number("ADD", 1),
        Op::Mul => number("MUL", 1),
        _ => number("ACTIVATE", 1),
    });
    defines
}

/// The number of a function in common.cuh.
pub(super) const fn function(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu2 => 3,
    }
}

fn call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let y = &launch.outputs[0];
    let elements = shape.of(y.rows) * y.cols;
    let views: Vec<&View> = launch.inputs.iter().chain([y]).collect();
    let args = Args {
        x: address(&launch.inputs[0]),
        b: launch.inputs.get(1).map_or(0, address),
        y: address(y),
        elements: elements as u64,
        function: if let Op::Activate(f) = launch.op { function(f) } else { 0 },
        // Rows follow each other without a gap: their length does not matter.
        aligned: simt::aligned(UNIT, &views).into(),
    };
    simt::call(elements.div_ceil(BLOCK * UNIT), BLOCK, &args)
}

fn quantize_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let mut defines = simt::block_and_types(BLOCK, &[("X_T", &launch.inputs[0])], launch);
    defines.push(number("QUANTIZE", 1));
    defines
}

fn quantize_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let x = &launch.inputs[0];
    let rows = shape.of(x.rows);
    let args = QuantizeArgs {
        x: address(x),
        y: address(&launch.outputs[0]),
        rows: rows as u32,
        cols: x.cols as u32,
        aligned: simt::aligned(x.cols, &[x]).into(),
        unused: 0,
    };
    // Four threads a group of 32.
    simt::call((rows * x.cols.div_ceil(32) * 4).div_ceil(BLOCK), BLOCK, &args)
}
