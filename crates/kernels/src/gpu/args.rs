//! The arguments of a launch as the device code has them (`kernels-cuda/common.cuh`).

use bytemuck::{Pod, Zeroable};
use portolan_weights::WeightTensor;

use crate::{CacheKind, CacheView, StepBuffers, View};

/// Most bytes of an argument struct.
const MOST: usize = 256;

/// The bytes of an argument struct.
#[derive(Clone, Copy, Debug)]
pub struct ArgBytes {
    bytes: [u64; MOST / 8],
    len: usize,
}

impl ArgBytes {
    /// Copies a struct.
    pub fn new<T: Pod>(args: &T) -> Self {
        const { assert!(size_of::<T>() <= MOST && size_of::<T>().is_multiple_of(8)) };
        let mut bytes = [0; MOST / 8];
        bytemuck::cast_slice_mut(&mut bytes)[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(args));
        ArgBytes { bytes, len: size_of::<T>() }
    }

    /// The bytes, aligned to 8.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.bytes)[..self.len]
    }
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Blocks: x up to 2^31 - 1, y and z up to 65,535.
    pub grid: [u32; 3],
    /// Threads of a block, all in x.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The struct.
    pub args: ArgBytes,
}

/// `Weight` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct WeightArgs {
    pub(crate) plane: [u64; 4],
}

impl WeightArgs {
    pub(crate) fn new(weight: &WeightTensor) -> Self {
        let mut plane = [0; 4];
        for (to, from) in plane.iter_mut().zip(&weight.planes) {
            *to = from.device_addr();
        }
        WeightArgs { plane }
    }
}

/// `Step` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct StepArgs {
    ids: u64,
    positions: u64,
    row_seq: u64,
    page_table: u64,
    select: u64,
    max_pages: u32,
    seqs: u32,
}

impl StepArgs {
    pub(crate) fn new(step: &StepBuffers) -> Self {
        StepArgs {
            ids: step.ids.device_addr(),
            positions: step.positions.device_addr(),
            row_seq: step.row_seq.device_addr(),
            page_table: step.page_table.device_addr(),
            select: step.select.device_addr(),
            max_pages: step.max_pages as u32,
            seqs: step.max_seqs as u32,
        }
    }
}

/// `Cache` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct CacheArgs {
    k: u64,
    v: u64,
    pages: u32,
    kv_heads: u32,
    k_dim: u32,
    v_dim: u32,
}

impl CacheArgs {
    /// Of a cache of pages; `Launch::check` lets no other through to a kernel that asks.
    pub(crate) fn new(cache: Option<&CacheView>) -> Self {
        let Some(cache) = cache else { return CacheArgs::default() };
        let (kv_heads, k_dim, v_dim) = match cache.kind {
            CacheKind::Paged { kv_heads, k_dim, v_dim, .. } => (kv_heads, k_dim, v_dim),
            _ => (0, 0, 0),
        };
        CacheArgs {
            k: cache.k.device_addr(),
            v: cache.v.device_addr(),
            pages: cache.pages as u32,
            kv_heads: kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
        }
    }
}

/// Where a value lies.
pub(crate) fn address(view: &View) -> u64 {
    view.slice.device_addr()
}
