//! One sequence: its tokens and the pages that hold their keys and values.

use portolan_kernels::PAGE_TOKENS;

use super::{PageId, PagePool};

/// A sequence in the cache.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Tokens whose keys and values are in the cache.
    pub(crate) tokens: Vec<u32>,
    /// One for each [`PAGE_TOKENS`] positions; none where no layer looks back that far any more.
    pub(crate) pages: Vec<Option<PageId>>,
}

impl Sequence {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Pages that `more` further positions need beyond those it has, one to copy a shared last page included.
    pub(crate) fn pages_needed(&self, more: usize, pool: &PagePool) -> usize {
        if more == 0 {
            return 0;
        }
        let fresh = (self.len() + more).div_ceil(PAGE_TOKENS).saturating_sub(self.pages.len());
        fresh + usize::from(self.shared_tail(pool).is_some())
    }

    /// The last page, if it is partly filled and others own it too: it must be copied before it is written.
    pub(crate) fn shared_tail(&self, pool: &PagePool) -> Option<PageId> {
        if self.len().is_multiple_of(PAGE_TOKENS) {
            return None;
        }
        self.pages.get(self.len() / PAGE_TOKENS).copied().flatten().filter(|&page| pool.owners(page) > 1)
    }

    /// Forgets all positions from `len` on.
    pub(crate) fn truncate(&mut self, len: usize, pool: &mut PagePool) {
        self.tokens.truncate(len);
        let keep = self.tokens.len().div_ceil(PAGE_TOKENS);
        for page in self.pages.drain(keep.min(self.pages.len())..).flatten() {
            pool.release(page);
        }
    }

    /// Gives back the pages that lie wholly before the last `window` positions.
    pub(crate) fn release_before_window(&mut self, window: usize, pool: &mut PagePool) {
        // The next position sees `window - 1` earlier ones.
        let first = (self.len() + 1).saturating_sub(window);
        for page in &mut self.pages[..first / PAGE_TOKENS] {
            if let Some(page) = page.take() {
                pool.release(page);
            }
        }
    }

    /// A second sequence with the same tokens, on the same pages.
    pub(crate) fn fork(&self, pool: &mut PagePool) -> Sequence {
        for &page in self.pages.iter().flatten() {
            pool.share(page);
        }
        Sequence { tokens: self.tokens.clone(), pages: self.pages.clone() }
    }
}
