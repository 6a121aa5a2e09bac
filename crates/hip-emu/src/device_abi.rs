//! What the runtime and compiled device code share: the Rust side of `include/hip_emu_device.h`. Both change together,
//! and [`ABI`] with them.

use std::ffi::c_void;

/// The version of these structs, which a compiled module states.
pub(crate) const ABI: u32 = 2;

/// What device code sees of its place in the grid, and the functions that it calls. The header's `hip_emu::context`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) thread: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) block_dim: [u32; 3],
    pub(crate) grid_dim: [u32; 3],
    pub(crate) lane: u32,
    pub(crate) lanes: u32,
    /// All threads of the block wait for one another; `site` names the place in the text.
    pub(crate) barrier: unsafe extern "C" fn(*mut Context, site: *const c_void),
    /// The lanes of a wave give a value each; returns all values, and a bit for each lane that took part.
    pub(crate) exchange:
        unsafe extern "C" fn(*mut Context, value: u64, mask: *mut u64, site: *const c_void) -> *const u64,
    /// Ends the launch with a message. Does not return.
    pub(crate) fail: unsafe extern "C" fn(*mut Context, message: *const i8) -> !,
    /// Watched code is about to touch memory, of whatever kind.
    pub(crate) access: unsafe extern "C" fn(*mut Context, address: *const c_void, size: u64, write: u32),
}

/// A compiled module. The header's `hip_emu::module`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ModuleTable {
    pub(crate) abi: u32,
    /// Where the module finds the context of the running thread.
    pub(crate) context: *mut *mut Context,
    /// All `__shared__` objects of the module.
    pub(crate) shared: *mut u8,
    pub(crate) shared_end: *mut u8,
    /// Dynamic shared memory, which begins with a page.
    pub(crate) dynamic: *mut u8,
    pub(crate) dynamic_bytes: u64,
}

/// A kernel of a module. The header's `hip_emu::kernel`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KernelTable {
    /// Threads that a block may have: of `__launch_bounds__`, or 1024.
    pub(crate) threads: u32,
    pub(crate) params: u32,
    /// Sizes and alignments of the parameters.
    pub(crate) sizes: *const u32,
    pub(crate) aligns: *const u32,
    /// Runs one thread.
    pub(crate) call: unsafe extern "C" fn(*const *mut c_void),
}
