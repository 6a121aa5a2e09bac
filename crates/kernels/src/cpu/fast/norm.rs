//! The root-mean-square norm, alone and after a sum.

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    by_rows, fast,
    isa::NAMES,
    lanes::{add8, all8, fma8, load8, mul8, store8, sum8, zero8},
    simd::takes_floats,
    vector::with_vector,
};
use crate::{
    Decline, Launch, Op, OpSpec, StepShape, Variant,
    cpu::access::{output, values},
};

pub(super) const RMS_NORM: Variant = fast(NAMES.floats, takes, "f32; widths of a multiple of 8", rms_norm);

pub(super) const ADD_RMS_NORM: Variant =
    fast(NAMES.floats, takes, "f32; widths of a multiple of 8", add_rms_norm);

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let width = match *spec.op {
        Op::RmsNorm { width, .. } => width,
        _ => spec.input_cols,
    };
    let [weight] = spec.weights else { return Err(Decline::Shape) };
    if weight.layout != portolan_weights::Layout::Planes {
        return Err(Decline::Dtype);
    }
    let fits = width > 0 && width.is_multiple_of(8) && spec.input_cols.is_multiple_of(width);
    if fits && weight.shape == [width] { Ok(()) } else { Err(Decline::Shape) }
}

/// The sum of the squares, in an order that depends on the length alone.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut acc = [zero8(); 4];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: four times eight elements of 32.
            let x = unsafe { load8(block.as_ptr().add(8 * i)) };
            *acc = fma8(x, x, *acc);
        }
    }
    for eight in rest.as_chunks::<8>().0 {
        // SAFETY: an array of eight.
        let x = unsafe { load8(eight.as_ptr()) };
        acc[0] = fma8(x, x, acc[0]);
    }
    sum8(add8(add8(acc[0], acc[1]), add8(acc[2], acc[3])))
}

/// One normalised width; the lengths are one multiple of 8.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let scale = all8(1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt());
    let eights = x.as_chunks::<8>().0.iter().zip(weight.as_chunks::<8>().0);
    for (y, (x, w)) in y.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        // SAFETY: arrays of eight.
        unsafe {
            let x = mul8(load8(x.as_ptr()), scale);
            store8(y.as_mut_ptr(), mul8(x, load8(w.as_ptr())));
        }
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    let eights = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    for (y, (a, b)) in y.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        // SAFETY: arrays of eight.
        unsafe { store8(y.as_mut_ptr(), add8(load8(a.as_ptr()), load8(b.as_ptr()))) };
    }
}

fn rms_norm(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::RmsNorm { width, eps } = launch.op else { return };
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = output::<f32>(&launch.outputs[0], shape);
    with_vector(&launch.weights[0], |weight| {
        by_rows(team, rows, cols, |row| {
            // SAFETY: the row belongs to this chunk alone.
            let y = unsafe { y.row_mut(row) };
            let x = &x[row * cols..(row + 1) * cols];
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                // SAFETY: `takes` saw the features.
                unsafe { norm(x, weight, eps, y) };
            }
        });
    });
}

fn add_rms_norm(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::AddRmsNorm { eps } = launch.op else { return };
    let cols = launch.inputs[0].cols;
    let rows = shape.of(launch.inputs[0].rows);
    let (a, b) = (values(&launch.inputs[0], shape), values(&launch.inputs[1], shape));
    let sum = output::<f32>(&launch.outputs[0], shape);
    let y = output::<f32>(&launch.outputs[1], shape);
    with_vector(&launch.weights[0], |weight| {
        by_rows(team, rows, cols, |row| {
            let at = row * cols..(row + 1) * cols;
            // SAFETY: the row belongs to this chunk alone; `takes` saw the features.
            unsafe {
                let sum = sum.row_mut(row);
                add(&a[at.clone()], &b[at], sum);
                norm(sum, weight, eps, y.row_mut(row));
            }
        });
    });
}
