//! Rotary position embedding and the append to a cache: `kernels-cuda/rope.cu`.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;

use super::{
    Call, Defines, GpuKernel,
    args::{CacheArgs, StepArgs, address},
    no_scratch,
    simt::{self, BLOCK, UNIT, number, simt},
    takes::{self, Answer, check},
    type_name,
};
use crate::{
    CacheKind, Decline, Launch, Op, OpKind, RopeStyle, StepShape, View,
    chart::{OpSpec, Variant},
};

/// Most pairs of a head: the frequencies are part of the device code.
const MOST_PAIRS: usize = 256;

/// `Args` of rope.cu with TABLE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct TableArgs {
    positions: u64,
    y: u64,
    rows: u32,
    scale: f32,
    theta: f32,
    factor: f32,
    max_position: f32,
    unused: u32,
}

/// `Args` of rope.cu with ROPE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct RopeArgs {
    x: u64,
    table: u64,
    y: u64,
    heads: u32,
    dim: u32,
    rot: u32,
    interleaved: u32,
    aligned: u32,
    blocks: u32,
}

/// `Args` of rope.cu with APPEND.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct AppendArgs {
    k: u64,
    v: u64,
    step: StepArgs,
    cache: CacheArgs,
    aligned_k: u32,
    aligned_v: u32,
    blocks: u32,
    unused: u32,
}

/// `Args` of rope.cu with ROPE_APPEND.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct RopeAppendArgs {
    q: u64,
    k: u64,
    v: u64,
    table: u64,
    y: u64,
    step: StepArgs,
    cache: CacheArgs,
    heads: u32,
    rot: u32,
    interleaved: u32,
    aligned_k: u32,
    aligned_v: u32,
    blocks: u32,
}

static ROPE_TABLE: GpuKernel = GpuKernel {
    file: "rope",
    entry: "rope_table",
    args_size: size_of::<TableArgs>(),
    defines: table_defines,
    call: table_call,
    scratch: no_scratch,
};
static ROPE: GpuKernel = GpuKernel {
    file: "rope",
    entry: "rope",
    args_size: size_of::<RopeArgs>(),
    defines: rope_defines,
    call: rope_call,
    scratch: no_scratch,
};
static CACHE_APPEND: GpuKernel = GpuKernel {
    file: "rope",
    entry: "cache_append",
    args_size: size_of::<AppendArgs>(),
    defines: append_defines,
    call: append_call,
    scratch: no_scratch,
};
static ROPE_APPEND: GpuKernel = GpuKernel {
    file: "rope",
    entry: "rope_append",
    args_size: size_of::<RopeAppendArgs>(),
    defines: rope_append_defines,
    call: rope_append_call,
    scratch: no_scratch,
};

pub(super) fn variants(op: OpKind) -> Vec<Variant> {
    const PAGES: &str = "pages of f32, f16 or bf16";
    match op {
        OpKind::RopeTable => vec![simt(rope_table, "any scaling; up to 512 rotated elements", &ROPE_TABLE)],
        OpKind::Rope => vec![simt(takes::rope, "both styles, whole or partial", &ROPE)],
        OpKind::CacheAppend => vec![simt(takes::cache_append, PAGES, &CACHE_APPEND)],
        OpKind::RopeAppend => vec![simt(rope_append, PAGES, &ROPE_APPEND)],
        _ => Vec::new(),
    }
}

fn rope_table(spec: &OpSpec<'_>, _: &DeviceCaps) -> Answer {
    let Op::RopeTable { rope } = spec.op else { return Err(Decline::Shape) };
    check((1..=MOST_PAIRS).contains(&rope.inv_freq.len()), Decline::Shape)
}

fn rope_append(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::floats(spec, caps)?;
    let (_, k_dim) = takes::pages(spec)?;
    let Op::RopeAppend { heads, rot, .. } = *spec.op else { return Err(Decline::Shape) };
    check(rot.is_multiple_of(2) && rot <= k_dim && heads * k_dim == spec.input_cols, Decline::Shape)
}

fn table_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let Op::RopeTable { rope } = &launch.op else { return Vec::new() };
    let bits: Vec<String> = rope.inv_freq.iter().map(|f| format!("{:#x}u", f.to_bits())).collect();
    let mut defines = vec![number("TABLE", 1), number("BLOCK", BLOCK), ("FREQUENCY_BITS", bits.join(","))];
    if rope.dynamic.is_some() {
        defines.push(number("DYNAMIC", 1));
    }
    defines
}

fn table_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let mut args = TableArgs {
        positions: launch.step.positions.device_addr(),
        y: address(&launch.outputs[0]),
        rows: shape.rows as u32,
        ..TableArgs::default()
    };
    let Op::RopeTable { rope } = &launch.op else { return simt::call(1, BLOCK, &args) };
    args.scale = rope.scale;
    if let Some(dynamic) = rope.dynamic {
        (args.theta, args.factor) = (dynamic.theta, dynamic.factor);
        args.max_position = dynamic.max_position as f32;
    }
    simt::call((shape.rows * rope.inv_freq.len()).div_ceil(BLOCK), BLOCK, &args)
}

/// Units of a head of which `rot` elements are rotated: eight pairs each, then eight elements each.
fn rope_units(dim: usize, rot: usize) -> usize {
    (rot / 2).div_ceil(UNIT) + dim.saturating_sub(rot).div_ceil(UNIT)
}

/// Whether the units of rotated heads can be read and written in 16 bytes and more.
pub(super) fn rope_aligned(dim: usize, rot: usize, views: &[&View]) -> bool {
    (rot / 2).is_multiple_of(UNIT) && simt::aligned(dim, views)
}

fn rope_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let types = [("X_T", &launch.inputs[0]), ("Y_T", &launch.outputs[0])];
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.push(number("ROPE", 1));
    defines
}

fn rope_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let (x, table, y) = (&launch.inputs[0], &launch.inputs[1], &launch.outputs[0]);
    let Op::Rope { heads, head_dim, rot, style } = launch.op else {
        return simt::call(1, BLOCK, &RopeArgs::default());
    };
    let blocks = (heads * rope_units(head_dim, rot)).div_ceil(BLOCK).max(1);
    let args = RopeArgs {
        x: address(x),
        table: address(table),
        y: address(y),
        heads: heads as u32,
        dim: head_dim as u32,
        rot: rot as u32,
        interleaved: (style == RopeStyle::Interleaved).into(),
        aligned: rope_aligned(head_dim, rot, &[x, table, y]).into(),
        blocks: blocks as u32,
    };
    simt::call(shape.of(x.rows) * blocks, BLOCK, &args)
}

/// Heads of the launch's cache, and elements of a key and of a value; zeros without one.
pub(super) fn cache_dims(launch: &Launch) -> [usize; 3] {
    match launch.cache.as_ref().map(|c| c.kind) {
        Some(CacheKind::Paged { kv_heads, k_dim, v_dim, .. }) => [kv_heads, k_dim, v_dim],
        _ => [0; 3],
    }
}

/// Whether keys and whether values of the cache begin at multiples of 16 bytes.
pub(super) fn cache_aligned(launch: &Launch) -> [bool; 2] {
    let at = |address: u64| address.is_multiple_of(16);
    launch.cache.as_ref().map_or([false; 2], |c| [at(c.k.device_addr()), at(c.v.device_addr())])
}

pub(super) fn cache_type(launch: &Launch) -> Option<(&'static str, String)> {
    launch.cache.as_ref().map(|cache| ("C_T", type_name(cache.dtype)))
}

fn append_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let types = [("K_T", &launch.inputs[0]), ("V_T", &launch.inputs[1])];
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.push(number("APPEND", 1));
    defines.extend(cache_type(launch));
    defines
}

fn append_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let (k, v) = (&launch.inputs[0], &launch.inputs[1]);
    let [kv_heads, k_dim, v_dim] = cache_dims(launch);
    let [keys, values] = cache_aligned(launch);
    let units = kv_heads * (k_dim.div_ceil(UNIT) + v_dim.div_ceil(UNIT));
    let blocks = units.div_ceil(BLOCK).max(1);
    let args = AppendArgs {
        k: address(k),
        v: address(v),
        step: StepArgs::new(&launch.step),
        cache: CacheArgs::new(launch.cache.as_ref()),
        aligned_k: (keys && simt::aligned(k_dim, &[k])).into(),
        aligned_v: (values && simt::aligned(v_dim, &[v])).into(),
        blocks: blocks as u32,
        unused: 0,
    };
    simt::call(shape.rows * blocks, BLOCK, &args)
}

fn rope_append_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let [q, k, v] = [&launch.inputs[0], &launch.inputs[1], &launch.inputs[2]];
    let types = [("X_T", q), ("K_T", k), ("V_T", v), ("Y_T", &launch.outputs[0])];
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.extend([number("ROPE_APPEND", 1), ("A_T", type_name(launch.activation))]);
    defines.extend(cache_type(launch));
    defines
}

fn rope_append_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let [q, k, v, table] = [&launch.inputs[0], &launch.inputs[1], &launch.inputs[2], &launch.inputs[3]];
    let y = &launch.outputs[0];
    let Op::RopeAppend { heads, rot, style } = launch.op else {
        return simt::call(1, BLOCK, &RopeAppendArgs::default());
    };
    let [kv_heads, k_dim, v_dim] = cache_dims(launch);
    let [keys, values] = cache_aligned(launch);
    let units = (heads + kv_heads) * rope_units(k_dim, rot) + kv_heads * v_dim.div_ceil(UNIT);
    let blocks = units.div_ceil(BLOCK).max(1);
    let args = RopeAppendArgs {
        q: address(q),
        k: address(k),
        v: address(v),
        table: address(table),
        y: address(y),
        step: StepArgs::new(&launch.step),
        cache: CacheArgs::new(launch.cache.as_ref()),
        heads: heads as u32,
        rot: rot as u32,
        interleaved: (style == RopeStyle::Interleaved).into(),
        aligned_k: (keys && rope_aligned(k_dim, rot, &[q, k, table, y])).into(),
        aligned_v: (values && simt::aligned(v_dim, &[v])).into(),
        blocks: blocks as u32,
    };
    simt::call(shape.rows * blocks, BLOCK, &args)
}
