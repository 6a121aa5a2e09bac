//! Configurations and files made to harm, on the way that a user's program takes: planned, loaded, one step computed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod config_json;
mod files;
mod gguf_metadata;
mod support;
