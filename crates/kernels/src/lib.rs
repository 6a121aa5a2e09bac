//! Ops, the chart of kernel ports, launches, and the CPU's kernels.
//!
//! An [`Op`] is a step of a model at the granularity of a transformer's paper. A [`Graph`] is a list of them.
//! For each op and device the [`chart`] says whether a kernel port exists ([`has_kernel_port`]) and which of
//! its variants serves a given use ([`select_port`]). Planner, launch, conformance suite, benchmarks and
//! documentation all read that one chart.
//!
//! *Primitive* ops must have a port on a device that runs a model with them. *Fused* ops need not: where there
//! is no port the planner takes the [`decompose`]d form.
//!
//! How the users of these types meet them:
//! * **A batch**: every value has T rows (or R selected rows); rows may belong to different sequences. What
//!   differs between rows (ids, positions, page tables) lies in [`StepBuffers`], never in an argument.
//! * **CUDA and ROCm**: a [`Launch`] holds device addresses fixed when the program is built; a port turns it into
//!   one `repr(C)` argument struct once, and a captured graph replays it.
//! * **A state-space layer**: its cache is [`CacheKind::State`], found through the sequence's slot.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod chart;
mod chart_docs;
mod chart_log;
mod check;
pub mod conformance;
mod cost;
pub mod cpu;
mod decompose;
mod error;
pub mod exec;
pub mod gpu;
mod graph;
mod launch;
mod op;
pub mod rope;
mod row_codes;
mod takes;

pub use chart::{Decline, OpSpec, PortPolicy, Variant, has_kernel_port, select_port};
pub use chart_docs::{PortRow, PortVariant, ports_md, ports_table};
pub use chart_log::{log_choice, port_line};
pub use cost::{Context, Cost};
pub use decompose::decompose;
pub use error::KernelError;
pub use gpu::GpuPrograms;
pub use graph::{
    CacheDecl, CacheId, CacheKind, Graph, GraphBuilder, Node, RowSet, ValueId, ValueInfo, ValueType,
    WeightDecl, WeightId,
};
pub use launch::{CacheView, Launch, PAGE_TOKENS, StepBuffers, StepShape, View, activation_dtype, row_bytes};
pub use op::{Activation, Op, OpKind, RopeStyle};
pub use row_codes::RowCodes;

/// The result of a call into this crate.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;
