//! Where a model's working memory goes: what it takes beside its weights.

use crate::{DeviceCaps, DeviceKind, MemoryInfo, MemoryKind};

/// The least that is left of an own pool.
const LEAST_RESERVE: u64 = 256 << 20;

/// The part of an own pool that is left, where that is more: one in so many.
const RESERVED_PART: u64 = 16;

/// What drivers round an allocation up to.
const GRANULE: u64 = 2 << 20;

/// Bytes of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingBytes {
    /// What changes from step to step: ids, positions, page tables.
    pub step: u64,
    /// Kernels' own scratch.
    pub scratch: u64,
    /// Values between ops.
    pub workspace: u64,
    /// Keys and values of earlier positions.
    pub caches: u64,
}

/// The kind of memory that each part is taken from. The default is the device's own for all.
///
/// Only an integrated AMD GPU has a choice. Its own pool is where `hipMalloc` takes from: the part of the host's memory
/// that the firmware set aside, or what the kernel's driver lets it map. It is the faster one, and may be small, and the
/// display and the driver live in it too. The rule: each part, in the order step buffers, scratch, workspace, caches,
/// goes to the own pool while that keeps a reserve (a sixteenth of it, and at least 256 MiB), and else to host memory
/// that kernels reach ([`MemoryKind::Mapped`]).
///
/// The plan of memory applies the rule once, and whoever allocates is handed what came out: asked again in the middle
/// of a load, a pool would give another answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkingMemory {
    /// For the step buffers.
    pub step: MemoryKind,
    /// For kernels' scratch.
    pub scratch: MemoryKind,
    /// For the workspace.
    pub workspace: MemoryKind,
    /// For the caches.
    pub caches: MemoryKind,
}

impl Default for WorkingMemory {
    fn default() -> Self {
        let own = MemoryKind::Device;
        WorkingMemory { step: own, scratch: own, workspace: own, caches: own }
    }
}

impl WorkingMemory {
    /// Applies the rule. `own` is the device's own pool, of which `taken` bytes are to be left for
    /// others: for weights that lie in it, or in memory that it shares.
    pub fn place(caps: &DeviceCaps, own: &MemoryInfo, taken: u64, bytes: &WorkingBytes) -> Self {
        if caps.kind() != DeviceKind::Rocm || !caps.integrated {
            return WorkingMemory::default();
        }
        let reserve = (own.total / RESERVED_PART).max(LEAST_RESERVE);
        let mut left = own.free.saturating_sub(taken).saturating_sub(reserve);
        let mut place = |bytes: u64| {
            let bytes = bytes.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
            match left.checked_sub(bytes) {
                Some(rest) => {
                    left = rest;
                    MemoryKind::Device
                }
                None => MemoryKind::Mapped,
            }
        };
        // In this order: a field's expression is evaluated where it is written.
        WorkingMemory {
            step: place(bytes.step),
            scratch: place(bytes.scratch),
            workspace: place(bytes.workspace),
            caches: place(bytes.caches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceId;

    const MIB: u64 = 1 << 20;

    fn caps(kind: DeviceKind, integrated: bool) -> DeviceCaps {
        DeviceCaps {
            id: DeviceId { kind, ordinal: 0 },
            name: String::new(),
            arch: "gfx1151".to_owned(),
            features: Vec::new(),
            wave_width: 32,
            integrated,
            units: 40,
        }
    }

    /// Step buffers, scratch, workspace and caches, in MiB; `D` and `M` say where each goes.
    #[track_caller]
    fn check(pool: u64, taken: u64, [step, scratch, workspace, caches]: [u64; 4], expected: &str) {
        let own = MemoryInfo { free: pool * MIB, total: pool * MIB, source: "test" };
        let bytes = WorkingBytes {
            step: step * MIB,
            scratch: scratch * MIB,
            workspace: workspace * MIB,
            caches: caches * MIB,
        };
        let placed = WorkingMemory::place(&caps(DeviceKind::Rocm, true), &own, taken * MIB, &bytes);
        let kinds = [placed.step, placed.scratch, placed.workspace, placed.caches];
        let found: String = kinds.iter().map(|k| if *k == MemoryKind::Device { 'D' } else { 'M' }).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_integrated_gpus_own_pool_is_taken_while_it_keeps_a_reserve() {
        // A sixteenth of 16 GiB is left.
        check(16384, 0, [2, 96, 902, 14360], "DDDD");
        check(16384, 0, [2, 96, 902, 14362], "DDDM");
        check(16384, 0, [2, 96, 16000, 14000], "DDMD");
        // What the weights take is not there.
        check(16384, 14000, [2, 96, 902, 1000], "DDDM");
        check(16384, 20000, [2, 96, 902, 1000], "MMMM");
        // Of 512 MiB no less than 256 are left; each part is rounded up to 2 MiB.
        check(512, 0, [1, 96, 158, 4000], "DDDM");
        check(512, 0, [1, 96, 159, 4000], "DDMM");
        check(512, 0, [1, 96, 0, u64::MAX / MIB], "DDDM");
        check(0, 0, [1, 1, 1, 1], "MMMM");
    }

    #[test]
    fn other_devices_have_one_place() {
        let own = MemoryInfo { free: 0, total: 0, source: "test" };
        let bytes = WorkingBytes { step: 1, scratch: 1, workspace: 1, caches: 1 };
        for (kind, integrated) in [
            (DeviceKind::Rocm, false),
            (DeviceKind::Cuda, true),
            (DeviceKind::Cuda, false),
            (DeviceKind::Cpu, true),
        ] {
            let placed = WorkingMemory::place(&caps(kind, integrated), &own, 0, &bytes);
            assert_eq!(placed, WorkingMemory::default(), "{kind}");
        }
    }
}
