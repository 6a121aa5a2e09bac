//! The memory plan of a model on a device.

use portolan_device::{Device, DeviceKind, MemoryKind, WorkingBytes, WorkingMemory};
use portolan_kernels::{exec::StepLimits, gpu::MOST_SCRATCH};
use portolan_weights::{LoadOptions, LoadPlan, MemoryPlan};

use super::Placement;
use crate::{Result, cache::CacheLayout};

/// Adds up what a model will take. Says too which kind of memory each part beside the weights is counted in: whoever
/// takes the part takes that kind.
pub(crate) fn memory_plan(
    device: &Device,
    load: &LoadPlan,
    placement: &Placement,
    caches: &CacheLayout,
    limits: StepLimits,
    logits_bytes: usize,
) -> Result<(MemoryPlan, WorkingMemory)> {
    let (mut plan, pools) = MemoryPlan::of_device(device)?;
    plan.add_load(load, device, pools, &LoadOptions::default())?;
    let gpu = device.caps().kind() != DeviceKind::Cpu;
    let bytes = WorkingBytes {
        step: limits.bytes() as u64,
        scratch: if gpu { MOST_SCRATCH } else { 0 },
        workspace: placement.bytes as u64,
        caches: caches.bytes(),
    };
    let working = plan.working_memory(device, pools, &bytes);
    plan.add(format!("cache ({} tokens)", caches.tokens()), bytes.caches, pools.of(working.caches));
    plan.add("workspace", bytes.workspace, pools.of(working.workspace));
    if gpu {
        plan.add("kernels' scratch, at most", bytes.scratch, pools.of(working.scratch));
    }
    plan.add("step buffers", bytes.step, pools.of(working.step));
    plan.add("logits on the host", logits_bytes as u64, pools.of(MemoryKind::Pinned));
    Ok((plan, working))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use portolan_device::{DType, MemoryInfo, fake::FakeBackend, rocm::memory_sources::MemorySources};
    use portolan_kernels::{CacheDecl, CacheKind, exec::Runner};

    use super::*;
    use crate::cache::Caches;

    const MIB: u64 = 1 << 20;

    /// An integrated GPU whose runtime has a pool of so many MiB, in a host with 16 times as much.
    fn apu(pool: u64) -> FakeBackend {
        let info = |mib: u64, source| Some(MemoryInfo { free: mib * MIB, total: mib * MIB, source });
        let sources = MemorySources {
            runtime: info(pool, "hipMemGetInfo"),
            vram: info(pool, "mem_info_vram"),
            gtt: info(8 * pool, "mem_info_gtt"),
            host: MemoryInfo { free: 16 * pool * MIB, total: 16 * pool * MIB, source: "MemAvailable" },
        };
        FakeBackend::apu(sources, true)
    }

    /// One layer whose token takes 4 KiB.
    fn layout(tokens: usize) -> CacheLayout {
        let kind = CacheKind::Paged { kv_heads: 8, k_dim: 128, v_dim: 128, window: None };
        CacheLayout::new(&[CacheDecl { name: "layers.0".to_owned(), kind }], DType::F16, tokens).unwrap()
    }

    const LIMITS: StepLimits = StepLimits { rows: 8, selected: 1, seqs: 1, pages: 64 };

    fn plan(fake: &FakeBackend, workspace: u64, tokens: usize) -> (MemoryPlan, WorkingMemory) {
        let placement = Placement { ranges: Vec::new(), bytes: (workspace * MIB) as usize };
        memory_plan(&fake.device(), &LoadPlan::default(), &placement, &layout(tokens), LIMITS, 4096).unwrap()
    }

    /// What each pool is asked for must be what is then taken from it.
    #[track_caller]
    fn check(fake: &FakeBackend, tokens: usize, expected: MemoryKind) {
        let (plan, working) = plan(fake, 1, tokens);
        assert_eq!(working.caches, expected, "{plan}");
        let caches = Caches::new(&fake.device(), layout(tokens), working.caches).unwrap();
        let runner = Runner::new(&fake.device(), LIMITS, &working).unwrap();
        for (pool, kind) in [(0, MemoryKind::Device), (1, MemoryKind::Mapped)] {
            let taken = fake.bytes_of(kind) as u64;
            let planned = plan.items.iter().filter(|i| i.pool == pool);
            let planned = planned.filter(|i| i.what.starts_with("cache") || i.what == "step buffers");
            assert_eq!(taken, planned.map(|i| i.bytes).sum::<u64>(), "{}: {plan}", kind.name());
        }
        drop((caches, runner));
        assert_eq!((fake.live(), fake.faults()), (0, vec![]));
    }

    #[test]
    fn caches_are_taken_from_where_they_are_planned() {
        // 512 MiB, of which 256 are left, and 102 for what comes before the caches.
        check(&apu(512), 32 << 10, MemoryKind::Device);
        check(&apu(512), 48 << 10, MemoryKind::Mapped);
    }

    #[test]
    fn llama_cpp_26432_an_apu_counts_caches_and_workspace_where_they_go() {
        let fake = apu(62 << 10);
        let need = |tokens| {
            let (plan, working) = plan(&fake, 900, tokens);
            // All that is taken is counted once in the memory chips' own pools: the device's, and the host's.
            assert_eq!(plan.need(0) + plan.need(2), plan.items.iter().map(|i| i.bytes).sum::<u64>());
            (plan.need(0), plan.need(1), plan.shortage().is_some(), working.caches)
        };
        let cache = |tokens: u64| tokens * 4096;
        let (short, long) = (need(131_072), need(196_608));
        assert_eq!(long.0 - short.0, cache(196_608 - 131_072));
        assert_eq!((short.2, long.2), (false, false));
        // Sixty GiB of cache do not go into a pool of 62: host memory holds them, until it does not.
        let mapped = need(15 << 20);
        assert_eq!((mapped.3, mapped.2), (MemoryKind::Mapped, false));
        assert!(mapped.1 >= cache(15 << 20) && mapped.0 < short.0);
        assert!(need(300 << 20).2);
    }
}
