//! Checkpoint files to device memory.
//!
//! [`Checkpoint::open`] reads headers only: names, shapes and [`Encoding`]s of every tensor, the config and
//! the vocabulary. An [`Expr`] says how a model's weight is made from a checkpoint's tensors. [`plan_load`] resolves
//! the expressions and adds up bytes, still without reading a tensor. [`load`] then reads, rearranges and
//! uploads, and says in [`LoadTransferStats`] what it did; a [`Loader`] does so all at once or weight by weight.
//!
//! This crate knows no op: what a layout means to a kernel is the kernels crate's business, which hands in a
//! [`Repack`].
#![forbid(unsafe_code)]

pub mod checkpoint;
mod config_json;
mod convert;
mod decode;
mod encoding;
mod error;
mod expr;
mod file;
mod fill;
pub mod gguf;
mod load;
mod loader;
mod memory_advice;
mod memory_plan;
mod mlx;
mod pack;
mod peek;
mod quant_config;
mod quantize;
mod read;
mod reading;
mod resolve;
mod rows;
pub mod safetensors;
mod safetensors_write;
mod staged;
mod stats;

pub use checkpoint::{Checkpoint, ConfigSource, Dialect, Source, Span, TensorInfo};
pub use decode::{Planes, decode_row, decode_rows};
pub use encoding::{BlockScale, Element, Encoding, Foreign, Layout, Plane, SUPER_GROUP};
pub use error::{NotWeights, WeightError};
pub use expr::{Expr, Resolved};
pub use load::{
    BlockRows, LoadMode, LoadOptions, LoadPlan, LoadRequest, PlannedTensor, Repack, WeightTensor, load,
    plan_load,
};
pub use loader::Loader;
pub use memory_plan::{DevicePools, MemoryItem, MemoryPlan, Pool, human_bytes};
pub use quantize::{BadValue, can_quantize, quantize_rows};
pub use rows::{CheckpointReader, WeightRows};
pub use safetensors_write::{NewTensor, SafetensorsWriter, cut_into_shards, new_header};
pub use stats::LoadTransferStats;

/// The result of a call into this crate.
pub type Result<T, E = WeightError> = std::result::Result<T, E>;
