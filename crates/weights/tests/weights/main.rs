//! Checkpoints opened and loaded through the public interface, on the CPU device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod absurd_headers;
mod apu;
mod bad_gguf;
mod bad_safetensors;
mod expressions;
mod far_offsets;
mod faults;
mod folders;
mod hostile_bytes;
mod hostile_folders;
mod loading;
mod mlx_modules;
mod oracle_checkpoints;
mod quant_vectors;
mod quantizing;
mod raw_blocks;
mod staged;
mod support;
