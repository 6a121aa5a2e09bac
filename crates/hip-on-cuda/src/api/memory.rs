//! Memory. Flags have the same numbers in both, and so do addresses on host and device.

use std::ffi::{c_int, c_uint, c_void};

use super::{forwarded, put};
use crate::codes::SUCCESS;

forwarded! {
    /// Free and total bytes of the current device's memory.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) |cu| (cu.cuMemGetInfo_v2)(free, total);

    /// Takes memory of the device; of no bytes it is no address, which CUDA would call an error.
    fn hipMalloc(address: *mut *mut c_void, bytes: usize) |cu| match bytes {
        0 => put(address, std::ptr::null_mut()),
        _ => (cu.cuMemAlloc_v2)(address.cast(), bytes),
    };

    /// Gives memory of the device or managed memory back.
    fn hipFree(address: *mut c_void) |cu| if address.is_null() { SUCCESS } else { (cu.cuMemFree_v2)(address as u64) };

    /// Takes pinned memory of the host.
    fn hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) |cu| match bytes {
        0 => put(address, std::ptr::null_mut()),
        // Portable, mapped, write-combined. HIP's other flags say how coherent it is: CUDA's always is.
        _ => (cu.cuMemHostAlloc)(address, bytes, flags & 7),
    };

    /// Gives pinned memory of the host back.
    fn hipHostFree(address: *mut c_void) |cu| if address.is_null() { SUCCESS } else { (cu.cuMemFreeHost)(address) };

    /// Takes memory that moves between host and device.
    fn hipMallocManaged(address: *mut *mut c_void, bytes: usize, flags: c_uint) |cu| match bytes {
        0 => put(address, std::ptr::null_mut()),
        _ => (cu.cuMemAllocManaged)(address.cast(), bytes, flags),
    };

    /// Copies, in the order of a stream. CUDA tells by the addresses whose memory it is, whatever `kind` says.
    fn hipMemcpyAsync(dst: *mut c_void, src: *const c_void, bytes: usize, _kind: c_uint, stream: *mut c_void)
        |cu| (cu.cuMemcpyAsync)(dst as u64, src as u64, bytes, stream);

    /// Sets every byte, in the order of a stream.
    fn hipMemsetAsync(dst: *mut c_void, value: c_int, bytes: usize, stream: *mut c_void)
        |cu| (cu.cuMemsetD8Async)(dst as u64, value as u8, bytes, stream);
}
