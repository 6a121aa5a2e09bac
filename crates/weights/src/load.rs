//! From a resolved plan to weights in device memory.

use std::{fmt::Debug, sync::Arc};

use portolan_device::{Device, Slice, Stream};

use crate::{Checkpoint, Encoding, Expr, Layout, LoadTransferStats, Planes, Resolved, Result};

/// Rearranges the planes of a weight into the layout that its kernels want. Given by the kernels crate; run by
/// [`load`] on the host, between reading and upload, a block of rows at a time.
pub trait Repack: Send + Sync + Debug {
    /// The layout it makes.
    fn layout(&self) -> Layout;
    /// Bytes of each plane of the result for a weight of `rows` rows of `k` elements.
    fn plane_bytes(&self, encoding: Encoding, rows: usize, k: usize) -> Vec<usize>;
    /// Rows are handed in as multiples of this (but for the last).
    fn row_multiple(&self) -> usize;
    /// Fills the result's planes for rows `first..first + n`; `out` are the whole planes of the result.
    fn run(&self, src: &Planes<'_>, first: usize, n: usize, out: &mut [&mut [u8]]);
}

/// A weight that the graph wants.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The graph's name for it, for messages.
    pub name: String,
    /// How it is made.
    pub expr: Expr,
    /// How its kernels want it arranged; none for [`Layout::Planes`].
    pub repack: Option<Arc<dyn Repack>>,
}

/// One resolved request.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// What was asked.
    pub request: LoadRequest,
    /// What it comes to.
    pub resolved: Resolved,
    /// Bytes in device memory, each plane rounded up to 256.
    pub device_bytes: u64,
}

/// What a load will read and take. Nothing has been read yet.
#[derive(Clone, Debug, Default)]
pub struct LoadPlan {
    /// The weights, in the order asked.
    pub tensors: Vec<PlannedTensor>,
    /// Bytes in device memory.
    pub device_bytes: u64,
    /// Most scratch memory that reading and rearranging needs at once.
    pub scratch_bytes: u64,
    /// Tensors of the checkpoint that no request reads.
    pub unused: Vec<String>,
    /// Bytes of those in the file.
    pub unused_bytes: u64,
}

/// How a load goes about it.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Reader threads.
    pub readers: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { readers: std::thread::available_parallelism().map_or(1, |n| n.get()).min(8) }
    }
}

/// A weight in device memory.
#[derive(Clone, Debug)]
pub struct WeightTensor {
    /// The graph's name for it.
    pub name: String,
    /// `[rows, k]`, `[k]` or `[e, rows, k]`.
    pub shape: Vec<usize>,
    /// How its numbers are stored.
    pub encoding: Encoding,
    /// How its planes are arranged.
    pub layout: Layout,
    /// The planes, in the order of [`Encoding::planes`] (or of its [`Repack`]).
    pub planes: Vec<Slice>,
}
