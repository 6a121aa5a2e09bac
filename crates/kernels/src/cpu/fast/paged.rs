//! Where the pages of a step's sequences lie in a cache.

use crate::{Launch, PAGE_TOKENS, StepShape, cpu::access::read};

/// The page tables of a step.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    table: &'a [i32],
    max_pages: usize,
    pages: usize,
    kv_heads: usize,
}

impl<'a> Pages<'a> {
    /// For a cache of so many pages and heads.
    pub(super) fn new(launch: &'a Launch, pages: usize, kv_heads: usize, shape: StepShape) -> Self {
        let max_pages = launch.step.max_pages;
        let table = read(&launch.step.page_table, shape.seqs * max_pages);
        Pages { table, max_pages, pages, kv_heads }
    }

    /// Positions that the table has pages for.
    pub(super) fn positions(&self) -> usize {
        self.max_pages * PAGE_TOKENS
    }

    /// The row of the cache's memory where a head's page of positions `index * PAGE_TOKENS..` begins; none where
    /// the table names no such page.
    pub(super) fn first_row(&self, seq: i32, index: usize, head: usize) -> Option<usize> {
        if index >= self.max_pages {
            return None;
        }
        let entry = usize::try_from(seq).ok()?.checked_mul(self.max_pages)?.checked_add(index)?;
        let page = usize::try_from(*self.table.get(entry)?).ok()?;
        (page < self.pages).then_some((page * self.kv_heads + head) * PAGE_TOKENS)
    }
}
