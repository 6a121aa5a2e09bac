use std::{ffi::c_void, ptr::NonNull};

use cudarc::driver::{result, sys};

use super::{device::Context, error::failed};
use crate::{DeviceError, MemoryInfo, MemoryKind, Result, backend::RawMemory};

/// Free and total memory of the device.
pub(super) fn info(context: &Context) -> Result<MemoryInfo> {
    context.bind()?;
    let (free, total) = result::mem_get_info().map_err(|e| failed(context.id, "cuMemGetInfo", e))?;
    Ok(MemoryInfo { free: free as u64, total: total as u64, source: "cuMemGetInfo" })
}

/// Takes memory. What the host sees comes from outside of Rust, so its bytes count as initialised, whatever they are.
pub(super) fn alloc(context: &Context, len: usize, kind: MemoryKind) -> Result<RawMemory> {
    context.bind()?;
    let refused = |call: &'static str, error: cudarc::driver::DriverError| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let available = match kind {
                MemoryKind::Device => info(context).ok().map(|i| i.free),
                MemoryKind::Pinned | MemoryKind::Mapped => None,
            };
            DeviceError::OutOfMemory { device: context.id, pool: kind.name(), asked: len, available }
        }
        _ => failed(context.id, call, error),
    };
    match kind {
        MemoryKind::Device => {
            // SAFETY: the context is current.
            let address = unsafe { result::malloc_sync(len) }.map_err(|e| refused("cuMemAlloc", e))?;
            Ok(RawMemory { device_addr: address, host: None, len, kind })
        }
        MemoryKind::Pinned | MemoryKind::Mapped => {
            let flags = match kind {
                MemoryKind::Mapped => sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP,
                _ => sys::CU_MEMHOSTALLOC_PORTABLE,
            };
            // SAFETY: the context is current.
            let host =
                unsafe { result::malloc_host(len, flags) }.map_err(|e| refused("cuMemHostAlloc", e))?;
            let Some(host) = NonNull::new(host.cast::<u8>()) else {
                return Err(DeviceError::OutOfMemory {
                    device: context.id,
                    pool: kind.name(),
                    asked: len,
                    available: None,
                });
            };
            // With one address space for all, the device sees host memory at the host's address.
            Ok(RawMemory { device_addr: host.as_ptr() as u64, host: Some(host), len, kind })
        }
    }
}

/// Gives memory back. An error is only told: after the loss of a device nothing else can be done about it.
///
/// # Safety
/// As for [`crate::backend::Backend::free`].
pub(super) unsafe fn free(context: &Context, raw: &RawMemory) {
    if context.bind().is_err() {
        return;
    }
    let freed = match raw.host {
        // SAFETY: it came from `alloc` and is freed once (the caller's promise).
        Some(host) => unsafe { result::free_host(host.as_ptr().cast::<c_void>()) },
        // SAFETY: as above.
        None => unsafe { result::free_sync(raw.device_addr) },
    };
    if let Err(error) = freed {
        tracing::debug!("{}: freeing {} bytes: {}", context.id, raw.len, super::error::words(error));
    }
}
