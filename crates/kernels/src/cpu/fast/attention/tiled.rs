//! Many rows a sequence: a chunk of the work is a block of rows for one kv head, so that a page of keys or values
//! is widened to f32 once and stays in the first cache while the rows pass by.

use std::ops::Range;

use portolan_device::cpu::Team;

use super::{
    super::{simd::Lanes, vector::widen},
    SEGMENT, SEGMENT_PAGES, State, Task,
    inner::{add_values, finish, merge, score_page, softmax},
};
use crate::{PAGE_TOKENS, cpu::access::with_scratch};

/// Queries of a block: their scores of a segment take 24 KiB.
const QUERIES: usize = 48;

pub(super) fn run<T: Lanes>(task: &Task<'_, T>, team: &Team) {
    let block = (QUERIES / task.group.max(1)).clamp(1, task.rows);
    let blocks = task.rows.div_ceil(block);
    team.run(blocks * task.kv_heads, |chunk| {
        // The last rows see the most: begin with them, so that the threads end together.
        let index = blocks - 1 - chunk / task.kv_heads;
        let kv_head = chunk % task.kv_heads;
        let mut first = index * block;
        let end = task.rows.min(first + block);
        while first < end {
            let seq = task.row_seq[first];
            let same = task.row_seq[first..end].iter().take_while(|&&s| s == seq).count();
            rows(task, first..first + same, kv_head);
            first += same;
        }
    });
}

/// Rows of one sequence for one kv head.
fn rows<T: Lanes>(task: &Task<'_, T>, rows: Range<usize>, kv_head: usize) {
    let (group, n) = (task.group, rows.len());
    let state = State::len(group, task.v_dim);
    let page_len = PAGE_TOKENS * task.k_dim.max(task.v_dim);
    with_scratch(n * (group * SEGMENT + 2 * state) + page_len, |scratch| {
        let (page, rest) = scratch.split_at_mut(page_len);
        let (scores, rest) = rest.split_at_mut(n * group * SEGMENT);
        let (totals, segments) = rest.split_at_mut(n * state);
        for total in totals.chunks_exact_mut(state) {
            State::of(total, group).clear();
        }
        let sees = rows.clone().filter_map(|row| task.sees(row));
        let (first, last) = sees.fold((usize::MAX, 0), |(a, b), (x, y)| (a.min(x), b.max(y)));
        for segment in first / SEGMENT..last.div_ceil(SEGMENT) {
            let mut block = Block { task, rows: rows.clone(), kv_head, segment, page, scores, segments };
            let whole = block.scores();
            block.softmax();
            block.values();
            for (i, row) in rows.clone().enumerate() {
                let mut total = State::of(&mut totals[i * state..(i + 1) * state], group);
                if !whole && block.keys(row, 0..SEGMENT_PAGES).is_some() {
                    total.poison();
                } else if block.keys(row, 0..SEGMENT_PAGES).is_some() {
                    let part = State::of(&mut block.segments[i * state..(i + 1) * state], group);
                    // SAFETY: `takes` saw the features.
                    unsafe { merge(&mut total, &part) };
                }
            }
        }
        for (total, row) in totals.chunks_exact_mut(state).zip(rows) {
            let mut total = State::of(total, group);
            if task.sees(row).is_none() {
                total.poison();
            }
            // SAFETY: this row and kv head belong to this chunk alone.
            finish(&total, task.v_dim, unsafe { task.results(row, kv_head) });
        }
    });
}

/// A block of rows at one segment.
struct Block<'a, 'b, T> {
    task: &'b Task<'a, T>,
    rows: Range<usize>,
    kv_head: usize,
    segment: usize,
    /// A page as f32.
    page: &'b mut [f32],
    /// `[rows, group, SEGMENT]`.
    scores: &'b mut [f32],
    /// `[rows]` states.
    segments: &'b mut [f32],
}

impl<T: Lanes> Block<'_, '_, T> {
    /// The positions within some pages of the segment that a row sees, counted from the first of these pages.
    fn keys(&self, row: usize, pages: Range<usize>) -> Option<(usize, usize)> {
        let start = self.segment * SEGMENT + pages.start * PAGE_TOKENS;
        let end = self.segment * SEGMENT + pages.end * PAGE_TOKENS;
        let (first, last) = self.task.sees(row)?;
        let (from, to) = (first.max(start), last.min(end));
        (from < to).then(|| (from - start, to - start))
    }

    /// The scores of every row; false when a page that a row sees is not there.
    fn scores(&mut self) -> bool {
        let (task, dim) = (self.task, self.task.k_dim);
        let len = task.group * SEGMENT;
        for page in 0..SEGMENT_PAGES {
            let index = self.segment * SEGMENT_PAGES + page;
            let mut wide = false;
            for (i, row) in self.rows.clone().enumerate() {
                let Some(keys) = self.keys(row, page..page + 1) else { continue };
                if !wide {
                    let Some((from, _)) = task.page(row, index, self.kv_head) else { return false };
                    // SAFETY: `takes` saw the features.
                    unsafe { widen(from, &mut self.page[..PAGE_TOKENS * dim]) };
                    wide = true;
                }
                let scores = &mut self.scores[i * len..(i + 1) * len];
                let q = task.queries(row, self.kv_head);
                let page_keys = &self.page[..PAGE_TOKENS * dim];
                // SAFETY: `takes` saw the features and the head size; a page that is not empty.
                unsafe { score_page(q, page_keys, dim, keys, task.scale, scores, page * PAGE_TOKENS) };
            }
        }
        true
    }

    /// Scores to weights; maximum and sum of every row.
    fn softmax(&mut self) {
        let group = self.task.group;
        let len = State::len(group, self.task.v_dim);
        for (i, row) in self.rows.clone().enumerate() {
            let Some(keys) = self.keys(row, 0..SEGMENT_PAGES) else { continue };
            let mut state = State::of(&mut self.segments[i * len..(i + 1) * len], group);
            state.clear();
            let scores = &mut self.scores[i * group * SEGMENT..(i + 1) * group * SEGMENT];
            for (h, scores) in scores.as_chunks_mut::<SEGMENT>().0.iter_mut().enumerate() {
                // SAFETY: `takes` saw the features.
                (state.max[h], state.sum[h]) = unsafe { softmax(scores, keys) };
            }
        }
    }

    /// The weighted sums of every row.
    fn values(&mut self) {
        let (task, dim) = (self.task, self.task.v_dim);
        let len = State::len(task.group, dim);
        for page in 0..SEGMENT_PAGES {
            let index = self.segment * SEGMENT_PAGES + page;
            let mut wide = false;
            for (i, row) in self.rows.clone().enumerate() {
                let Some(keys) = self.keys(row, page..page + 1) else { continue };
                if !wide {
                    let Some((_, from)) = task.page(row, index, self.kv_head) else { return };
                    // SAFETY: `takes` saw the features.
                    unsafe { widen(from, &mut self.page[..PAGE_TOKENS * dim]) };
                    wide = true;
                }
                let weights = &self.scores[i * task.group * SEGMENT + page * PAGE_TOKENS..];
                let state = State::of(&mut self.segments[i * len..(i + 1) * len], task.group);
                // SAFETY: `takes` saw the features and the head size.
                unsafe { add_values(weights, &self.page[..PAGE_TOKENS * dim], dim, keys, state.acc) };
            }
        }
    }
}
