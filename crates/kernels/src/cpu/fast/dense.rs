//! Matmul and its fused forms in f32: over plain weights as they lie, and over any other encoding decoded a
//! panel at a time.
//!
//! An element of the result is a sum in eight lanes along k, then over the lanes. That order is one for one row
//! and for many, so a row's result does not depend on the rows beside it.

use std::ops::Range;

use half::{bf16, f16};
use portolan_device::{DType, DeviceCaps, cpu::Team};
use portolan_weights::{Encoding, Layout};

use super::{
    blocks::CHUNK_BYTES,
    decode::decode,
    fast,
    isa::NAMES,
    lanes::{F32x8, fma8, load8, mul8, store8, sum8, zero8},
    simd::{Lanes, activate8, load_tail, takes_activation, takes_floats},
    vector::{takes_vector, with_bias},
};
use crate::{
    Activation, Decline, Launch, Op, OpSpec, StepShape, Variant,
    chart::WeightSpec,
    cpu::access::{Rows, output, planes, read, values, with_scratch},
};

pub(super) const MATMUL: Variant =
    fast(NAMES.dense, takes_matmul, "f32 rows; weights of f32, f16 or bf16", matmul);

pub(super) const MATMUL_DECODED: Variant = fast(
    NAMES.decoded,
    takes_decoded,
    "f32 rows; weights of any encoding as planes, decoded to f32",
    matmul_decoded,
);

pub(super) const GATE_UP: Variant = fast(
    NAMES.dense,
    takes_gate_up,
    "silu, gelu_tanh, relu2; f32 rows; both weights of f32, f16 or bf16",
    gate_up,
);

/// Weight rows that a tile takes at once, and rows of x.
const COLUMNS: usize = 3;
/// Rows of x that go with a panel of weights before the next one is taken.
const PANEL_ROWS: usize = 64;
/// Weight rows of a panel where there are many rows of x.
const PANEL: usize = 24;

fn plain(weight: &WeightSpec, cols: usize) -> Result<(), Decline> {
    match weight.encoding {
        Encoding::Dense(dtype) if dtype.is_float() && weight.layout == Layout::Planes => {}
        _ => return Err(Decline::Dtype),
    }
    match weight.shape[..] {
        [_, k] if k == cols && k > 0 => Ok(()),
        _ => Err(Decline::Shape),
    }
}

fn takes_bias(spec: &OpSpec<'_>) -> Result<(), Decline> {
    spec.weights.get(1).map_or(Ok(()), |bias| takes_vector(bias, spec.weights[0].shape[0]))
}

fn takes_matmul(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    plain(spec.weights.first().ok_or(Decline::Shape)?, spec.input_cols)?;
    takes_bias(spec)
}

fn takes_decoded(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let weight = spec.weights.first().ok_or(Decline::Shape)?;
    if !weight.encoding.is_quantized() || weight.layout != Layout::Planes {
        return Err(Decline::Dtype);
    }
    match weight.shape[..] {
        [_, k] if k == spec.input_cols && k > 0 && k.is_multiple_of(weight.encoding.row_multiple()) => {}
        _ => return Err(Decline::Shape),
    }
    takes_bias(spec)
}

fn takes_gate_up(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let Op::GateUp(f) = *spec.op else { return Err(Decline::NoPort) };
    takes_activation(f)?;
    let [gate, up] = spec.weights else { return Err(Decline::Shape) };
    plain(gate, spec.input_cols)?;
    plain(up, spec.input_cols)?;
    if gate.encoding != up.encoding {
        return Err(Decline::Dtype);
    }
    if gate.shape == up.shape { Ok(()) } else { Err(Decline::Shape) }
}

/// Dot products of `R` rows of x with `C` rows of w, all of `k` elements and without gaps.
///
/// # Safety
/// There are that many rows at `x` and `w`; the processor has the features.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn tile<T: Lanes, const R: usize, const C: usize>(
    x: *const f32,
    w: *const T,
    k: usize,
) -> [[f32; C]; R] {
    let mut acc = [[zero8(); C]; R];
    for at in (0..k / 8 * 8).step_by(8) {
        // SAFETY: eight elements of each row from `at`.
        unsafe {
            let w: [F32x8; C] = std::array::from_fn(|c| load8(w.add(c * k + at)));
            for r in 0..R {
                let x = load8(x.add(r * k + at));
                for c in 0..C {
                    acc[r][c] = fma8(x, w[c], acc[r][c]);
                }
            }
        }
    }
    if !k.is_multiple_of(8) {
        let at = k / 8 * 8;
        for r in 0..R {
            for c in 0..C {
                // SAFETY: the `k - at` last elements of each row.
                let (x, w) =
                    unsafe { (load_tail(x.add(r * k + at), k - at), load_tail(w.add(c * k + at), k - at)) };
                acc[r][c] = fma8(x, w, acc[r][c]);
            }
        }
    }
    acc.map(|row| row.map(|v| sum8(v)))
}

/// `x w^T` for some rows of each: `put(row, column, value)`, counted from the first of each.
///
/// # Safety
/// The processor has the features.
#[inline]
unsafe fn product<T: Lanes>(x: &[f32], w: &[T], k: usize, mut put: impl FnMut(usize, usize, f32)) {
    let (rows, cols) = (x.len() / k, w.len() / k);
    let (x, w) = (x.as_ptr(), w.as_ptr());
    let mut row = 0;
    while row < rows {
        let mut col = 0;
        let n = if rows - row >= 4 { 4 } else { 1 };
        while col < cols {
            let wide = cols - col >= COLUMNS;
            // SAFETY: `n` rows of x and `COLUMNS` or one of w are left; the features are there.
            unsafe {
                let (x, w) = (x.add(row * k), w.add(col * k));
                match (n, wide) {
                    (4, true) => each(tile::<T, 4, COLUMNS>(x, w, k), |r, c, v| put(row + r, col + c, v)),
                    (4, false) => each(tile::<T, 4, 1>(x, w, k), |r, c, v| put(row + r, col + c, v)),
                    (_, true) => each(tile::<T, 1, COLUMNS>(x, w, k), |r, c, v| put(row + r, col + c, v)),
                    (_, false) => each(tile::<T, 1, 1>(x, w, k), |r, c, v| put(row + r, col + c, v)),
                }
            }
            col += if wide { COLUMNS } else { 1 };
        }
        row += n;
    }
}

#[inline]
fn each<const R: usize, const C: usize>(values: [[f32; C]; R], mut f: impl FnMut(usize, usize, f32)) {
    for (r, row) in values.into_iter().enumerate() {
        for (c, v) in row.into_iter().enumerate() {
            f(r, c, v);
        }
    }
}

/// Runs `body(columns, rows)` over all of the result, for weights of so many bytes a column. The result does not
/// depend on how that is cut.
fn for_panels(
    team: &Team,
    cols: usize,
    column_bytes: usize,
    rows: usize,
    body: impl Fn(Range<usize>, Range<usize>) + Sync,
) {
    let share = |parts: usize| cols.div_ceil(parts * team.threads()).next_multiple_of(COLUMNS);
    let (panel, down) = if rows < 4 {
        let least = CHUNK_BYTES / column_bytes / COLUMNS * COLUMNS;
        (share(8).max(least).clamp(COLUMNS, share(1)), rows.max(1))
    } else {
        (PANEL.min(share(8)), PANEL_ROWS)
    };
    let (across, steps) = (cols.div_ceil(panel), rows.div_ceil(down));
    team.run(across * steps, |chunk| {
        let (first, row) = (chunk / steps * panel, chunk % steps * down);
        body(first..cols.min(first + panel), row..rows.min(row + down));
    });
}

fn matmul(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.weights[0].encoding {
        Encoding::Dense(DType::F16) => matmul_of::<f16>(launch, shape, team),
        Encoding::Dense(DType::BF16) => matmul_of::<bf16>(launch, shape, team),
        _ => matmul_of::<f32>(launch, shape, team),
    }
}

/// Writes one element.
///
/// # Safety
/// No other thread writes it.
#[inline]
unsafe fn put(y: &Rows<'_, f32>, row: usize, col: usize, value: f32) {
    // SAFETY: the caller's promise.
    unsafe { y.part_mut(row, col, 1)[0] = value };
}

fn matmul_of<T: Lanes>(launch: &Launch, shape: StepShape, team: &Team) {
    let (rows, cols) = (shape.of(launch.outputs[0].rows), launch.outputs[0].cols);
    let k = launch.inputs[0].cols;
    let x = values(&launch.inputs[0], shape);
    let w = read::<T>(&launch.weights[0].planes[0], cols * k);
    let y = output::<f32>(&launch.outputs[0], shape);
    with_bias(launch.weights.get(1), |bias| {
        for_panels(team, cols, k * size_of::<T>(), rows, |columns, down| {
            let (x, w) = (&x[down.start * k..down.end * k], &w[columns.start * k..columns.end * k]);
            // SAFETY: `takes` saw the features; a chunk has its columns and rows alone.
            unsafe {
                product(x, w, k, |row, col, value| {
                    let col = columns.start + col;
                    put(&y, down.start + row, col, value + bias.get(col).copied().unwrap_or(0.0));
                });
            }
        });
    });
}

fn matmul_decoded(launch: &Launch, shape: StepShape, team: &Team) {
    let (rows, cols) = (shape.of(launch.outputs[0].rows), launch.outputs[0].cols);
    let k = launch.inputs[0].cols;
    let x = values(&launch.inputs[0], shape);
    let w = planes(&launch.weights[0]);
    let y = output::<f32>(&launch.outputs[0], shape);
    with_bias(launch.weights.get(1), |bias| {
        // All rows go with a panel, so that it is decoded once.
        let panel = PANEL.min(cols.div_ceil(4 * team.threads()).next_multiple_of(COLUMNS));
        team.run(cols.div_ceil(panel), |chunk| {
            let columns = chunk * panel..cols.min((chunk + 1) * panel);
            with_scratch(columns.len() * k, |decoded| {
                for (row, out) in columns.clone().zip(decoded.chunks_exact_mut(k)) {
                    // SAFETY: `takes` saw the features.
                    unsafe { decode(&w, row, out) };
                }
                // SAFETY: `takes` saw the features; a chunk has its columns alone.
                unsafe {
                    product(&x[..rows * k], decoded, k, |row, col, value| {
                        let col = columns.start + col;
                        put(&y, row, col, value + bias.get(col).copied().unwrap_or(0.0));
                    });
                }
            });
        });
    });
}

fn gate_up(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.weights[0].encoding {
        Encoding::Dense(DType::F16) => gate_up_of::<f16>(launch, shape, team),
        Encoding::Dense(DType::BF16) => gate_up_of::<bf16>(launch, shape, team),
        _ => gate_up_of::<f32>(launch, shape, team),
    }
}

fn gate_up_of<T: Lanes>(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::GateUp(f) = launch.op else { return };
    let (rows, cols) = (shape.of(launch.outputs[0].rows), launch.outputs[0].cols);
    let k = launch.inputs[0].cols;
    let x = values(&launch.inputs[0], shape);
    let gate = read::<T>(&launch.weights[0].planes[0], cols * k);
    let up = read::<T>(&launch.weights[1].planes[0], cols * k);
    let y = output::<f32>(&launch.outputs[0], shape);
    for_panels(team, cols, 2 * k * size_of::<T>(), rows, |columns, down| {
        let x = &x[down.start * k..down.end * k];
        let part = columns.start * k..columns.end * k;
        with_scratch(2 * down.len() * columns.len(), |scratch| {
            let (gates, ups) = scratch.split_at_mut(down.len() * columns.len());
            // SAFETY: `takes` saw the features; a chunk has its columns and rows alone.
            unsafe {
                product(x, &gate[part.clone()], k, |row, col, value| {
                    gates[row * columns.len() + col] = value
                });
                product(x, &up[part], k, |row, col, value| ups[row * columns.len() + col] = value);
                for (i, row) in down.enumerate() {
                    let at = i * columns.len()..(i + 1) * columns.len();
                    let y = y.part_mut(row, columns.start, columns.len());
                    activate_times(f, &gates[at.clone()], &ups[at], y);
                }
            }
        });
    });
}

/// `f(gate) * up`; the lengths are one.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn activate_times(f: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((y, gate), up) in y.chunks_mut(8).zip(gate.chunks(8)).zip(up.chunks(8)) {
        let mut lanes = [0.0; 8];
        // SAFETY: as many elements as there are.
        unsafe {
            let gate = load_tail(gate.as_ptr(), gate.len());
            let up = load_tail(up.as_ptr(), up.len());
            store8(lanes.as_mut_ptr(), mul8(activate8(f, gate), up));
        }
        y.copy_from_slice(&lanes[..y.len()]);
    }
}
