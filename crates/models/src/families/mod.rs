//! One file a family. [`decoder`] holds what they share: the pre-norm decoder of Llama.

pub mod decoder;
pub mod llama;
pub mod mistral;
pub mod qwen2;
pub mod qwen3;
pub mod smollm3;
