use half::{bf16, f16};

use super::{
    super::{isa::NAMES, simd::Lanes},
    *,
};
use crate::{CacheKind, PAGE_TOKENS};

/// A case: heads, kv heads, head sizes, window.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    window: Option<usize>,
}

const SCALE: f32 = 0.3;

/// One row's result in f64.
fn reference<T: Lanes>(case: Case, q: &[f32], k: &[T], v: &[T], pages: usize, position: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for head in 0..case.heads {
        let kv_head = head / (case.heads / case.kv_heads);
        let q = &q[head * case.k_dim..(head + 1) * case.k_dim];
        let first = case.window.map_or(0, |w| (position + 1).saturating_sub(w));
        // The pages of a sequence are in reverse order, see `Bed::new`.
        let row = |p: usize| {
            ((pages - 1 - p / PAGE_TOKENS) * case.kv_heads + kv_head) * PAGE_TOKENS + p % PAGE_TOKENS
        };
        let dot = |p: usize| -> f64 {
            let k = &k[row(p) * case.k_dim..(row(p) + 1) * case.k_dim];
            q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k.to_f32())).sum()
        };
        let scores: Vec<f64> = (first..=position).map(|p| dot(p) * f64::from(SCALE)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        for d in 0..case.v_dim {
            let weighted = (first..=position).zip(&scores);
            let value = |p: usize| f64::from(v[row(p) * case.v_dim + d].to_f32());
            out.push(weighted.map(|(p, s)| (s - max).exp() * value(p)).sum::<f64>() / sum);
        }
    }
    out
}

#[track_caller]
fn check<T: Lanes>(case: Case, dtype: DType, positions: std::ops::Range<usize>, rng: &mut Rng) {
    let Case { heads, kv_heads, k_dim, v_dim, window } = case;
    let pages = positions.end.div_ceil(PAGE_TOKENS) + 1;
    let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window };
    // Positions that nobody has written hold NaN: the last page, and the rest of the one before it.
    let mut fill = |dim: usize| -> Vec<T> {
        let mut all = vec![T::from_f32(f32::NAN); pages * kv_heads * PAGE_TOKENS * dim];
        for p in 0..positions.end {
            for head in 0..kv_heads {
                let row = ((pages - 1 - p / PAGE_TOKENS) * kv_heads + head) * PAGE_TOKENS + p % PAGE_TOKENS;
                all[row * dim..(row + 1) * dim].fill_with(|| T::from_f32(rng.float() * 2.0));
            }
        }
        all
    };
    let (k, v) = (fill(k_dim), fill(v_dim));
    let rows = positions.len();
    let q: Vec<f32> = rng.floats(rows * heads * k_dim).iter().map(|q| q * 3.0).collect();

    let run = |positions: &[i32], q: &[f32], threads: usize| {
        let bed = Bed::new(positions, pages);
        let slice = |v: &[T]| place(&bed.device, bytemuck::cast_slice(v));
        let cache = CacheView { kind, dtype, k: slice(&k), v: slice(&v), pages };
        let y = bed.view(ValueType::Activation, heads * v_dim, positions.len(), &[]);
        let op = Op::Attention { heads, scale: SCALE, window };
        let launch = bed.launch(op, &[&bed.floats(q, heads * k_dim)], &[], Some(cache), &y);
        bed.run(NAMES.floats, &launch, positions.len(), threads);
        floats_of(&y, positions.len())
    };
    let all: Vec<i32> = positions.clone().map(|p| p as i32).collect();
    let whole = run(&all, &q, 2);
    assert_eq!(whole, run(&all, &q, 1), "{case:?}: other threads");
    for (row, position) in positions.enumerate() {
        let y = &whole[row * heads * v_dim..(row + 1) * heads * v_dim];
        let q = &q[row * heads * k_dim..(row + 1) * heads * k_dim];
        for (i, (&y, expected)) in y.iter().zip(reference(case, q, &k, &v, pages, position)).enumerate() {
            // Weights that sum to 1, of values up to 2, after a score's error of a few 1e-6.
            assert!(
                (f64::from(y) - expected).abs() < 1e-5,
                "{case:?} {dtype} at {position} [{i}]: {y}, not {expected}"
            );
        }
        // Alone, a row takes the other path.
        assert_eq!(y, run(&[position as i32], q, 3), "{case:?} {dtype}: the row at {position} alone");
    }
}

#[test]
fn right_and_independent_of_rows_and_threads() {
    if !here() {
        return;
    }
    let case = |heads, kv_heads, k_dim, v_dim, window| Case { heads, kv_heads, k_dim, v_dim, window };
    let mut rng = Rng::new(7);
    for positions in [0..5, 30..36, 120..140, 250..262, 0..70] {
        check::<f32>(case(3, 1, 8, 8, None), DType::F32, positions.clone(), &mut rng);
        check::<f16>(case(9, 3, 64, 64, None), DType::F16, positions.clone(), &mut rng);
        check::<bf16>(case(4, 4, 40, 24, None), DType::BF16, positions.clone(), &mut rng);
        check::<f16>(case(8, 2, 32, 48, Some(50)), DType::F16, positions.clone(), &mut rng);
        check::<f32>(case(5, 1, 16, 16, Some(1)), DType::F32, positions.clone(), &mut rng);
        check::<f32>(case(2, 2, 16, 16, Some(128)), DType::F32, positions.clone(), &mut rng);
    }
}

#[test]
fn a_page_or_a_position_that_is_not_there_shows() {
    if !here() {
        return;
    }
    let kind = CacheKind::Paged { kv_heads: 1, k_dim: 8, v_dim: 8, window: None };
    // Page 1 is missing, and the table ends at position 96.
    for (position, is_nan) in [(31, false), (32, true), (95, true), (96, true), (i32::MAX, true), (-1, true)]
    {
        for rows in [1, 8] {
            let bed = Bed::with_pages(&vec![position; rows], &[0, -1, 1]);
            let ones = place(&bed.device, bytemuck::cast_slice(&[1.0f32; 2 * PAGE_TOKENS * 8]));
            let cache = CacheView { kind, dtype: DType::F32, k: ones.clone(), v: ones, pages: 2 };
            let q = bed.floats(&vec![1.0; rows * 16], 16);
            let y = bed.view(ValueType::Activation, 16, rows, &[]);
            let op = Op::Attention { heads: 2, scale: 1.0, window: None };
            bed.run(NAMES.floats, &bed.launch(op, &[&q], &[], Some(cache), &y), rows, 2);
            let y = floats_of(&y, rows);
            assert!(
                y.iter().all(|y| if is_nan { y.is_nan() } else { *y == 1.0 }),
                "{rows} rows at {position}: {y:?}"
            );
        }
    }
}
