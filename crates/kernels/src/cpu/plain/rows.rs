//! Ops that move or search whole rows.

use portolan_device::cpu::Team;
use portolan_weights::decode_row;

use crate::{
    Launch, StepShape,
    cpu::access::{output, planes, read, values},
};

/// An index out of a step buffer, where it is below `len`.
fn index(i: i32, len: usize) -> Option<usize> {
    usize::try_from(i).ok().filter(|&i| i < len)
}

/// Row `ids[t]` of the table.
pub(super) fn embed(launch: &Launch, shape: StepShape, team: &Team) {
    let table = planes(&launch.weights[0]);
    let vocab = launch.weights[0].shape.first().copied().unwrap_or(0);
    let ids: &[i32] = read(&launch.step.ids, shape.rows);
    let y = output::<f32>(&launch.outputs[0], shape);
    team.run(shape.rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        match index(ids[row], vocab) {
            Some(id) => decode_row(&table, id, y),
            None => y.fill(f32::NAN),
        }
    });
}

/// The rows that want logits.
pub(super) fn select_rows(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let select: &[i32] = read(&launch.step.select, shape.selected);
    let y = output::<f32>(&launch.outputs[0], shape);
    team.run(shape.selected, |row| {
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        match index(select[row], rows) {
            Some(from) => y.copy_from_slice(&x[from * cols..(from + 1) * cols]),
            None => y.fill(f32::NAN),
        }
    });
}

/// The smallest index of a row's largest element. A NaN is never the largest; a row of nothing else gives 0.
pub(super) fn argmax(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = output::<i32>(&launch.outputs[0], shape);
    team.run(rows, |row| {
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        y[0] = argmax_of(&x[row * cols..(row + 1) * cols]);
    });
}

fn argmax_of(x: &[f32]) -> i32 {
    let mut best: Option<(usize, f32)> = None;
    for (i, &x) in x.iter().enumerate() {
        if !x.is_nan() && best.is_none_or(|(_, max)| x > max) {
            best = Some((i, x));
        }
    }
    best.map_or(0, |(i, _)| i as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_of_ties_and_of_what_is_not_a_number() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (x, expected) in [
            (&[1.0][..], 0),
            (&[1.0, 3.0, 2.0], 1),
            (&[2.0, 5.0, 5.0, 5.0], 1),
            (&[nan, 1.0, 2.0], 2),
            (&[3.0, nan, 2.0], 0),
            (&[nan, nan], 0),
            (&[nan, -inf], 1),
            (&[-inf, -inf], 0),
            (&[-0.0, 0.0], 0),
            (&[], 0),
        ] {
            assert_eq!(argmax_of(x), expected, "{x:?}");
        }
    }
}
