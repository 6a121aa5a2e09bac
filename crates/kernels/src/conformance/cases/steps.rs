//! Steps of several sequences over shuffled pages.

use crate::{
    CacheKind, PAGE_TOKENS, StepShape,
    conformance::{
        host::{Cache, Step},
        rng::Rng,
    },
};

/// A sequence's part in a step: its first position and its rows.
pub type Part = (usize, usize);

/// One row, a page's last and first position, a prompt that crosses a page's border, and several sequences of
/// different lengths.
pub const STEPS: [&[Part]; 8] = [
    &[(0, 1)],
    &[(31, 1)],
    &[(32, 1)],
    &[(100, 1)],
    &[(0, 33)],
    &[(30, 5)],
    &[(5, 17), (0, 3), (63, 1), (40, 5)],
    &[(0, 1), (95, 1), (12, 1)],
];

/// A step of such sequences. Every sequence has pages for its context, in no order; the table's other entries are
/// -1, also those of pages that a window has left behind. Some pages belong to nobody.
pub fn step(rng: &mut Rng, parts: &[Part], window: Option<usize>) -> (Step, StepShape, usize) {
    let pages_of = |&(start, rows): &Part| (start + rows).div_ceil(PAGE_TOKENS);
    let pages = parts.iter().map(pages_of).sum::<usize>() + 2;
    let mut free = rng.shuffled(pages).into_iter();
    let max_pages = parts.iter().map(pages_of).max().unwrap_or(0) + 1;
    let mut step = Step { max_pages, ..Step::default() };
    for (seq, part) in parts.iter().enumerate() {
        let (start, rows) = *part;
        step.positions.extend((start..start + rows).map(|p| p as i32));
        step.row_seq.extend((0..rows).map(|_| seq as i32));
        let first_seen = window.map_or(0, |w| (start + 1).saturating_sub(w));
        for index in 0..max_pages {
            let has = index < pages_of(part) && index >= first_seen / PAGE_TOKENS;
            let page = if has { free.next() } else { None };
            step.page_table.push(page.map_or(-1, |p| p as i32));
        }
    }
    let shape = StepShape { rows: step.positions.len(), selected: 0, seqs: parts.len(), kv: 0 };
    (step, shape, pages)
}

/// A cache that holds numbers in `-1..1` for every position up to each sequence's last row (or only for those
/// before its rows), and NaN everywhere else.
pub fn cache(
    rng: &mut Rng,
    kind: CacheKind,
    dtype: portolan_device::DType,
    (step, pages): (&Step, usize),
    parts: &[Part],
    with_rows: bool,
) -> Cache {
    let mut cache = Cache::poisoned(kind, dtype, pages);
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = kind else { return cache };
    for (seq, &(start, rows)) in parts.iter().enumerate() {
        let end = if with_rows { start + rows } else { start };
        for position in 0..end {
            let entry = step.page_table[seq * step.max_pages + position / PAGE_TOKENS];
            let Ok(page) = usize::try_from(entry) else { continue };
            for head in 0..kv_heads {
                let row = (page * kv_heads + head) * PAGE_TOKENS + position % PAGE_TOKENS;
                cache.k[row * k_dim..(row + 1) * k_dim].copy_from_slice(&rng.units(k_dim));
                cache.v[row * v_dim..(row + 1) * v_dim].copy_from_slice(&rng.units(v_dim));
            }
        }
    }
    cache
}
