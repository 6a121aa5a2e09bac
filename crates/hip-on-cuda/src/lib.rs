//! A HIP runtime and hipRTC on an NVIDIA GPU. The README tells what it is for; the exported functions are those of HIP's
//! public headers that Portolan opens, under their names.
//!
//! `api` has the functions, each of which is a call of the `driver` (libcuda, opened at run time) or of the compiler:
//! `compile` puts a prelude before a kernel's text and gives it to `nvrtc`. Handles and addresses are CUDA's own.
#![cfg(target_os = "linux")]

pub mod api;
mod codes;
pub mod compile;
mod context;
mod driver;
mod nvrtc;
mod shared;
