//! The smallest index of a row's largest element.

use portolan_device::cpu::Team;

use super::{
    fast,
    isa::NAMES,
    lanes::{all8, larger8, load8, max8},
    simd::takes_floats,
};
use crate::{
    Launch, StepShape, Variant,
    cpu::access::{output, values},
};

pub(super) const ARGMAX: Variant = fast(NAMES.floats, takes_floats, "f32; any size", argmax);

fn argmax(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = output::<i32>(&launch.outputs[0], shape);
    team.run(rows, |row| {
        // SAFETY: the row belongs to this chunk alone; `takes` saw the features.
        unsafe { y.row_mut(row)[0] = argmax_of(&x[row * cols..(row + 1) * cols]) as i32 };
    });
}

/// A NaN is never the largest; a row of nothing else gives 0.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn argmax_of(x: &[f32]) -> usize {
    // First the maximum, then where it is: two passes without a branch an element.
    let lowest = all8(f32::NEG_INFINITY);
    let mut max = [lowest; 4];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        for (i, max) in max.iter_mut().enumerate() {
            // SAFETY: four times eight elements of 32. With a NaN in the first operand the second is taken.
            *max = larger8(unsafe { load8(block.as_ptr().add(8 * i)) }, *max);
        }
    }
    let max = max8(larger8(larger8(max[0], max[1]), larger8(max[2], max[3])));
    let max = rest.iter().copied().fold(max, f32::max);
    x.iter().position(|&x| x == max).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_and_what_is_not_a_number() {
        if !super::super::tests::here() {
            return;
        }
        let check = |x: &[f32], expected| {
            // SAFETY: the features are there.
            assert_eq!(unsafe { argmax_of(x) }, expected, "{x:?}");
        };
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for n in [0, 1, 31, 32, 33, 100] {
            let mut x = vec![-1.0; n];
            x.extend([nan, 3.0, 3.0, nan, 1.0]);
            check(&x, n + 1);
            x.push(inf);
            check(&x, n + 5);
            check(&vec![nan; n], 0);
            check(&vec![-inf; n], 0);
        }
        check(&[nan, -inf], 1);
        check(&[-0.0, 0.0], 0);
    }
}
