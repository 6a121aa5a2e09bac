//! A device that fails: each call of a load and of steps in turn, with each kind of error. Always a typed error or the
//! right tokens, never a panic, a hang or something left behind, and the next model loads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cores;
mod engines;
mod support;
