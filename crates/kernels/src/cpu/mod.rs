//! The CPU's kernels.
//!
//! `plain` holds one straightforward f32 version of every primitive: the oracle. `fast` holds those that a
//! user's tokens go through, where there are such for the processor.

pub(crate) mod access;
mod ceiling;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod fast;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "none.rs"]
mod fast;
pub(crate) mod plain;

pub use ceiling::{Ceiling, ceiling};

use std::sync::LazyLock;

use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, Layout, Repack};

use crate::{
    OpKind,
    chart::{CpuKernel, Decline, Entry, OpSpec, Variant},
};

type Takes = fn(&OpSpec<'_>, &DeviceCaps) -> Result<(), Decline>;

/// A variant for any number of rows, each of which comes out the same whatever rows are beside it.
const fn variant(name: &'static str, takes: Takes, describe: &'static str, kernel: CpuKernel) -> Variant {
    Variant {
        name,
        rows: (1, usize::MAX),
        exact: false,
        batch_invariant: true,
        rounds_weights: false,
        opt_in: false,
        takes,
        describe,
        entry: Entry::Cpu(kernel),
    }
}

/// By op: the fast variants, then the plain ones.
static SLOTS: LazyLock<Vec<Vec<Variant>>> = LazyLock::new(|| {
    let slot = |op| [fast::variants(op), plain::variants(op)].concat();
    OpKind::ALL.into_iter().map(slot).collect()
});

/// The CPU's slot for an op, best first; the plain version, which takes everything, is last.
pub(crate) fn variants(op: OpKind) -> &'static [Variant] {
    // `OpKind::ALL` is in the order of the enum.
    SLOTS.get(op as usize).map_or(&[], Vec::as_slice)
}

/// Layouts that the CPU's kernels would like for a weight, best first, [`Layout::Planes`] left out.
pub(crate) fn layouts(encoding: Encoding, shape: &[usize], caps: &DeviceCaps) -> Vec<Layout> {
    fast::layouts(encoding, shape, caps)
}

/// What makes a layout.
pub(crate) fn repack(layout: Layout) -> Option<std::sync::Arc<dyn Repack>> {
    fast::repack(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_the_order_of_the_enum() {
        for (i, op) in OpKind::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i, "{op}");
        }
    }

    #[test]
    fn every_primitive_ends_with_its_plain_version() {
        for op in OpKind::ALL {
            let slot = variants(op);
            assert_eq!(op.is_fused(), !slot.iter().any(|v| v.name == "plain"), "{op}");
            if let Some(last) = slot.last().filter(|_| !op.is_fused()) {
                assert!(
                    last.name == "plain" && last.exact && last.batch_invariant,
                    "{op} ends with {last:?}"
                );
            }
        }
    }

    #[test]
    fn names_within_a_slot_differ() {
        for op in OpKind::ALL {
            let mut names: Vec<_> = variants(op).iter().map(|v| v.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), variants(op).len(), "{op}");
        }
    }
}
