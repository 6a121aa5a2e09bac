//! Devices, memory, streams, events and graphs.
//!
//! This crate is the floor of Portolan. It knows what a device is, how memory on it is taken and given
//! back, and in which order work on it happens. It knows no checkpoint, no model and no op: those are
//! one crate up, which also is where arguments are validated.
//!
//! | concept  | CPU                        | CUDA             | ROCm            |
//! |----------|----------------------------|------------------|-----------------|
//! | [`Device`] | the host and a [`cpu::Team`] | a primary context | a HIP device   |
//! | [`Buffer`] | aligned host memory        | `cuMemAlloc`     | `hipMalloc`     |
//! | pinned [`Buffer`] | the same           | `cuMemHostAlloc` | `hipHostMalloc` |
//! | [`Stream`] | runs at once               | `CUstream`       | `hipStream_t`   |
//! | [`Event`]  | always complete            | `CUevent`        | `hipEvent_t`    |
//! | [`Graph`]  | not offered                | `CUgraphExec`    | `hipGraphExec_t`|
//!
//! Every backend directory holds the same module names, so a missing piece is seen at once.
//! A backend that is not there (no driver, no library) is a [`DeviceError`], and the CPU goes on working.

mod arena;
pub mod backend;
pub mod caps;
pub mod cpu;
pub mod cuda;
mod device;
mod dtype;
pub mod env;
mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod kernel;
mod kernel_cache;
mod memory;
mod placement;
pub mod rocm;
mod rtc;
mod staging;
mod stream;

pub use arena::{WeightArena, weight_memory_kind};
pub use caps::{DeviceCaps, DeviceId, DeviceKind};
pub use device::{Device, DeviceChoice, MemoryInfo};
pub use dtype::DType;
pub use error::DeviceError;
pub use kernel::{Kernel, KernelResources, KernelSource, LaunchConfig};
pub use memory::{Buffer, MemoryKind, Slice};
pub use placement::{WorkingBytes, WorkingMemory};
pub use staging::{SlotPart, StagingCounters, StagingOptions, StagingPool, StagingSlot, Transfer};
pub use stream::{Event, Graph, Stream};

/// The result of a call into a device.
pub type Result<T, E = DeviceError> = std::result::Result<T, E>;
