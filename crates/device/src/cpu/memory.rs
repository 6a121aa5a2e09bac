use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

use crate::{DeviceError, DeviceId, MemoryInfo, MemoryKind, Result, backend::RawMemory};

/// Whole cache lines, and what a GPU's allocator gives as well.
const ALIGN: usize = 256;

/// From this size on, memory is taken by whole huge pages, and the kernel is asked for such: a step reads all of
/// its weights, and with pages of 4 KiB it spends its time in page tables.
const HUGE: usize = 2 << 20;

fn layout_of(len: usize) -> Option<Layout> {
    let align = if len >= HUGE { HUGE } else { ALIGN };
    Layout::from_size_align(len, align).ok().filter(|l| l.size() > 0)
}

pub(super) fn alloc_host(device: DeviceId, len: usize, kind: MemoryKind) -> Result<RawMemory> {
    let refused =
        || DeviceError::OutOfMemory { device, pool: "host", asked: len, available: Some(host_memory().free) };
    let layout = layout_of(len).ok_or_else(refused)?;
    // Every byte is initialised, so that a `&mut [u8]` of it is sound. Large blocks are mapped, whose pages the kernel
    // hands out zeroed when they are first touched: by whoever fills them, on all of its threads, and not here.
    let ptr = if len >= HUGE {
        map_zeroed(len)
    } else {
        // SAFETY: the layout's size is not zero.
        unsafe { alloc_zeroed(layout) }
    };
    let host = NonNull::new(ptr).ok_or_else(refused)?;
    Ok(RawMemory { device_addr: host.as_ptr() as u64, host: Some(host), len, kind })
}

/// Fresh zero pages, with huge ones asked for; null when there are none.
fn map_zeroed(len: usize) -> *mut u8 {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (flags, protection) = (MapFlags::PRIVATE | MapFlags::NORESERVE, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let Ok(ptr) = (unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }) else {
        return std::ptr::null_mut();
    };
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        // Advice only: where huge pages are off the memory is as good, and slower.
        // SAFETY: the range was mapped above, and the advice changes no content.
        let _ = unsafe { madvise(ptr, len, Advice::LinuxHugepage) };
    }
    ptr.cast()
}

/// # Safety
/// `raw` came from [`alloc_host`] and is freed once.
pub(super) unsafe fn free_host(raw: &RawMemory) {
    let (Some(host), Some(layout)) = (raw.host, layout_of(raw.len)) else { return };
    if raw.len >= HUGE {
        // SAFETY: the whole mapping of `map_zeroed`, which the caller promises nobody uses any more.
        let _ = unsafe { rustix::mm::munmap(host.as_ptr().cast(), raw.len) };
    } else {
        // SAFETY: the same pointer and layout as in `alloc_host`.
        unsafe { dealloc(host.as_ptr(), layout) }
    }
}

/// What the kernel says can be taken without swapping: `MemAvailable`, or `sysinfo` where there is no /proc.
pub(crate) fn host_memory() -> MemoryInfo {
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
