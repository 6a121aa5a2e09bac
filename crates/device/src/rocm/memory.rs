use std::{ffi::c_void, ptr::NonNull};

use super::{
    device::Context,
    error::{failed, words},
    memory_sources::{MemorySources, card_memory, sysfs_root},
    sys::{hipError_t, hipHostMallocMapped, hipHostMallocPortable},
};
use crate::{Device, DeviceError, MemoryInfo, MemoryKind, Result, backend::RawMemory};

/// Free and total memory of the pool that `hipMalloc` takes from.
pub(super) fn info(context: &Context) -> Result<MemoryInfo> {
    context.bind()?;
    let (free, total) = context.hip.mem_info().map_err(|e| failed(context.id, "hipMemGetInfo", e))?;
    Ok(MemoryInfo { free: free as u64, total: total as u64, source: "hipMemGetInfo" })
}

/// What every source says.
pub(super) fn sources(context: &Context) -> MemorySources {
    let (vram, gtt) = card_memory(&sysfs_root(), context.bus_id.as_deref());
    MemorySources { runtime: info(context).ok(), vram, gtt, host: Device::host_memory() }
}

/// Free and total memory of the pool that a kind comes from.
pub(super) fn pool(context: &Context, kind: MemoryKind) -> Result<MemoryInfo> {
    match kind {
        MemoryKind::Device => info(context),
        MemoryKind::Mapped => Ok(sources(context).mapped(context.managed)),
        // Pinned memory is never paged, so what the GPU can map bounds it.
        MemoryKind::Pinned => Ok(sources(context).mapped(false)),
    }
}

/// Takes memory. What the host sees comes from outside of Rust, so its bytes count as initialised, whatever they are.
pub(super) fn alloc(context: &Context, len: usize, kind: MemoryKind) -> Result<RawMemory> {
    context.bind()?;
    let hip = context.hip;
    let no_room = || DeviceError::OutOfMemory {
        device: context.id,
        pool: kind.name(),
        asked: len,
        available: pool(context, kind).ok().map(|i| i.free).filter(|free| *free != u64::MAX),
    };
    let refused = |call: &'static str, error| match error {
        hipError_t::hipErrorOutOfMemory => no_room(),
        _ => failed(context.id, call, error),
    };
    let address = match kind {
        // SAFETY: the device is current.
        MemoryKind::Device => unsafe { hip.malloc(len) }.map_err(|e| refused("hipMalloc", e))?,
        MemoryKind::Pinned => {
            // SAFETY: as above.
            unsafe { hip.host_malloc(len, hipHostMallocPortable) }.map_err(|e| refused("hipHostMalloc", e))?
        }
        MemoryKind::Mapped => {
            // SAFETY: as above.
            match unsafe { hip.host_malloc(len, hipHostMallocMapped | hipHostMallocPortable) } {
                Ok(address) => address,
                // What the GPU can map at once is used up, or the device has no such memory; paged memory may still do.
                // SAFETY: as above.
                Err(first) => match unsafe { hip.malloc_managed(len) } {
                    Ok(address) => {
                        context.remember_managed(address as u64);
                        address
                    }
                    Err(second) => {
                        let said = words(second);
                        tracing::debug!("{}: hipMallocManaged of {len} bytes: {said}", context.id);
                        return Err(refused("hipHostMalloc", first));
                    }
                },
            }
        }
    };
    let Some(start) = NonNull::new(address.cast::<u8>()) else { return Err(no_room()) };
    // HIP has one address space for all: kernels see host memory at the host's address.
    let host = (kind != MemoryKind::Device).then_some(start);
    Ok(RawMemory { device_addr: address as u64, host, len, kind })
}

/// Gives memory back. An error is only told: after the loss of a device nothing else can be done about it.
///
/// # Safety
/// As for [`crate::backend::Backend::free`].
pub(super) unsafe fn free(context: &Context, raw: &RawMemory) {
    // An address knows its device, so it is given back even where the device cannot be made the current one.
    let _ = context.bind();
    let address = raw.device_addr as *mut c_void;
    let by_host = raw.host.is_some() && !context.forget_managed(raw.device_addr);
    let function = if by_host { context.hip.hipHostFree } else { context.hip.hipFree };
    // SAFETY: it came from `alloc`, by the call that this one belongs to, and is freed once (the caller's promise).
    let code = unsafe { function(address) };
    if code != hipError_t::hipSuccess {
        tracing::debug!("{}: freeing {} bytes: {}", context.id, raw.len, words(code));
    }
}
