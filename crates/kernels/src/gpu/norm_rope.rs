//! Norms of the heads of q and of k, rotary position embedding and the append to a cache, in one launch:
//! `kernels-cuda/norm_rope.cu`.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, WeightTensor};

use super::{
    Call, Defines, GpuKernel,
    args::{CacheArgs, StepArgs, address},
    no_scratch,
    rope::{cache_aligned, cache_dims, cache_type, rope_aligned},
    simt::{self, BLOCK, UNIT, simt},
    takes::{self, Answer, check},
    type_name,
};
use crate::{
    Decline, Launch, Op, RopeStyle, StepShape,
    chart::{OpSpec, Variant},
};

/// `Args` of norm_rope.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    q: u64,
    k: u64,
    v: u64,
    table: u64,
    y: u64,
    weights: [u64; 2],
    step: StepArgs,
    cache: CacheArgs,
    heads: u32,
    rot: u32,
    interleaved: u32,
    aligned_k: u32,
    aligned_v: u32,
    blocks: u32,
    eps: f32,
    unused: u32,
}

static NORM_ROPE_APPEND: GpuKernel = GpuKernel {
    file: "norm_rope",
    entry: "norm_rope_append",
    args_size: size_of::<Args>(),
    defines,
    call,
    scratch: no_scratch,
};

pub(super) fn variants() -> Vec<Variant> {
    let describe =
        "pages of f32, f16 or bf16; dense weights; heads of up to 256 elements (512 in waves of 64)";
    vec![simt(takes_heads, describe, &NORM_ROPE_APPEND)]
}

fn takes_heads(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::floats(spec, caps)?;
    takes::weights(spec)?;
    let (_, k_dim) = takes::pages(spec)?;
    let Op::NormRopeAppend { heads, rot, .. } = *spec.op else { return Err(Decline::Shape) };
    let [q, k] = spec.weights else { return Err(Decline::Shape) };
    check(matches!(q.encoding, Encoding::Dense(_)) && q.encoding == k.encoding, Decline::Dtype)?;
    // A wave holds a head, as it does in norm.cu for heads of this size.
    let held = (1..=caps.wave_width as usize * UNIT).contains(&k_dim);
    check(held && rot.is_multiple_of(2) && rot <= k_dim && heads * k_dim == spec.input_cols, Decline::Shape)
}

fn defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    let [q, k, v] = [&launch.inputs[0], &launch.inputs[1], &launch.inputs[2]];
    let types = [("X_T", q), ("K_T", k), ("V_T", v), ("Y_T", &launch.outputs[0])];
    let mut defines = simt::block_and_types(BLOCK, &types, launch);
    defines.push(("A_T", type_name(launch.activation)));
    if let Some(Encoding::Dense(dtype)) = launch.weights.first().map(|w| w.encoding) {
        defines.push(("W_T", type_name(dtype)));
    }
    defines.extend(cache_type(launch));
    defines
}

fn call(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let [q, k, v, table] = [&launch.inputs[0], &launch.inputs[1], &launch.inputs[2], &launch.inputs[3]];
    let y = &launch.outputs[0];
    let Op::NormRopeAppend { eps, heads, rot, style } = launch.op else {
        return simt::call(1, BLOCK, &Args::default());
    };
    let [kv_heads, k_dim, v_dim] = cache_dims(launch);
    let [keys, values] = cache_aligned(launch);
    let lanes = caps.wave_width.max(1) as usize;
    // A wave for each head of q and of k, then as many as copy v.
    let waves = heads + kv_heads + (kv_heads * v_dim.div_ceil(UNIT)).div_ceil(lanes);
    let blocks = waves.div_ceil(BLOCK / lanes).max(1);
    let plane = |w: &WeightTensor| w.planes.first().map_or(0, |plane| plane.device_addr());
    let weights = [0, 1].map(|i| launch.weights.get(i).map_or(0, plane));
    let aligned = keys && weights.iter().all(|w| w.is_multiple_of(16));
    let args = Args {
        q: address(q),
        k: address(k),
        v: address(v),
        table: address(table),
        y: address(y),
        weights,
        step: StepArgs::new(&launch.step),
        cache: CacheArgs::new(launch.cache.as_ref()),
        heads: heads as u32,
        rot: rot as u32,
        interleaved: (style == RopeStyle::Interleaved).into(),
        aligned_k: (aligned && rope_aligned(k_dim, rot, &[q, k, table, y])).into(),
        aligned_v: (values && simt::aligned(v_dim, &[v])).into(),
        blocks: blocks as u32,
        eps,
        unused: 0,
    };
    simt::call(shape.rows * blocks, BLOCK, &args)
}
