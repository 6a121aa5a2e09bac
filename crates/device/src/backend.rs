//! What a backend must offer. Portable, one level above the runtime's own calls.
//!
//! No validation happens here: ranges and kinds are checked by [`crate::Device`] and [`crate::Stream`]
//! before a backend is called. Errors are for what a caller cannot foresee.
//!
//! How the four users meet these traits:
//! * **CUDA and ROCm**: `alloc` is `cuMemAlloc`/`hipMalloc`; pinned memory is portable, so every device of
//!   the process may copy from it; `copy` is asynchronous and ordered by its stream; events carry no timing.
//! * **A batch**: one step is one sequence of launches on one stream; what differs between rows is data in
//!   device buffers, so nothing here knows of rows.
//! * **A state-space layer**: its state is a [`crate::Buffer`] like a page pool; snapshot and fork are `copy`.
//! * **Graphs**: between `begin_capture` and `end_capture` a stream records in place of running; the CPU
//!   answers `Unsupported`, and the step then runs without.

use std::{fmt::Debug, ptr::NonNull, sync::Arc};

use crate::{
    DeviceCaps, DeviceError, KernelResources, KernelSource, LaunchConfig, MemoryInfo, MemoryKind, Result,
    Slice, cpu::Team, rocm::memory_sources::MemorySources,
};

/// One allocation, as a backend hands it out. Not an owner: [`crate::Buffer`] is.
#[derive(Debug)]
pub struct RawMemory {
    /// Address for kernels.
    pub device_addr: u64,
    /// Address for the host, where it has one.
    pub host: Option<NonNull<u8>>,
    /// Bytes.
    pub len: usize,
    /// Where it lives.
    pub kind: MemoryKind,
}

// SAFETY: `RawMemory` is a pair of addresses; whoever dereferences them answers for the access.
unsafe impl Send for RawMemory {}
// SAFETY: as above, shared access to the addresses themselves is harmless.
unsafe impl Sync for RawMemory {}

/// A device's runtime.
pub trait Backend: Send + Sync + Debug {
    /// What the device is.
    fn caps(&self) -> &DeviceCaps;

    /// Free and total memory of the pool that [`MemoryKind::Device`] comes from.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Free and total memory of the pool that a kind of memory comes from.
    fn pool_info(&self, kind: MemoryKind) -> Result<MemoryInfo> {
        match kind {
            MemoryKind::Device => self.memory_info(),
            MemoryKind::Pinned | MemoryKind::Mapped => Ok(crate::cpu::host_memory()),
        }
    }

    /// What each source says of the memory that the device can use, where there are several that speak of several pools.
    fn memory_sources(&self) -> Option<MemorySources> {
        None
    }

    /// Takes `len > 0` bytes, aligned to 256. The content is undefined, but memory that the host sees is
    /// initialised.
    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory>;

    /// Gives an allocation back.
    ///
    /// # Safety
    /// `raw` came from `alloc` of this backend, is freed once, and no work that uses it is still to run.
    unsafe fn free(&self, raw: &RawMemory);

    /// A new stream.
    fn create_stream(&self) -> Result<Box<dyn StreamBackend>>;

    /// A new event, without timing.
    fn create_event(&self) -> Result<Box<dyn EventBackend>>;

    /// Compiles device code, or finds it compiled on disk, and loads it.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] with the compiler's log; `Unsupported` on a device that runs none.
    fn load_kernel(&self, source: &KernelSource<'_>) -> Result<Box<dyn KernelBackend>> {
        let _ = source;
        Err(DeviceError::Unsupported { device: self.caps().id, what: "device code" })
    }

    /// The team of threads that runs the CPU's kernels; none on a GPU.
    fn team(&self) -> Option<&Arc<Team>> {
        None
    }
}

/// An ordered queue of work.
pub trait StreamBackend: Send + Sync + Debug {
    /// Copies `src` to `dst`, of one length, when all earlier work of this stream is done.
    ///
    /// # Safety
    /// Both ranges stay allocated until the copy has run, and nothing else touches them meanwhile.
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()>;

    /// Copies host bytes in; when it returns, `src` may be reused.
    ///
    /// # Safety
    /// Nothing else touches `dst` meanwhile.
    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()>;

    /// Waits for all earlier work of this stream, then copies out.
    ///
    /// # Safety
    /// Nothing writes `src` meanwhile.
    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()>;

    /// Sets every byte of `dst`.
    ///
    /// # Safety
    /// As for `copy`.
    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()>;

    /// Launches a kernel of the same device behind all earlier work of this stream. `args` is the one struct that it
    /// takes.
    ///
    /// # Safety
    /// The struct is the one that the kernel expects, and what its addresses point to stays allocated, and is used by
    /// nobody else against the kernel's use, until it has run.
    unsafe fn launch(&self, kernel: &dyn KernelBackend, config: &LaunchConfig, args: &[u8]) -> Result<()> {
        let _ = (kernel, config, args);
        Err(self.no_kernels())
    }

    /// Marks `event` as complete once all earlier work of this stream is done.
    fn record(&self, event: &dyn EventBackend) -> Result<()>;

    /// Later work of this stream waits for `event`.
    fn wait(&self, event: &dyn EventBackend) -> Result<()>;

    /// Blocks until all work of this stream is done; reports errors of that work.
    fn synchronize(&self) -> Result<()>;

    /// Starts to record work in place of running it.
    fn begin_capture(&self) -> Result<()> {
        Err(self.no_graphs())
    }

    /// Ends the recording and makes it launchable.
    fn end_capture(&self) -> Result<Box<dyn GraphBackend>> {
        Err(self.no_graphs())
    }

    /// The error of a stream that cannot capture.
    fn no_graphs(&self) -> DeviceError;

    /// The error of a stream that runs no device code.
    fn no_kernels(&self) -> DeviceError {
        match self.no_graphs() {
            DeviceError::Unsupported { device, .. } => {
                DeviceError::Unsupported { device, what: "device code" }
            }
            other => other,
        }
    }

    /// For a backend to find its own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A point in a stream.
pub trait EventBackend: Send + Sync + Debug {
    /// Whether the work before it is done.
    fn is_complete(&self) -> Result<bool>;
    /// Blocks until it is.
    fn synchronize(&self) -> Result<()>;
    /// For a backend to find its own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A recorded sequence of work.
pub trait GraphBackend: Send + Sync + Debug {
    /// Runs it on a stream of the same device.
    ///
    /// # Safety
    /// Every buffer that the recording used is still allocated.
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()>;
}

/// A loaded function of device code.
pub trait KernelBackend: Send + Sync + Debug {
    /// What it takes of the device.
    fn resources(&self) -> KernelResources;
    /// For a backend to find its own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}
