//! What the kernels that go through rows element by element have in common.

use bytemuck::Pod;
use portolan_device::DeviceCaps;

use super::{
    Defines, GpuKernel,
    args::{ArgBytes, Call, address},
    takes::{Answer, value_dtype},
    type_name,
};
use crate::{
    Launch, View,
    chart::{Entry, OpSpec, Variant},
};

/// Threads of a block where nothing asks for more: few, so that a single row spreads over the device.
pub(super) const BLOCK: usize = 128;

/// Elements that a thread takes at once.
pub(super) const UNIT: usize = 8;

/// A variant for any number of rows that rounds nothing but its outputs, and whose rows know nothing of each other.
pub(super) fn simt(
    takes: fn(&OpSpec<'_>, &DeviceCaps) -> Answer,
    describe: &'static str,
    kernel: &'static GpuKernel,
) -> Variant {
    Variant {
        name: "simt",
        rows: (1, usize::MAX),
        exact: true,
        batch_invariant: true,
        rounds_weights: false,
        opt_in: false,
        takes,
        describe,
        entry: Entry::Gpu(kernel),
    }
}

/// `-D` of a number.
pub(super) fn number(name: &'static str, n: usize) -> (&'static str, String) {
    (name, n.to_string())
}

/// The block's size and the types of values, by the names that the device code has for them.
pub(super) fn block_and_types(block: usize, types: &[(&'static str, &View)], launch: &Launch) -> Defines {
    let types = types.iter().map(|(name, view)| (*name, type_name(value_dtype(view, launch))));
    [number("BLOCK", block)].into_iter().chain(types).collect()
}

/// Whether the rows of each value, `cols` apart, can be read in units of 16 bytes and more.
pub(super) fn aligned(cols: usize, views: &[&View]) -> bool {
    cols.is_multiple_of(UNIT) && views.iter().all(|v| address(v).is_multiple_of(16))
}

/// A launch of `blocks` blocks in one dimension: one at least, as no driver takes none. No step without rows is asked
/// for.
pub(super) fn call<T: Pod>(blocks: usize, block: usize, args: &T) -> Call {
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).max(1);
    Call { grid: [blocks, 1, 1], block: block as u32, shared: 0, args: ArgBytes::new(args) }
}
