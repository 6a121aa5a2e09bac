//! The root-mean-square norm, alone and after a sum.

use std::arch::x86_64::*;

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    by_rows,
    simd::{available, load8, sum8},
    vector::with_vector,
};
use crate::{
    Decline, Launch, Op, OpSpec, StepShape, ValueType, Variant,
    chart::Entry,
    cpu::access::{output, values},
};

pub(super) const RMS_NORM: Variant = Variant {
    name: "avx2",
    rows: (1, usize::MAX),
    exact: false,
    batch_invariant: true,
    rounds_weights: false,
    opt_in: false,
    takes,
    describe: "f32; widths of a multiple of 8",
    entry: Entry::Cpu(rms_norm),
};

pub(super) const ADD_RMS_NORM: Variant = Variant { entry: Entry::Cpu(add_rms_norm), ..RMS_NORM };

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    available(caps)?;
    if !matches!(spec.input, ValueType::Activation | ValueType::F32) {
        return Err(Decline::Dtype);
    }
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
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut acc = [_mm256_setzero_ps(); 4];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: four times eight elements of 32.
            let x = unsafe { load8(block.as_ptr().add(8 * i)) };
            *acc = _mm256_fmadd_ps(x, x, *acc);
        }
    }
    for eight in rest.as_chunks::<8>().0 {
        // SAFETY: an array of eight.
        let x = unsafe { load8(eight.as_ptr()) };
        acc[0] = _mm256_fmadd_ps(x, x, acc[0]);
    }
    sum8(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
}

/// One normalised width; the lengths are one multiple of 8.
#[target_feature(enable = "avx2,fma,f16c")]
fn norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let scale = _mm256_set1_ps(1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt());
    let eights = x.as_chunks::<8>().0.iter().zip(weight.as_chunks::<8>().0);
    for (y, (x, w)) in y.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        // SAFETY: arrays of eight.
        unsafe {
            let x = _mm256_mul_ps(load8(x.as_ptr()), scale);
            _mm256_storeu_ps(y.as_mut_ptr(), _mm256_mul_ps(x, load8(w.as_ptr())));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    let eights = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    for (y, (a, b)) in y.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        // SAFETY: arrays of eight.
        unsafe { _mm256_storeu_ps(y.as_mut_ptr(), _mm256_add_ps(load8(a.as_ptr()), load8(b.as_ptr()))) };
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
