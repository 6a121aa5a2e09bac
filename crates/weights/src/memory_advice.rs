//! What an owner of an integrated AMD GPU can do where a plan does not fit.
//!
//! The memory of such a machine is divided twice: the firmware sets a part aside for the GPU, and Linux limits how much
//! of the rest the GPU may map (GTT, half of it if nobody says otherwise). Both are settings, so a model that is refused
//! may fit the machine all the same. Nothing is named here that would not hold the plan.

use portolan_device::{MemoryInfo, MemoryKind, rocm::memory_sources::MemorySources};

use crate::{MemoryPlan, human_bytes};

const GIB: u64 = 1 << 30;

/// Memory is installed in steps of so much; the firmware and Linux keep less than that for themselves.
const INSTALLED_STEP: u64 = 16 * GIB;

/// What is left to the host where the GPU may map all the rest.
const LEFT_TO_HOST: u64 = 4 * GIB;

/// A page, the unit of two of the parameters.
const PAGE: u64 = 4096;

/// How the memory of the machine is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Apu {
    /// Where weights go.
    weights: MemoryKind,
    /// Bytes that the firmware set aside.
    carve_out: u64,
    /// Bytes that the GPU may map, where the driver says so.
    gtt: Option<u64>,
    /// The host.
    host: MemoryInfo,
}

impl Apu {
    pub(crate) fn new(weights: MemoryKind, sources: &MemorySources) -> Self {
        Apu {
            weights,
            carve_out: sources.vram.map_or(0, |vram| vram.total),
            gtt: sources.gtt.map(|gtt| gtt.total),
            host: sources.host,
        }
    }

    /// The most that the GPU may be let map: what is installed, less a little; none where nobody knows what there is.
    fn most_gtt(&self) -> Option<u64> {
        let known = self.host.total.checked_add(self.carve_out).filter(|_| self.host.total > 0)?;
        known.checked_next_multiple_of(INSTALLED_STEP)?.checked_sub(LEFT_TO_HOST)
    }
}

impl MemoryPlan {
    /// What would hold a plan that does not fit, in words; nothing where it fits, or where no setting is known to help.
    pub fn advice(&self) -> Vec<String> {
        let (Some(apu), Some((short, ..))) = (self.apu, self.shortage()) else { return Vec::new() };
        let mut advice = Vec::new();
        let Some((own, host)) = self.pools.first().zip(self.pools.last()) else { return advice };
        let everything = self.items.iter().fold(0u64, |sum, item| sum.saturating_add(item.bytes));
        let of_host = self.items.iter().filter(|item| item.pool + 1 == self.pools.len());
        let of_host = of_host.fold(0u64, |sum, item| sum.saturating_add(item.bytes));
        let of_gpu = everything.saturating_sub(of_host);
        if apu.weights == MemoryKind::Mapped
            && own.within.is_none()
            && of_gpu <= own.available
            && of_host <= host.available
        {
            let (name, room) = (&own.name, human_bytes(own.available));
            advice.push(format!(
                "PORTOLAN_ROCM_FORCE_DEVICE_MEM=1 would hold it: it keeps the weights in '{name}', which has {room}."
            ));
        }
        let pool = |name: MemoryKind| self.pools.iter().find(|pool| pool.name.ends_with(name.name()));
        // Forced into the smaller pool: what the device's own pool holds would then be the host's.
        if apu.weights == MemoryKind::Device
            && short == 0
            && let Some(mapped) = pool(MemoryKind::Mapped)
            && everything <= mapped.available.min(host.available)
        {
            let room = human_bytes(mapped.available);
            advice.push(format!(
                "Without PORTOLAN_ROCM_FORCE_DEVICE_MEM the weights go to '{}', which has {room}.",
                mapped.name
            ));
            return advice;
        }
        // The parameters move a limit. Where the host itself has no more, only what the firmware holds could be had.
        let large_carve_out = apu.carve_out > LEFT_TO_HOST;
        let limited = self.pools.get(short).is_some_and(|pool| pool.source != apu.host.source);
        if let Some(most) = apu.most_gtt()
            && apu.gtt.is_none_or(|gtt| gtt < most)
            && (limited || large_carve_out)
            && of_gpu <= most
            && everything <= apu.host.free.saturating_add(apu.carve_out)
        {
            let (gib, mib, pages) = (most / GIB, most >> 20, most / PAGE);
            let mut text = format!(
                "{gib} GiB of GTT would hold it (memory of the host that the GPU may map): boot Linux with \
                 amdgpu.gttsize={mib} ttm.pages_limit={pages} ttm.page_pool_size={pages}"
            );
            if large_carve_out {
                let now = human_bytes(apu.carve_out);
                text += &format!(", and let the firmware set the least aside for the GPU (now {now})");
            }
            advice.push(text + ". See docs/strix-halo.md.");
        }
        advice
    }
}
