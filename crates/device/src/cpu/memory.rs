use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

use crate::{DeviceError, DeviceId, MemoryInfo, MemoryKind, Result, backend::RawMemory};

/// Whole cache lines, and what a GPU's allocator gives as well.
const ALIGN: usize = 256;

pub(super) fn alloc_host(device: DeviceId, len: usize, kind: MemoryKind) -> Result<RawMemory> {
    let refused =
        || DeviceError::OutOfMemory { device, pool: "host", asked: len, available: Some(host_memory().free) };
    let layout = Layout::from_size_align(len, ALIGN).map_err(|_| refused())?;
    if len == 0 {
        return Err(refused());
    }
    // Zeroed, so that a `&mut [u8]` of it is sound; large blocks come from the kernel as zero pages anyway.
    // SAFETY: the layout's size is not zero.
    let ptr = unsafe { alloc_zeroed(layout) };
    let host = NonNull::new(ptr).ok_or_else(refused)?;
    Ok(RawMemory { device_addr: host.as_ptr() as u64, host: Some(host), len, kind })
}

/// # Safety
/// `raw` came from [`alloc_host`] and is freed once.
pub(super) unsafe fn free_host(raw: &RawMemory) {
    if let (Some(host), Ok(layout)) = (raw.host, Layout::from_size_align(raw.len, ALIGN)) {
        // SAFETY: the same pointer and layout as in `alloc_host`.
        unsafe { dealloc(host.as_ptr(), layout) }
    }
}

/// What the kernel says can be taken without swapping: `MemAvailable`, or `sysinfo` where there is no /proc.
pub(super) fn host_memory() -> MemoryInfo {
    let field = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
    };
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo")
        && let (Some(total), Some(free)) = (field(&text, "MemTotal:"), field(&text, "MemAvailable:"))
    {
        return MemoryInfo { free, total, source: "MemAvailable" };
    }
    // Unknown is not the same as none: a plan that cannot be checked is not refused.
    MemoryInfo { free: u64::MAX, total: u64::MAX, source: "unknown" }
}
