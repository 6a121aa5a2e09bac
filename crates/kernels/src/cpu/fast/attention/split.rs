//! Few rows a sequence: a chunk of the work is one segment of a row and kv head.

use portolan_device::cpu::Team;

use super::{
    super::{lanes, simd::Lanes},
    SEGMENT, SEGMENT_PAGES, State, Task,
    inner::{add_values, finish, merge, score_page, softmax},
};
use crate::{PAGE_TOKENS, cpu::access::with_scratch};

/// Products below which the team is not asked.
const INLINE: usize = 40_000;

pub(super) fn run<T: Lanes>(task: &Task<'_, T>, team: &Team) {
    let last = (0..task.rows).filter_map(|row| task.sees(row)).map(|(_, end)| end).max().unwrap_or(1);
    let first = (0..task.rows).filter_map(|row| task.sees(row)).map(|(first, _)| first).min().unwrap_or(0);
    let first_segment = first / SEGMENT;
    let segments = last.div_ceil(SEGMENT) - first_segment;
    let state = State::len(task.group, task.v_dim);
    let parts = task.rows * task.kv_heads * segments;
    with_scratch(parts * state, |partial| {
        let partial = Shared { ptr: partial.as_mut_ptr(), len: state };
        let part = |chunk: usize| {
            let (row, rest) = (chunk / (task.kv_heads * segments), chunk % (task.kv_heads * segments));
            let (segment, kv_head) = (first_segment + rest / task.kv_heads, rest % task.kv_heads);
            // SAFETY: one state a chunk.
            let mut state = State::of(unsafe { partial.part(chunk) }, task.group);
            state.clear();
            one(task, row, kv_head, segment, &mut state);
        };
        if 2 * (last - first) * task.q.len() <= INLINE {
            (0..parts).for_each(part);
        } else {
            team.run(parts, part);
        }
        // What is left is small.
        with_scratch(state, |memory| {
            for row in 0..task.rows {
                for kv_head in 0..task.kv_heads {
                    let mut total = State::of(memory, task.group);
                    total.clear();
                    for segment in 0..segments {
                        let chunk = (row * segments + segment) * task.kv_heads + kv_head;
                        // SAFETY: the chunks are done, and `takes` saw the features.
                        unsafe { merge(&mut total, &State::of(partial.part(chunk), task.group)) };
                    }
                    // SAFETY: this thread alone writes now.
                    finish(&total, task.v_dim, unsafe { task.results(row, kv_head) });
                }
            }
        });
    });
}

/// The state of one row and kv head after one segment.
fn one<T: Lanes>(task: &Task<'_, T>, row: usize, kv_head: usize, segment: usize, state: &mut State<'_>) {
    let Some((first, end)) = task.sees(row) else { return state.poison() };
    let start = segment * SEGMENT;
    let (from, to) = (first.max(start), end.min(start + SEGMENT));
    if from >= to {
        return;
    }
    let q = task.queries(row, kv_head);
    let pages = (from - start) / PAGE_TOKENS..(to - start).div_ceil(PAGE_TOKENS);
    let keys_of = |page: usize| {
        let base = start + page * PAGE_TOKENS;
        (from.max(base) - base, to.min(base + PAGE_TOKENS) - base)
    };
    with_scratch(task.group * SEGMENT, |scores| {
        for page in pages.clone() {
            let index = segment * SEGMENT_PAGES + page;
            let Some((keys, values)) = task.page(row, index, kv_head) else { return state.poison() };
            // A page is too short for the processor to see it coming.
            prefetch(values);
            if page + 1 < pages.end
                && let Some((next, _)) = task.page(row, index + 1, kv_head)
            {
                prefetch(next);
            }
            let column = page * PAGE_TOKENS;
            // SAFETY: `takes` saw the features and the head size; a page that is not empty.
            unsafe { score_page(q, keys, task.k_dim, keys_of(page), task.scale, scores, column) };
        }
        for (h, scores) in scores.as_chunks_mut::<SEGMENT>().0.iter_mut().enumerate() {
            // SAFETY: `takes` saw the features.
            (state.max[h], state.sum[h]) = unsafe { softmax(scores, (from - start, to - start)) };
        }
        for page in pages {
            let Some((_, values)) = task.page(row, segment * SEGMENT_PAGES + page, kv_head) else { return };
            let weights = &scores[page * PAGE_TOKENS..];
            // SAFETY: `takes` saw the features and the head size.
            unsafe { add_values(weights, values, task.v_dim, keys_of(page), state.acc) };
        }
    });
}

/// Asks for a page before it is read.
fn prefetch<T>(page: &[T]) {
    let line = 64 / size_of::<T>();
    for line in page.chunks(line) {
        lanes::prefetch(line.as_ptr().cast());
    }
}

/// Memory that chunks share, each its own part of `len` floats.
struct Shared {
    ptr: *mut f32,
    len: usize,
}

// SAFETY: threads reach the memory only through `part`, whose callers never share one.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// The memory has such a part, and no other reference to it is alive.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, index: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(index * self.len), self.len) }
    }
}
