//! From a graph to a plan for one device: which ports, which layouts, which buffers, how much memory.
//!
//! Planning reads no weights. What no port can run, or no memory can hold, is refused here.

mod choose;
mod lower;
mod memory;
mod place;
#[cfg(test)]
mod tests;

pub(crate) use choose::Target;
pub(crate) use lower::{Lowered, LoweredNode, lower};
pub(crate) use memory::memory_plan;
pub(crate) use place::{Placement, place};
