//! No fast kernels for this processor: the plain ones serve.

use std::sync::Arc;

use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, Layout, Repack};

use crate::{OpKind, chart::Variant};

/// None.
pub(super) fn variants(_: OpKind) -> &'static [Variant] {
    &[]
}

/// No layouts but the plain one.
pub(super) fn layouts(_: Encoding, _: &[usize], _: &DeviceCaps) -> Vec<Layout> {
    Vec::new()
}

/// No layouts but the plain one.
pub(super) fn repack(_: Layout) -> Option<Arc<dyn Repack>> {
    None
}
