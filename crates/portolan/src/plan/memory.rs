//! The memory plan of a model on a device.

use portolan_device::{Device, DeviceKind};
use portolan_kernels::{exec::StepLimits, gpu::MOST_SCRATCH};
use portolan_weights::{LoadOptions, LoadPlan, MemoryPlan};

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
    let (mut plan, pools) = MemoryPlan::of_device(device)?;
    plan.add_load(load, device, pools, &LoadOptions::default())?;
    plan.add(format!("cache ({} tokens)", caches.tokens()), caches.bytes(), pools.device);
    plan.add("workspace", placement.bytes as u64, pools.device);
    if device.caps().kind() != DeviceKind::Cpu {
        plan.add("kernels' scratch, at most", MOST_SCRATCH, pools.device);
    }
    plan.add("step buffers", limits.bytes() as u64, pools.device);
    plan.add("logits on the host", logits_bytes as u64, pools.host);
    Ok(plan)
}
