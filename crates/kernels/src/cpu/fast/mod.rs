//! The kernels that a user's tokens go through.
//!
//! They are chosen at run time by what the processor has; on a processor for which there are none the lists
//! here are empty and the plain kernels serve.

use std::sync::Arc;

use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, Layout, Repack};

use crate::{OpKind, chart::Variant};

#[cfg(target_arch = "x86_64")]
mod avx2;

/// The fast variants of an op, best first; what they decline is left to the plain version.
#[cfg(target_arch = "x86_64")]
pub(crate) fn variants(op: OpKind) -> &'static [Variant] {
    avx2::variants(op)
}

/// Layouts that these kernels would like for a weight, best first.
#[cfg(target_arch = "x86_64")]
pub(crate) fn layouts(encoding: Encoding, shape: &[usize], caps: &DeviceCaps) -> Vec<Layout> {
    avx2::layouts(encoding, shape, caps)
}

/// What makes a layout.
#[cfg(target_arch = "x86_64")]
pub(crate) fn repack(layout: Layout) -> Option<Arc<dyn Repack>> {
    avx2::repack(layout)
}

/// No fast kernels for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn variants(_: OpKind) -> &'static [Variant] {
    &[]
}

/// No layouts but the plain one.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn layouts(_: Encoding, _: &[usize], _: &DeviceCaps) -> Vec<Layout> {
    Vec::new()
}

/// No layouts but the plain one.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn repack(_: Layout) -> Option<Arc<dyn Repack>> {
    None
}
