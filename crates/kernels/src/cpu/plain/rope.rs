//! Rotary position embedding.

use portolan_device::cpu::Team;

use crate::{
    Launch, Op, RopeStyle, StepShape,
    cpu::access::{output, read, values},
};

/// Cosines and sines of the rows' positions.
pub(super) fn rope_table(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::RopeTable { rope } = &launch.op else { return };
    let positions: &[i32] = read(&launch.step.positions, shape.rows);
    let y = output::<f32>(&launch.outputs[0], shape);
    team.run(shape.rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        rope.fill(positions[row], unsafe { y.row_mut(row) });
    });
}

/// Rotates the first `rot` elements of each head and copies the others.
pub(super) fn rope(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Rope { head_dim, rot, style, .. } = launch.op else { return };
    let (x, table) = (&launch.inputs[0], &launch.inputs[1]);
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let (x, table) = (values(x, shape), values(table, shape));
    let y = output::<f32>(&launch.outputs[0], shape);
    team.run(rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        let x = &x[row * cols..(row + 1) * cols];
        let (cos, sin) = table[row * rot..(row + 1) * rot].split_at(rot / 2);
        for (y, x) in y.chunks_mut(head_dim).zip(x.chunks(head_dim)) {
            y[rot..].copy_from_slice(&x[rot..]);
            for i in 0..rot / 2 {
                let (a, b) = match style {
                    RopeStyle::Halves => (i, i + rot / 2),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                y[a] = x[a] * cos[i] - x[b] * sin[i];
                y[b] = x[b] * cos[i] + x[a] * sin[i];
            }
        }
    });
}
