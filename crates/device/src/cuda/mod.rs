//! NVIDIA GPUs through the CUDA driver, opened at run time.
//!
//! Three layers, as in cudarc, which gives the first two: its `sys` is the table of the driver's functions, its `result`
//! makes error values of their codes, and the modules here are the safe layer that [`crate::backend`] asks for. The
//! compiler has a table of its own (`crate::rtc`): cudarc opens libnvrtc under the names of the version that it was built for, and
//! a machine may have a later one alone.

mod compile;
mod device;
mod error;
mod memory;
mod module;
mod stream;

pub use compile::Compiler;
pub use device::{CudaBackend, count};
