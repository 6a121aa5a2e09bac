//! Matmul and its fused forms over rows of integers and weights in the layout [`super::rows8`].

use std::arch::x86_64::*;

use portolan_device::{DeviceCaps, cpu::Team};
use portolan_weights::{Layout, WeightTensor};

use super::{
    rows8::{BLOCK, Format, NAME},
    simd::{activate8, available, load_tail, load8, takes_activation},
    tile::{Avx2, IntRows, Isa, STRIP, Sums, Tile, Tiles, Vnni},
    vector::{takes_vector, with_bias},
};
use crate::{
    Activation, Decline, Launch, Op, OpSpec, StepShape, Variant,
    chart::{Entry, WeightSpec},
    cpu::access::{Rows, output, read},
};

const WEIGHTS: &str = "rows of 15 bits; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const WEIGHTS_INT8: &str = "int8 rows; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const GATE_UP_WEIGHTS: &str =
    "silu, gelu_tanh, relu2; rows of 15 bits; affine 2-6 and 8 bits, two-level, E2M1 in rows8";
const GATE_UP_WEIGHTS_INT8: &str =
    "silu, gelu_tanh, relu2; int8 rows; affine 2-6 and 8 bits, two-level, E2M1 in rows8";

pub(super) const MATMUL: Variant = Variant {
    name: "avx2-int15",
    rows: (1, usize::MAX),
    exact: false,
    batch_invariant: true,
    rounds_weights: false,
    opt_in: false,
    takes: takes_matmul::<Avx2<2>>,
    describe: WEIGHTS,
    entry: Entry::Cpu(matmul::<Avx2<2>>),
};

pub(super) const MATMUL_VNNI: Variant = Variant {
    name: "avx512vnni-int15",
    takes: takes_matmul::<Vnni<2>>,
    entry: Entry::Cpu(matmul::<Vnni<2>>),
    ..MATMUL
};

/// Faster where the processor and not its memory is the limit, and further from the exact result.
pub(super) const MATMUL_INT8: Variant = Variant {
    name: "avx2-int8",
    opt_in: true,
    takes: takes_matmul::<Avx2<1>>,
    describe: WEIGHTS_INT8,
    entry: Entry::Cpu(matmul::<Avx2<1>>),
    ..MATMUL
};

pub(super) const MATMUL_VNNI_INT8: Variant = Variant {
    name: "avx512vnni-int8",
    takes: takes_matmul::<Vnni<1>>,
    entry: Entry::Cpu(matmul::<Vnni<1>>),
    ..MATMUL_INT8
};

pub(super) const GATE_UP: Variant = Variant {
    takes: takes_gate_up::<Avx2<2>>,
    describe: GATE_UP_WEIGHTS,
    entry: Entry::Cpu(gate_up::<Avx2<2>>),
    ..MATMUL
};

pub(super) const GATE_UP_VNNI: Variant = Variant {
    name: "avx512vnni-int15",
    takes: takes_gate_up::<Vnni<2>>,
    entry: Entry::Cpu(gate_up::<Vnni<2>>),
    ..GATE_UP
};

pub(super) const GATE_UP_INT8: Variant = Variant {
    takes: takes_gate_up::<Avx2<1>>,
    describe: GATE_UP_WEIGHTS_INT8,
    entry: Entry::Cpu(gate_up::<Avx2<1>>),
    ..MATMUL_INT8
};

pub(super) const GATE_UP_VNNI_INT8: Variant = Variant {
    name: "avx512vnni-int8",
    takes: takes_gate_up::<Vnni<1>>,
    entry: Entry::Cpu(gate_up::<Vnni<1>>),
    ..GATE_UP_INT8
};

/// Rows of x that go with a panel of weights before the next one is taken.
const PANEL_ROWS: usize = 64;
/// Fewest bytes of weights that are worth a chunk of their own.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a panel of weights: it stays in the second-level cache while rows of x pass by.
const PANEL_BYTES: usize = 96 << 10;

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

/// A weight as the loops below walk over it.
struct Blocks<'a> {
    bytes: &'a [u8],
    tiles: Tiles,
    block_bytes: usize,
}

impl<'a> Blocks<'a> {
    /// None for a weight that `takes` does not let through.
    fn new<I: Isa>(weight: &'a WeightTensor) -> Option<Self> {
        let format = Format::of(weight.encoding)?;
        let [rows, k] = weight.shape[..] else { return None };
        let block_bytes = format.block_bytes(k);
        let bytes = read(&weight.planes[0], rows.div_ceil(BLOCK) * block_bytes);
        Some(Blocks { bytes, tiles: I::tiles(format), block_bytes })
    }

    /// Blocks `first..first + n` times `R` rows from `x` on.
    ///
    /// # Safety
    /// `x` has `R` rows of as many columns as the weight, and the processor has the features.
    #[inline]
    unsafe fn times<const R: usize>(
        &self,
        tile: Tile<R>,
        (first, n): (usize, usize),
        x: IntRows,
        out: &mut Sums<R>,
    ) {
        let blocks = &self.bytes[first * self.block_bytes..(first + n) * self.block_bytes];
        // SAFETY: whole blocks; the rest is the caller's promise.
        unsafe { tile(&self.tiles.geometry, blocks.as_ptr(), n, x, out) }
    }
}

/// Blocks a chunk and rows a chunk. The result does not depend on either.
fn cut(blocks: usize, block_bytes: usize, rows: usize, threads: usize) -> (usize, usize) {
    let for_all = blocks.div_ceil(threads).max(1);
    if rows < 4 {
        // One pass over the weights. Up to eight chunks a thread even out what else the processor does, but where
        // its cores are far apart the hand-over of a chunk costs about as much as reading 16 KiB.
        let fair = blocks.div_ceil(8 * threads);
        return (fair.max(CHUNK_BYTES / block_bytes).clamp(1, for_all), rows.max(1));
    }
    (blocks.div_ceil(4 * threads).clamp(1, (PANEL_BYTES / block_bytes).max(1)), PANEL_ROWS)
}

/// Runs `body(strip of blocks, row, rows of x)` over all blocks and rows in tiles of eight, four, two and one rows.
fn for_tiles(
    team: &Team,
    blocks: usize,
    block_bytes: usize,
    rows: usize,
    body: impl Fn((usize, usize), usize, usize) + Sync,
) {
    let (chunk_blocks, chunk_rows) = cut(blocks, block_bytes, rows, team.threads());
    let across = blocks.div_ceil(chunk_blocks);
    let down = rows.div_ceil(chunk_rows);
    team.run(across * down, |chunk| {
        let first_block = chunk / down * chunk_blocks;
        let last_block = blocks.min(first_block + chunk_blocks);
        let mut row = chunk % down * chunk_rows;
        let last_row = rows.min(row + chunk_rows);
        while row < last_row {
            let n = match last_row - row {
                1 => 1,
                2 | 3 => 2,
                4..8 => 4,
                _ => 8,
            };
            for block in (first_block..last_block).step_by(STRIP) {
                body((block, STRIP.min(last_block - block)), row, n);
            }
            row += n;
        }
    });
}

/// Eight elements of a bias from element `at` on, zeros beyond its end and where there is none.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bias8(bias: &[f32], at: usize) -> __m256 {
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(out: &Output<'_>, row: usize, at: usize, y: __m256) {
    let n = (out.cols - at).min(BLOCK);
    // SAFETY: the caller's promise.
    let out = unsafe { out.rows.part_mut(row, at, n) };
    if n == BLOCK {
        // SAFETY: eight elements.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), y) };
    } else {
        let mut lanes = [0.0; BLOCK];
        // SAFETY: eight elements.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), y) };
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul_strip<const R: usize>(
    tile: Tile<R>,
    w: &Blocks<'_>,
    strip: (usize, usize),
    x: IntRows,
    bias: &[f32],
    out: &Output<'_>,
    row: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); R]; STRIP];
    // SAFETY: the caller's promise.
    unsafe { w.times(tile, strip, x, &mut sums) };
    for (i, sums) in sums.iter().enumerate().take(strip.1) {
        let at = (strip.0 + i) * BLOCK;
        let bias = bias8(bias, at);
        for (r, &y) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { store(out, row + r, at, _mm256_add_ps(y, bias)) };
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gate_up_strip<const R: usize>(
    f: Activation,
    tiles: (Tile<R>, Tile<R>),
    w: (&Blocks<'_>, &Blocks<'_>),
    strip: (usize, usize),
    x: IntRows,
    out: &Output<'_>,
    row: usize,
) {
    let (mut gates, mut ups) = ([[_mm256_setzero_ps(); R]; STRIP], [[_mm256_setzero_ps(); R]; STRIP]);
    // SAFETY: the caller's promise.
    unsafe {
        w.0.times(tiles.0, strip, x, &mut gates);
        w.1.times(tiles.1, strip, x, &mut ups);
    }
    for (i, (gates, ups)) in gates.iter().zip(&ups).enumerate().take(strip.1) {
        for (r, (&gate, &up)) in gates.iter().zip(ups).enumerate() {
            let y = _mm256_mul_ps(activate8(f, gate), up);
            // SAFETY: the caller's promise.
            unsafe { store(out, row + r, (strip.0 + i) * BLOCK, y) };
        }
    }
}
