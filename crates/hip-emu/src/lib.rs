//! A HIP runtime and hipRTC without a GPU. The README tells how it is used; the exported functions are those of HIP's
//! public headers, under their names, and a few `hip_emu_*` for tests.
//!
//! A call goes through `api`, which checks it and queues `work` on a `stream`, whose thread does it.
//! `compile` makes a shared object of a kernel's text and the headers in `include`; `module` opens it; `launch`
//! runs it on a `block` runner, whose threads are `fiber`s. `memory` keeps allocations between pages that fault;
//! `fault` turns such a fault into an error; `clocks` knows what is ordered before what.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

pub mod api;
mod block;
mod clocks;
mod codes;
mod compile;
mod device_abi;
mod event;
mod fault;
mod fiber;
mod graph;
mod handles;
mod inject;
mod launch;
mod memory;
mod module;
mod profile;
mod report;
mod rewrite;
mod settings;
mod shadow;
mod state;
mod stream;
mod trap;
mod work;
