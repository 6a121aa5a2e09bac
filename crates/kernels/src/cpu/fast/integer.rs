//! Matmul and its fused forms over rows of integers and weights in the layout [`super::rows8`].

use portolan_device::{DeviceCaps, cpu::Team};
use portolan_weights::Layout;

#[cfg(target_arch = "x86_64")]
use super::tile::Vnni;
use super::{
    blocks::{Blocks, for_tiles},
    fast,
    isa::NAMES,
    lanes::{F32x8, add8, load8, mul8, store8, zero8},
    rows8::{BLOCK, Format, NAME},
    simd::{activate8, available, load_tail, takes_activation},
    tile::{Base, IntRows, Isa, STRIP, Tile},
    vector::{takes_vector, with_bias},
};
use crate::{
    Activation, Decline, Launch, Op, OpSpec, StepShape, Variant,
    chart::WeightSpec,
    cpu::access::{Rows, output, read},
};

const WEIGHTS: &str = "rows of 15 bits; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const WEIGHTS_INT8: &str = "int8 rows; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const GATE_UP_WEIGHTS: &str =
    "silu, gelu_tanh, relu2; rows of 15 bits; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const GATE_UP_WEIGHTS_INT8: &str =
    "silu, gelu_tanh, relu2; int8 rows; affine 2-6 and 8 bits, two-level, E2M1 in rows8";

#[cfg(target_arch = "x86_64")]
const VNNI_INT15: &str = "avx512vnni-int15";
#[cfg(target_arch = "x86_64")]
const VNNI_INT8: &str = "avx512vnni-int8";

const fn matmul_of<I: Isa>(name: &'static str, describe: &'static str) -> Variant {
    Variant { opt_in: I::IS_OPT_IN, ..fast(name, takes_matmul::<I>, describe, matmul::<I>) }
}

const fn gate_up_of<I: Isa>(name: &'static str, describe: &'static str) -> Variant {
    Variant { opt_in: I::IS_OPT_IN, ..fast(name, takes_gate_up::<I>, describe, gate_up::<I>) }
}

pub(super) const MATMUL: Variant = matmul_of::<Base<2>>(NAMES.int15, WEIGHTS);
pub(super) const MATMUL_INT8: Variant = matmul_of::<Base<1>>(NAMES.int8, WEIGHTS_INT8);
pub(super) const GATE_UP: Variant = gate_up_of::<Base<2>>(NAMES.int15, GATE_UP_WEIGHTS);
pub(super) const GATE_UP_INT8: Variant = gate_up_of::<Base<1>>(NAMES.int8, GATE_UP_WEIGHTS_INT8);

#[cfg(target_arch = "x86_64")]
pub(super) const MATMUL_VNNI: Variant = matmul_of::<Vnni<2>>(VNNI_INT15, WEIGHTS);
#[cfg(target_arch = "x86_64")]
pub(super) const MATMUL_VNNI_INT8: Variant = matmul_of::<Vnni<1>>(VNNI_INT8, WEIGHTS_INT8);
#[cfg(target_arch = "x86_64")]
pub(super) const GATE_UP_VNNI: Variant = gate_up_of::<Vnni<2>>(VNNI_INT15, GATE_UP_WEIGHTS);
#[cfg(target_arch = "x86_64")]
pub(super) const GATE_UP_VNNI_INT8: Variant = gate_up_of::<Vnni<1>>(VNNI_INT8, GATE_UP_WEIGHTS_INT8);

fn packed(weight: &WeightSpec, cols: usize) -> Result<(), Decline> {
    if weight.layout != Layout::Packed(NAME) {
        return Err(Decline::Dtype);
    }
    Format::of(weight.encoding).ok_or(Decline::Dtype)?;
    match weight.shape[..] {
        [_, k] if k == cols && k.is_multiple_of(weight.encoding.row_multiple()) => Ok(()),
        _ => Err(Decline::Shape),
    }
}

/// Whether the processor has what tiles need, and the input is rounded as they read it.
fn can<I: Isa>(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    available(caps)?;
    if !I::FEATURES.iter().all(|f| caps.has_feature(f)) {
        return Err(Decline::Arch);
    }
    if spec.input == I::CODES.value_type() { Ok(()) } else { Err(Decline::Dtype) }
}

fn takes_matmul<I: Isa>(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    can::<I>(spec, caps)?;
    let weight = spec.weights.first().ok_or(Decline::Shape)?;
    packed(weight, spec.input_cols)?;
    spec.weights.get(1).map_or(Ok(()), |bias| takes_vector(bias, weight.shape[0]))
}

fn takes_gate_up<I: Isa>(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    can::<I>(spec, caps)?;
    let [gate, up] = spec.weights else { return Err(Decline::Shape) };
    let Op::GateUp(f) = *spec.op else { return Err(Decline::NoPort) };
    takes_activation(f)?;
    packed(gate, spec.input_cols)?;
    packed(up, spec.input_cols)?;
    if gate.shape == up.shape { Ok(()) } else { Err(Decline::Shape) }
}

/// Eight elements of a bias from element `at` on, zeros beyond its end and where there is none.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn bias8(bias: &[f32], at: usize) -> F32x8 {
    let bias = bias.get(at..).unwrap_or(&[]);
    // SAFETY: eight elements, or as many as there are.
    unsafe {
        match bias.len() {
            BLOCK.. => load8(bias.as_ptr()),
            n => load_tail(bias.as_ptr(), n),
        }
    }
}

/// What a matmul writes.
struct Output<'a> {
    rows: Rows<'a, f32>,
    cols: usize,
}

/// Writes eight results of a row, or as many as the row still has.
///
/// # Safety
/// No other thread writes these elements; the processor has the features.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn store(out: &Output<'_>, row: usize, at: usize, y: F32x8) {
    let n = (out.cols - at).min(BLOCK);
    // SAFETY: the caller's promise.
    let out = unsafe { out.rows.part_mut(row, at, n) };
    if n == BLOCK {
        // SAFETY: eight elements.
        unsafe { store8(out.as_mut_ptr(), y) };
    } else {
        let mut lanes = [0.0; BLOCK];
        // SAFETY: eight elements.
        unsafe { store8(lanes.as_mut_ptr(), y) };
        out.copy_from_slice(&lanes[..n]);
    }
}

fn input<I: Isa>(launch: &Launch, rows: usize) -> IntRows {
    let x = &launch.inputs[0];
    let bytes: &[u8] = read(&x.slice, rows * I::CODES.row_bytes(x.cols));
    IntRows::new(bytes.as_ptr(), x.cols, I::CODES)
}

fn matmul<I: Isa>(launch: &Launch, step: StepShape, team: &Team) {
    let rows = step.of(launch.outputs[0].rows);
    let cols = launch.outputs[0].cols;
    let x = input::<I>(launch, rows);
    let Some(w) = Blocks::new::<I>(&launch.weights[0]) else { return };
    let out = Output { rows: output(&launch.outputs[0], step), cols };
    with_bias(launch.weights.get(1), |bias| {
        for_tiles(team, cols.div_ceil(BLOCK), w.block_bytes, rows, |strip, row, n| {
            // SAFETY: `takes` saw the features; the rows are within the input; a chunk has its blocks and rows alone.
            unsafe {
                let x = x.skip(row);
                match n {
                    1 => matmul_strip(w.tiles.one, &w, strip, x, bias, &out, row),
                    2 => matmul_strip(w.tiles.two, &w, strip, x, bias, &out, row),
                    4 => matmul_strip(w.tiles.four, &w, strip, x, bias, &out, row),
                    _ => matmul_strip(w.tiles.eight, &w, strip, x, bias, &out, row),
                }
            }
        });
    });
}

/// `R` rows of the result, as wide as a strip.
///
/// # Safety
/// As [`Blocks::times`], and no other thread writes these elements.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn matmul_strip<const R: usize>(
    tile: Tile<R>,
    w: &Blocks<'_>,
    strip: (usize, usize),
    x: IntRows,
    bias: &[f32],
    out: &Output<'_>,
    row: usize,
) {
    let mut sums = [[zero8(); R]; STRIP];
    // SAFETY: the caller's promise.
    unsafe { w.times(tile, strip, x, &mut sums) };
    for (i, sums) in sums.iter().enumerate().take(strip.1) {
        let at = (strip.0 + i) * BLOCK;
        let bias = bias8(bias, at);
        for (r, &y) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { store(out, row + r, at, add8(y, bias)) };
        }
    }
}

fn gate_up<I: Isa>(launch: &Launch, step: StepShape, team: &Team) {
    let Op::GateUp(f) = launch.op else { return };
    let rows = step.of(launch.outputs[0].rows);
    let cols = launch.outputs[0].cols;
    let x = input::<I>(launch, rows);
    let [Some(gate), Some(up)] = [0, 1].map(|i| Blocks::new::<I>(&launch.weights[i])) else { return };
    let out = Output { rows: output(&launch.outputs[0], step), cols };
    let block_bytes = gate.block_bytes + up.block_bytes;
    for_tiles(team, cols.div_ceil(BLOCK), block_bytes, rows, |strip, row, n| {
        let w = (&gate, &up);
        // SAFETY: as in `matmul`.
        unsafe {
            let x = x.skip(row);
            let (g, u) = (&gate.tiles, &up.tiles);
            match n {
                1 => gate_up_strip(f, (g.one, u.one), w, strip, x, &out, row),
                2 => gate_up_strip(f, (g.two, u.two), w, strip, x, &out, row),
                4 => gate_up_strip(f, (g.four, u.four), w, strip, x, &out, row),
                _ => gate_up_strip(f, (g.eight, u.eight), w, strip, x, &out, row),
            }
        }
    });
}

/// As [`matmul_strip`], of two weights.
///
/// # Safety
/// As [`matmul_strip`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn gate_up_strip<const R: usize>(
    f: Activation,
    tiles: (Tile<R>, Tile<R>),
    w: (&Blocks<'_>, &Blocks<'_>),
    strip: (usize, usize),
    x: IntRows,
    out: &Output<'_>,
    row: usize,
) {
    let (mut gates, mut ups) = ([[zero8(); R]; STRIP], [[zero8(); R]; STRIP]);
    // SAFETY: the caller's promise.
    unsafe {
        w.0.times(tiles.0, strip, x, &mut gates);
        w.1.times(tiles.1, strip, x, &mut ups);
    }
    for (i, (gates, ups)) in gates.iter().zip(&ups).enumerate().take(strip.1) {
        for (r, (&gate, &up)) in gates.iter().zip(ups).enumerate() {
            let y = mul8(activate8(f, gate), up);
            // SAFETY: the caller's promise.
            unsafe { store(out, row + r, (strip.0 + i) * BLOCK, y) };
        }
    }
}
