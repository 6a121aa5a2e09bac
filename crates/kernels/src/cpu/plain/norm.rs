//! The root-mean-square norm.

use portolan_device::cpu::Team;

use super::dot::dot;
use crate::{
    Launch, Op, StepShape,
    cpu::access::{output, values, with_vector},
};

/// `x / sqrt(mean(x^2) + eps) * w` over each `width` columns.
pub(super) fn rms_norm(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::RmsNorm { width, eps } = launch.op else { return };
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = output::<f32>(&launch.outputs[0], shape);
    with_vector(launch.weights.first(), |weight| {
        team.run(rows, |row| {
            // SAFETY: the row belongs to this chunk alone.
            let y = unsafe { y.row_mut(row) };
            let x = &x[row * cols..(row + 1) * cols];
            for (y, x) in y.chunks_mut(width).zip(x.chunks(width)) {
                let scale = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
                for (y, (x, w)) in y.iter_mut().zip(x.iter().zip(weight)) {
                    *y = x * scale * w;
                }
            }
        });
    });
}
