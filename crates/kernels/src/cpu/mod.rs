//! The CPU's kernels.
//!
//! `plain` holds one straightforward f32 version of every primitive: the oracle. `fast` holds those that a
//! user's tokens go through.

pub(crate) mod access;
mod fast;
mod plain;

use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, Layout, Repack};

use crate::{OpKind, chart::Variant};

/// The CPU's slot for an op, best first; the plain version, which takes everything, is last.
pub(crate) fn variants(op: OpKind) -> &'static [Variant] {
    match op {
        _ => &[],
    }
}

/// Layouts that the CPU's kernels would like for a weight, best first, [`Layout::Planes`] left out.
pub(crate) fn layouts(_: Encoding, _: &[usize], _: &DeviceCaps) -> Vec<Layout> {
    Vec::new()
}

/// What makes a layout.
pub(crate) fn repack(_: Layout) -> Option<std::sync::Arc<dyn Repack>> {
    None
}
