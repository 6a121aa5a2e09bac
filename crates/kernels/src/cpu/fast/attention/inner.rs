//! The inner loops of attention: scores of a page, the softmax of a segment, weighted sums, the merge.

use super::{
    super::{
        lanes::*,
        simd::{Lanes, exp8},
    },
    SEGMENT, State,
};
use crate::PAGE_TOKENS;

/// Heads that share a load of keys or values.
const HEADS: usize = 3;
/// Keys that share a load of queries.
const KEYS: usize = 4;

/// Scores of `Q` queries with four keys (pointers, so that the last of a page can stand in for one beyond it).
///
/// # Safety
/// `dim` elements can be read at each pointer; `dim` is a multiple of 8; the processor has the features.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn score_tile<T: Lanes, const Q: usize>(
    q: *const f32,
    keys: [*const T; KEYS],
    dim: usize,
) -> [F32x4; Q] {
    let mut acc = [[zero8(); KEYS]; Q];
    for at in (0..dim).step_by(8) {
        // SAFETY: eight elements from `at`.
        unsafe {
            // Twelve sums, three queries and a key: all sixteen registers.
            let q: [F32x8; Q] = std::array::from_fn(|h| load8(q.add(h * dim + at)));
            for i in 0..KEYS {
                let k = load8(keys[i].add(at));
                for h in 0..Q {
                    acc[h][i] = fma8(q[h], k, acc[h][i]);
                }
            }
        }
    }
    acc.map(|sums| sums_of_four8(sums))
}

/// Scores of the queries `[group, dim]` with keys `from..to` of a page, times `scale`: into `scores`, whose rows of
/// [`SEGMENT`] belong to the heads; key `i` goes to column `column + i`.
///
/// # Safety
/// The processor has the features; the head size is a multiple of 8; `from < to <= PAGE_TOKENS`.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn score_page<T: Lanes>(
    q: &[f32],
    keys: &[T],
    dim: usize,
    (from, to): (usize, usize),
    scale: f32,
    scores: &mut [f32],
    column: usize,
) {
    let group = q.len() / dim;
    assert!(keys.len() == PAGE_TOKENS * dim && to <= PAGE_TOKENS && from < to);
    assert!(scores.len() >= group * SEGMENT && column + PAGE_TOKENS <= SEGMENT);
    // Columns of keys that nobody sees get a score too, which nobody reads: a store has four.
    for key in (from / KEYS * KEYS..to).step_by(KEYS) {
        // A page may hold anything where no position has been written: look at none of those.
        let pointers = std::array::from_fn(|i| keys[(key + i).clamp(from, to - 1) * dim..].as_ptr());
        let mut head = 0;
        while head < group {
            let n = (group - head).min(HEADS);
            // SAFETY: `n` queries from `head`, and four columns from `column + key`, which is a multiple of 4 below
            // SEGMENT - 3.
            unsafe {
                let q = q.as_ptr().add(head * dim);
                let out = scores.as_mut_ptr().add(head * SEGMENT + column + key);
                let put = |h: usize, s: F32x4| store_scaled4(out.add(h * SEGMENT), s, scale);
                match n {
                    3 => score_tile::<T, 3>(q, pointers, dim)
                        .into_iter()
                        .enumerate()
                        .for_each(|(h, s)| put(h, s)),
                    2 => score_tile::<T, 2>(q, pointers, dim)
                        .into_iter()
                        .enumerate()
                        .for_each(|(h, s)| put(h, s)),
                    _ => score_tile::<T, 1>(q, pointers, dim)
                        .into_iter()
                        .enumerate()
                        .for_each(|(h, s)| put(h, s)),
                }
            }
            head += n;
        }
    }
}

/// Turns the scores of columns `from..to` into `exp(score - max)`, those beside them into 0, and gives maximum and
/// sum.
///
/// # Safety
/// The processor has the features.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn softmax(scores: &mut [f32; SEGMENT], (from, to): (usize, usize)) -> (f32, f32) {
    assert!(from < to && to <= SEGMENT);
    scores[..from].fill(f32::NEG_INFINITY);
    let end = to.next_multiple_of(8);
    scores[to..end].fill(f32::NEG_INFINITY);
    let (eights, _) = scores[..end].as_chunks_mut::<8>();
    let mut max = all8(f32::NEG_INFINITY);
    for eight in eights.iter() {
        // SAFETY: an array of eight.
        max = larger8(max, unsafe { load8(eight.as_ptr()) });
    }
    let max = max8(max);
    let mut sum = zero8();
    for eight in eights.iter_mut() {
        // SAFETY: an array of eight.
        unsafe {
            let e = exp8(sub8(load8(eight.as_ptr()), all8(max)));
            store8(eight.as_mut_ptr(), e);
            sum = add8(sum, e);
        }
    }
    (max, sum8(sum))
}

/// Adds `sum_i weights[i] * values[i]` over keys `from..to` of a page to `acc`, for `Q` heads and `D` vectors of
/// eight columns.
///
/// # Safety
/// `weights` has [`SEGMENT`] a head, `values` rows of `dim`, `acc` rows of `dim`, and each at least the columns
/// asked for; the processor has the features.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn value_tile<T: Lanes, const Q: usize, const D: usize>(
    weights: *const f32,
    values: *const T,
    dim: usize,
    keys: (usize, usize),
    acc: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums: [[F32x8; D]; Q] =
            std::array::from_fn(|h| std::array::from_fn(|d| load8(acc.add(h * dim + 8 * d))));
        for key in keys.0..keys.1 {
            let w: [F32x8; Q] = std::array::from_fn(|h| all8(*weights.add(h * SEGMENT + key)));
            for d in 0..D {
                let v = load8(values.add(key * dim + 8 * d));
                for h in 0..Q {
                    sums[h][d] = fma8(w[h], v, sums[h][d]);
                }
            }
        }
        for h in 0..Q {
            for d in 0..D {
                store8(acc.add(h * dim + 8 * d), sums[h][d]);
            }
        }
    }
}

/// Adds the weighted values `from..to` of a page to the heads' sums `[group, dim]`. `weights` are the rows of
/// [`SEGMENT`] of [`softmax`], from the page's first column on.
///
/// # Safety
/// The processor has the features; the head size is a multiple of 8.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn add_values<T: Lanes>(
    weights: &[f32],
    values: &[T],
    dim: usize,
    keys: (usize, usize),
    acc: &mut [f32],
) {
    let group = acc.len() / dim;
    assert!(values.len() == PAGE_TOKENS * dim && keys.1 <= PAGE_TOKENS);
    assert!(group == 0 || weights.len() >= (group - 1) * SEGMENT + PAGE_TOKENS);
    let mut head = 0;
    while head < group {
        let n = (group - head).min(HEADS);
        let mut column = 0;
        while column < dim {
            let wide = dim - column >= 32;
            // SAFETY: `n` heads from `head`, 32 or 8 columns from `column`.
            unsafe {
                let w = weights.as_ptr().add(head * SEGMENT);
                let v = values.as_ptr().add(column);
                let acc = acc.as_mut_ptr().add(head * dim + column);
                match (n, wide) {
                    (3, true) => value_tile::<T, 3, 4>(w, v, dim, keys, acc),
                    (3, false) => value_tile::<T, 3, 1>(w, v, dim, keys, acc),
                    (2, true) => value_tile::<T, 2, 4>(w, v, dim, keys, acc),
                    (2, false) => value_tile::<T, 2, 1>(w, v, dim, keys, acc),
                    (_, true) => value_tile::<T, 1, 4>(w, v, dim, keys, acc),
                    (_, false) => value_tile::<T, 1, 1>(w, v, dim, keys, acc),
                }
            }
            column += if wide { 32 } else { 8 };
        }
        head += n;
    }
}

/// Merges a segment's state into the state of the segments before it.
///
/// # Safety
/// The processor has the features.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn merge(total: &mut State<'_>, segment: &State<'_>) {
    let exp = |x: f32| first8(exp8(all8(x)));
    let group = total.max.len();
    let dim = total.acc.len() / group.max(1);
    for h in 0..group {
        let (before, here) = (total.max[h], segment.max[h]);
        let max = before.max(here);
        // Nothing seen on either side: there is nothing to scale.
        let factor = |m: f32| if m == f32::NEG_INFINITY { 0.0 } else { exp(m - max) };
        let (a, b) = (factor(before), factor(here));
        total.max[h] = max;
        total.sum[h] = total.sum[h] * a + segment.sum[h] * b;
        let (a, b) = (all8(a), all8(b));
        let from = segment.acc[h * dim..(h + 1) * dim].as_chunks::<8>().0;
        for (to, from) in total.acc[h * dim..(h + 1) * dim].as_chunks_mut::<8>().0.iter_mut().zip(from) {
            // SAFETY: arrays of eight.
            unsafe {
                let sum = mul8(load8(to.as_ptr()), a);
                store8(to.as_mut_ptr(), fma8(load8(from.as_ptr()), b, sum));
            }
        }
    }
}

/// The weighted sums over the sum of the weights.
pub(super) fn finish(state: &State<'_>, dim: usize, y: &mut [f32]) {
    for ((y, acc), sum) in y.chunks_exact_mut(dim).zip(state.acc.chunks_exact(dim)).zip(state.sum.iter()) {
        let by = 1.0 / sum;
        for (y, acc) in y.iter_mut().zip(acc) {
            *y = acc * by;
        }
    }
}
