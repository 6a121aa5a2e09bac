//! The host's processor as a device: host memory, streams that run at once, and a team of threads.

mod device;
mod memory;
mod stream;
mod team;

pub(crate) use memory::host_memory;

pub use device::{CpuBackend, CpuOptions, physical_cores};
pub use team::Team;
