//! The memory plan of a model on a device.

use portolan_device::Device;
use portolan_kernels::exec::StepLimits;
use portolan_weights::{LoadPlan, MemoryPlan, Pool};

use super::Placement;
use crate::{Result, cache::CacheLayout};

/// Adds up what a model will take.
pub(crate) fn memory_plan(
    device: &Device,
    load: &LoadPlan,
    placement: &Placement,
    caches: &CacheLayout,
    limits: StepLimits,
    logits_bytes: usize,
) -> Result<MemoryPlan> {
    let info = device.memory_info()?;
    let pool = Pool {
        name: if device.caps().integrated { "host".to_owned() } else { format!("{} device", device.id()) },
        available: info.free,
        source: info.source.to_owned(),
    };
    let mut plan = MemoryPlan { pools: vec![pool], items: Vec::new() };
    plan.add("weights", load.device_bytes, 0);
    plan.add("loading scratch", load.scratch_bytes, 0);
    plan.add(format!("cache ({} tokens)", caches.tokens()), caches.bytes(), 0);
    plan.add("workspace", placement.bytes as u64, 0);
    plan.add("step buffers", limits.bytes() as u64, 0);
    plan.add("logits on the host", logits_bytes as u64, 0);
    Ok(plan)
}
