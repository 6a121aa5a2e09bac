//! Pages of keys and values.

use bytemuck::Pod;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use portolan_device::{DType, cpu::Team};

use crate::{
    CacheKind, CacheView, Launch, PAGE_TOKENS, StepShape,
    cpu::access::{Rows, read, values},
};

/// A type that a cache holds.
pub(super) trait Element: Pod + Send + Sync {
    /// Rounds to nearest, ties to even.
    fn store(from: &[f32], to: &mut [Self]);
    /// The elements as f32, in `buffer` where they are not that already.
    fn load<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];
}

impl Element for f32 {
    fn store(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn load<'a>(from: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        from
    }
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Element for $half {
            fn store(from: &[f32], to: &mut [$half]) {
                to.convert_from_f32_slice(from);
            }

            fn load<'a>(from: &'a [$half], buffer: &'a mut [f32]) -> &'a [f32] {
                from.convert_to_f32_slice(buffer);
                buffer
            }
        }
    )*};
}
halves!(f16, bf16);

/// The pages of a step: which row of a cache's memory holds a position of a sequence.
pub(super) struct Pages<'a> {
    table: &'a [i32],
    max_pages: usize,
    pages: usize,
    kv_heads: usize,
}

impl<'a> Pages<'a> {
    pub(super) fn new(launch: &'a Launch, cache: &CacheView, kv_heads: usize, shape: StepShape) -> Self {
        let max_pages = launch.step.max_pages;
        let table = read(&launch.step.page_table, shape.seqs * max_pages);
        Pages { table, max_pages, pages: cache.pages, kv_heads }
    }

    /// A row's position, where the table has room for it.
    pub(super) fn position(&self, position: i32) -> Option<usize> {
        usize::try_from(position).ok().filter(|p| p / PAGE_TOKENS < self.max_pages)
    }

    /// Where the page of positions `index * PAGE_TOKENS..` of a sequence begins, in rows of one head of one
    /// position; none where the sequence has no such page.
    pub(super) fn first_row(&self, seq: i32, index: usize, head: usize) -> Option<usize> {
        let seq = usize::try_from(seq).ok()?;
        let entry = seq.checked_mul(self.max_pages)?.checked_add(index)?;
        if index >= self.max_pages {
            return None;
        }
        let page = usize::try_from(*self.table.get(entry)?).ok()?;
        (page < self.pages).then_some((page * self.kv_heads + head) * PAGE_TOKENS)
    }
}

/// Writes k and v to the pages of their sequences, at their positions.
pub(super) fn cache_append(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.cache.as_ref().map(|c| c.dtype) {
        Some(DType::F32) => append::<f32>(launch, shape, team),
        Some(DType::F16) => append::<f16>(launch, shape, team),
        Some(DType::BF16) => append::<bf16>(launch, shape, team),
        _ => {}
    }
}

fn append<E: Element>(launch: &Launch, shape: StepShape, team: &Team) {
    let Some(cache) = &launch.cache else { return };
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { return };
    let positions: &[i32] = read(&launch.step.positions, shape.rows);
    let row_seq: &[i32] = read(&launch.step.row_seq, shape.rows);
    let pages = Pages::new(launch, cache, kv_heads, shape);
    for (input, slice, dim) in [(0, &cache.k, k_dim), (1, &cache.v, v_dim)] {
        let x = values(&launch.inputs[input], shape);
        let memory = Rows::<E>::new(slice, cache.pages * kv_heads * PAGE_TOKENS, dim);
        // Cut by heads: even a page table that names a page twice cannot make two threads write one row.
        team.run(kv_heads, |head| {
            for row in 0..shape.rows {
                let Some(position) = pages.position(positions[row]) else { continue };
                let Some(first) = pages.first_row(row_seq[row], position / PAGE_TOKENS, head) else {
                    continue;
                };
                let from = &x[(row * kv_heads + head) * dim..][..dim];
                // SAFETY: the rows of a head belong to this chunk alone.
                E::store(from, unsafe { memory.row_mut(first + position % PAGE_TOKENS) });
            }
        });
    }
}
