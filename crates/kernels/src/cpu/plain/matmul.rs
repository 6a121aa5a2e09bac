//! `y = x W^T (+ b)`: a block of weight rows is decoded, then every row of x meets it.

use std::ops::Range;

use portolan_device::cpu::Team;
use portolan_weights::decode_row;

use super::dot::{dot, dots};
use crate::{
    Launch, StepShape,
    cpu::access::{IntRow, Rows, integer_values, output, planes, values, with_scratch, with_vector},
    row_codes::{GROUP, RowCodes},
};

/// Weight rows that a chunk of the work decodes at once. With rows of a few thousand columns they stay in
/// the second cache.
const BLOCK: usize = 16;
/// Rows of x that meet a block before the next of its weight rows are fetched again.
const TILE: usize = 16;

/// The plain matmul.
pub(super) fn matmul(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, k) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    blocks(launch, shape, team, |w, block, bias, y| {
        for first in (0..rows).step_by(TILE) {
            let tile = first..rows.min(first + TILE);
            block_of_dots(&x[tile.start * k..tile.end * k], w, k, |row, column, value| {
                // SAFETY: the columns of `block` belong to this chunk alone.
                let y = unsafe { y.part_mut(tile.start + row, block.start + column, 1) };
                y[0] = value + bias.get(block.start + column).copied().unwrap_or(0.0);
            });
        }
    });
}

/// The reference of matmuls of rounded rows: the codes are made f32 again.
pub(super) fn matmul_integers(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, k) = (shape.of(x.rows), x.cols);
    let Some(codes) = RowCodes::of(x.dtype) else { return };
    let bytes = integer_values(x, codes, shape);
    blocks(launch, shape, team, |w, block, bias, y| {
        with_scratch(k, |x| {
            for row in 0..rows {
                dequantize(IntRow::new(bytes, row, k, codes), x);
                for (column, w) in block.clone().zip(w.chunks(k.max(1))) {
                    // SAFETY: the columns of `block` belong to this chunk alone.
                    let y = unsafe { y.part_mut(row, column, 1) };
                    y[0] = dot(x, w) + bias.get(column).copied().unwrap_or(0.0);
                }
            }
        });
    });
}

/// Calls `f` with each decoded block of weight rows, which rows they are, the bias, and the output.
fn blocks(
    launch: &Launch,
    shape: StepShape,
    team: &Team,
    f: impl Fn(&[f32], Range<usize>, &[f32], &Rows<'_, f32>) + Sync,
) {
    let y = output::<f32>(&launch.outputs[0], shape);
    let n = launch.outputs[0].cols;
    let weight = planes(&launch.weights[0]);
    let k = weight.k;
    if shape.of(launch.outputs[0].rows) == 0 {
        return;
    }
    with_vector(launch.weights.get(1), |bias| {
        team.run(n.div_ceil(BLOCK), |chunk| {
            let block = chunk * BLOCK..n.min((chunk + 1) * BLOCK);
            with_scratch(block.len() * k, |w| {
                for (row, w) in block.clone().zip(w.chunks_mut(k.max(1))) {
                    decode_row(&weight, row, w);
                }
                f(w, block, bias, &y);
            });
        });
    });
}

/// Dot products of every row of `x` with every row of `w`, four rows of `w` at a time.
fn block_of_dots(x: &[f32], w: &[f32], k: usize, mut put: impl FnMut(usize, usize, f32)) {
    let k = k.max(1);
    for (i, four) in w.chunks(4 * k).enumerate() {
        for (row, x) in x.chunks(k).enumerate() {
            if four.len() == 4 * k {
                let (ab, cd) = four.split_at(2 * k);
                let ((a, b), (c, d)) = (ab.split_at(k), cd.split_at(k));
                for (j, value) in dots(x, [a, b, c, d]).into_iter().enumerate() {
                    put(row, 4 * i + j, value);
                }
            } else {
                for (j, w) in four.chunks(k).enumerate() {
                    put(row, 4 * i + j, dot(x, w));
                }
            }
        }
    }
}

fn dequantize(row: IntRow<'_>, x: &mut [f32]) {
    for (i, x) in x.iter_mut().enumerate() {
        *x = row.scales[i / GROUP] * row.code(i) as f32;
    }
}
