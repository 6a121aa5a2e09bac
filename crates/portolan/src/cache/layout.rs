//! The memory behind every layer's cache.

use portolan_device::{DType, Device, MemoryKind};
use portolan_kernels::{CacheDecl, CacheKind, CacheView, PAGE_TOKENS, exec::Runner};

use super::PageId;
use crate::{Error, Result};

/// How much every cache of a graph takes.
#[derive(Clone, Debug)]
pub(crate) struct CacheLayout {
    caches: Vec<CacheDecl>,
    dtype: DType,
    /// Pages of each paged cache.
    pub(crate) pages: usize,
}

impl CacheLayout {
    /// For `tokens` positions in all. Only paged caches are offered so far.
    pub(crate) fn new(caches: &[CacheDecl], dtype: DType, tokens: usize) -> Result<Self> {
        if let Some(other) = caches.iter().find(|c| !matches!(c.kind, CacheKind::Paged { .. })) {
            return Err(Error::UnsupportedCache {
                name: other.name.clone(),
                kind: format!("{:?}", other.kind),
            });
        }
        Ok(CacheLayout { caches: caches.to_vec(), dtype, pages: tokens.div_ceil(PAGE_TOKENS).max(1) })
    }

    /// The type of their elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Positions that the pages hold.
    pub(crate) fn tokens(&self) -> usize {
        self.pages * PAGE_TOKENS
    }

    /// Bytes of one page's keys and values in a cache.
    fn page_bytes(&self, kind: CacheKind) -> (usize, usize) {
        match kind {
            CacheKind::Paged { kv_heads, k_dim, v_dim, .. } => {
                let rows = kv_heads * PAGE_TOKENS * self.dtype.size();
                (rows * k_dim, rows * v_dim)
            }
            _ => (0, 0),
        }
    }

    /// Bytes of all caches.
    pub(crate) fn bytes(&self) -> u64 {
        let page: usize = self.caches.iter().map(|c| self.page_bytes(c.kind)).map(|(k, v)| k + v).sum();
        (page as u64).saturating_mul(self.pages as u64)
    }

    /// The window beyond which no layer looks back, where every layer has one.
    pub(crate) fn common_window(&self) -> Option<usize> {
        let windows = self.caches.iter().map(|c| match c.kind {
            CacheKind::Paged { window, .. } => window,
            _ => None,
        });
        windows.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

/// The memory of every cache.
#[derive(Debug)]
pub(crate) struct Caches {
    /// By cache id.
    pub(crate) views: Vec<CacheView>,
    layout: CacheLayout,
}

impl Caches {
    /// Takes the memory, of the kind that a plan gave it.
    pub(crate) fn new(device: &Device, layout: CacheLayout, memory: MemoryKind) -> Result<Self> {
        let mut views = Vec::with_capacity(layout.caches.len());
        for cache in &layout.caches {
            let (k, v) = layout.page_bytes(cache.kind);
            let take =
                |bytes: usize| device.alloc(bytes.saturating_mul(layout.pages), memory).map(|b| b.whole());
            views.push(CacheView {
                kind: cache.kind,
                dtype: layout.dtype,
                k: take(k)?,
                v: take(v)?,
                pages: layout.pages,
            });
        }
        Ok(Caches { views, layout })
    }

    /// Copies a page of every cache: for a sequence that goes on alone from a page that it shares.
    pub(crate) fn copy_page(&self, runner: &mut Runner, from: PageId, to: PageId) -> Result<()> {
        for view in &self.views {
            let (k, v) = self.layout.page_bytes(view.kind);
            for (slice, bytes) in [(&view.k, k), (&view.v, v)] {
                let src = slice.slice(from.index() * bytes, bytes)?;
                let dst = slice.slice(to.index() * bytes, bytes)?;
                runner.copy(&dst, &src)?;
            }
        }
        Ok(())
    }
}
