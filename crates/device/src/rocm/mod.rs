//! AMD GPUs through ROCm's HIP runtime, opened at run time.
//!
//! Three layers, as in [`crate::cuda`]: [`sys`] is the table of the runtime's functions, `result` makes results of its
//! codes, and the other modules are the safe layer that [`crate::backend`] asks for. The table is our own, and every
//! code is a number, since a later runtime returns codes that no list of today has; a test holds the table against a
//! declaration made by others. One build serves machines with and without ROCm.

pub mod arch;
mod bounce;
mod compile;
mod device;
mod error;
mod library;
mod memory;
pub mod memory_sources;
mod module;
mod result;
mod stream;
pub mod sys;

pub use compile::Compiler;
pub use device::{RocmBackend, count};
pub use error::error_name;
