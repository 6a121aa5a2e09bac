//! Portolan runs large language models from the checkpoints people already have.
//!
//! ```no_run
//! use portolan::{Engine, GenerateOptions, LoadOptions};
//!
//! fn main() -> Result<(), portolan::Error> {
//!     let engine = Engine::load("smollm2", &LoadOptions::default())?;
//!     let mut chat = engine.chat()?;
//!     let mut answer = chat.send("What is the capital of France?", &GenerateOptions::tokens(64))?;
//!     for piece in &mut answer {
//!         print!("{}", piece?.text);
//!     }
//!     let summary = answer.finish()?;
//!     println!("\n{:?}, {:.1} tokens/s", summary.reason, summary.stats.decode_rate());
//!     Ok(())
//! }
//! ```
//!
//! [`Engine`] is for programs that want text: any number of threads may ask one for text at a time, and what they
//! ask for is computed in shared steps. [`Core`] is for programs that want logits and drive the steps themselves.
#![forbid(unsafe_code)]

mod cache;
mod core;
pub mod docs;
mod engine;
mod environment;
mod error;
pub mod hub;
pub mod loader;
mod options;
mod plan;
mod program;
pub mod sample;
pub mod tools;

pub use core::{Core, Plan, SeqId, SeqStep, Want};
pub use engine::{
    Chat, Engine, FinishReason, GenerateOptions, Generation, GenerationStats, ModelInfo, Piece, Prompt,
    Session, Summary,
};
pub use environment::check_environment;
pub use error::Error;
pub use options::{CacheType, DEFAULT_CONTEXT, LoadOptions};
pub use portolan_device as device;
pub use portolan_kernels as kernels;
pub use portolan_models as models;
pub use portolan_text as text;
pub use portolan_weights as weights;
pub use sample::{SamplingParams, TokenLogprob};

/// The README's program is compiled with the tests of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The result of a call into Portolan.
pub type Result<T, E = Error> = std::result::Result<T, E>;
