//! Which prefixes the pages hold, so that a prompt that begins like an earlier one need not be computed again.
//!
//! A tree of full pages: a node is a page's tokens after its parent's. Tokens are compared themselves, never only
//! a hash of them, so a match is a match. The index owns its pages like a sequence does, and gives up those that
//! were used longest ago when the pool runs short.

use std::collections::{HashMap, HashSet};

use portolan_kernels::PAGE_TOKENS;

use super::{PageId, PagePool, Sequence};

type NodeId = u64;
const ROOT: NodeId = 0;

#[derive(Debug)]
struct Entry {
    node: NodeId,
    page: PageId,
    used: u64,
    children: usize,
}

/// The index.
#[derive(Debug, Default)]
pub(crate) struct PrefixIndex {
    entries: HashMap<(NodeId, Box<[u32]>), Entry>,
    /// The key of each node.
    keys: HashMap<NodeId, (NodeId, Box<[u32]>)>,
    next: NodeId,
    clock: u64,
}

impl PrefixIndex {
    /// A sequence that begins with the longest known prefix of `tokens`, in whole pages, and is shorter than
    /// `tokens`: at least the last token is left to compute, since its logits are wanted.
    pub(crate) fn start(&mut self, tokens: &[u32], pool: &mut PagePool) -> Sequence {
        self.clock += 1;
        let mut sequence = Sequence::default();
        let mut parent = ROOT;
        let usable = tokens.len().saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
        for chunk in tokens[..usable].chunks_exact(PAGE_TOKENS) {
            let Some(entry) = self.entries.get_mut(&(parent, chunk.into())) else { break };
            entry.used = self.clock;
            parent = entry.node;
            pool.share(entry.page);
            sequence.pages.push(Some(entry.page));
            sequence.tokens.extend_from_slice(chunk);
        }
        sequence
    }

    /// Remembers the full pages of a sequence.
    pub(crate) fn publish(&mut self, sequence: &Sequence, pool: &mut PagePool) {
        self.clock += 1;
        let mut parent = ROOT;
        for (chunk, page) in sequence.tokens.chunks_exact(PAGE_TOKENS).zip(&sequence.pages) {
            let key = (parent, Box::<[u32]>::from(chunk));
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.used = self.clock;
                parent = entry.node;
                continue;
            }
            // A page that was given back behind a window cannot be found again, nor can what follows it.
            let Some(page) = *page else { return };
            pool.share(page);
            self.next += 1;
            let node = self.next;
            self.entries.insert(key.clone(), Entry { node, page, used: self.clock, children: 0 });
            self.keys.insert(node, key);
            self.child_count(parent, 1);
            parent = node;
        }
    }

    fn child_count(&mut self, node: NodeId, change: isize) {
        if let Some(entry) = self.keys.get(&node).and_then(|key| self.entries.get_mut(key)) {
            entry.children = entry.children.saturating_add_signed(change);
        }
    }

    /// Forgets prefixes, those used longest ago first, until the pool has `wanted` free pages or nothing that
    /// would help is left.
    pub(crate) fn evict(&mut self, wanted: usize, pool: &mut PagePool) {
        while pool.free() < wanted {
            // Leaves only, so that what is left can still be reached; and only pages that nobody else owns.
            let victim = self
                .entries
                .iter()
                .filter(|(_, e)| e.children == 0 && pool.owners(e.page) == 1)
                .min_by_key(|(_, e)| e.used)
                .map(|(key, _)| key.clone());
            let Some(key) = victim else { return };
            if let Some(entry) = self.entries.remove(&key) {
                self.keys.remove(&entry.node);
                self.child_count(key.0, -1);
                pool.release(entry.page);
            }
        }
    }

    /// Pages that eviction could free at once or in turn.
    pub(crate) fn evictable(&self, pool: &PagePool) -> usize {
        // A page in use keeps those before it, even where its user has given them back behind a window.
        let mut kept = HashSet::new();
        for entry in self.entries.values().filter(|e| pool.owners(e.page) > 1) {
            let mut node = entry.node;
            while kept.insert(node) {
                match self.keys.get(&node) {
                    Some(&(parent, _)) if parent != ROOT => node = parent,
                    _ => break,
                }
            }
        }
        self.entries.len() - kept.len()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, pool: &mut PagePool) {
        for (_, entry) in self.entries.drain() {
            pool.release(entry.page);
        }
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence of `n` full pages.
    fn sequence(n: usize, salt: u32, pool: &mut PagePool) -> Sequence {
        Sequence {
            tokens: (0..(n * PAGE_TOKENS) as u32).map(|i| i + salt).collect(),
            pages: (0..n).map(|_| pool.take()).collect(),
        }
    }

    /// What eviction can free is what it does free.
    #[track_caller]
    fn check(index: &mut PrefixIndex, pool: &mut PagePool, expected: usize) {
        let (free, evictable) = (pool.free(), index.evictable(pool));
        assert_eq!(evictable, expected);
        index.evict(usize::MAX, pool);
        assert_eq!(pool.free() - free, evictable);
    }

    #[test]
    fn pages_that_nobody_uses_can_be_had() {
        let (mut pool, mut index) = (PagePool::new(16), PrefixIndex::default());
        for salt in [0, 1000] {
            let mut seq = sequence(3, salt, &mut pool);
            index.publish(&seq, &mut pool);
            seq.truncate(0, &mut pool);
        }
        check(&mut index, &mut pool, 6);
    }

    #[test]
    fn a_page_in_use_keeps_those_before_it() {
        let (mut pool, mut index) = (PagePool::new(16), PrefixIndex::default());
        let mut first = sequence(3, 0, &mut pool);
        index.publish(&first, &mut pool);
        // One goes on from two of the three pages, and no longer looks back to the first.
        let mut second = index.start(&first.tokens[..2 * PAGE_TOKENS + 1], &mut pool);
        first.truncate(0, &mut pool);
        assert_eq!(second.len(), 2 * PAGE_TOKENS);
        second.release_before_window(PAGE_TOKENS, &mut pool);
        check(&mut index, &mut pool, 1);
        second.truncate(0, &mut pool);
        check(&mut index, &mut pool, 2);
        assert_eq!(pool.free(), 16);
    }
}
