//! The GGUF format, versions 2 and 3, little-endian: metadata, tensor table, aligned tensor data.
//!
//! Dimensions stand innermost first in the file and are turned round here. Quantized tensors are rows of
//! blocks that hold scales and codes together; [`split_blocks`] takes them apart.

mod bits;
mod block_format;
mod blocks;
mod metadata;
mod reader;
mod split_files;
mod tensors;

pub use block_format::BlockFormat;
pub use blocks::{BadBlock, bias_of, split_blocks};
pub use metadata::{Array, Metadata, Value};
pub(crate) use split_files::{open, split_name};
