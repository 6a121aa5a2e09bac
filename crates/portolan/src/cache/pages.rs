//! A pool of pages with counts of their owners.

/// A page: the same number in every paged cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageId(u32);

impl PageId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// As it stands in a page table.
    pub(crate) fn entry(self) -> i32 {
        self.0 as i32
    }
}

/// The pages, free and owned. A page has as many owners as sequences and index entries that hold it.
#[derive(Debug)]
pub(crate) struct PagePool {
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl PagePool {
    pub(crate) fn new(pages: usize) -> Self {
        // Reversed, so that the first pages are handed out first and untouched memory stays untouched.
        let free = (0..pages.min(i32::MAX as usize) as u32).rev().map(PageId).collect();
        PagePool { owners: vec![0; pages], free }
    }

    pub(crate) fn total(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page; its one owner is the caller.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.owners[page.index()] = 1;
        Some(page)
    }

    /// One more owner.
    pub(crate) fn share(&mut self, page: PageId) {
        self.owners[page.index()] += 1;
    }

    /// One owner less; the last gives the page back.
    pub(crate) fn release(&mut self, page: PageId) {
        let owners = &mut self.owners[page.index()];
        debug_assert!(*owners > 0, "page {} released once too often", page.0);
        *owners = owners.saturating_sub(1);
        if *owners == 0 {
            self.free.push(page);
        }
    }

    pub(crate) fn owners(&self, page: PageId) -> u32 {
        self.owners[page.index()]
    }
}
