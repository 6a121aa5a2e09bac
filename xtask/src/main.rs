//! `cargo xtask`: the checks and generators of the Portolan tree.
#![forbid(unsafe_code)]
// A program for a terminal: printing is its work.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod about;
mod commands;
mod compare_bench;
mod compile_gate;
mod docpaths;
mod gates;
mod gendocs;
mod gpu_guard;
mod layers;
mod outcome;
mod records;
mod report;
mod reports;
mod rust_source;
mod synth;
mod test_run;
mod tree;
mod verify;
mod verify_cuda;
mod verify_neon;
mod verify_rocm;
mod versions;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks and generators of the Portolan tree.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every gate that a change must pass, and print a table of them.
    Verify(verify::Args),
    /// Prove what can be proved of the CUDA side on this machine.
    VerifyCuda(verify_cuda::Args),
    /// Prove what can be proved of the ROCm side, with or without an AMD GPU.
    VerifyRocm(verify_rocm::Args),
    /// Compare two results of interleaved benchmark runs, pair by pair.
    CompareBench(compare_bench::Args),
    /// Prove the CPU's kernels for aarch64, under QEMU where the machine is another.
    VerifyNeon(verify_neon::Args),
    /// Run commands while no other process uses a GPU, and say if one did after all.
    GpuGuard(gpu_guard::Args),
    /// What `verify-rocm` runs in a process of its own.
    #[command(hide = true)]
    HiprtcFrontEnd(verify_rocm::front_end::ChildArgs),
    /// Write the generated documents: docs/environment.md and docs/ports.md.
    Gendocs,
    /// Write a checkpoint with the shapes of a published model and random weights. Needs no source tree.
    Synth(synth::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Task::Verify(args) => verify::run(&tree::root(), &args),
        Task::VerifyCuda(args) => verify_cuda::run(&args),
        Task::VerifyRocm(args) => verify_rocm::run(&args),
        Task::VerifyNeon(args) => verify_neon::run(&args),
        Task::HiprtcFrontEnd(args) => verify_rocm::front_end::child(&args),
        Task::CompareBench(args) => return compare_bench::main(&args),
        // Its status is that of what it runs.
        Task::GpuGuard(args) => return gpu_guard::main(&args),
        Task::Gendocs => gendocs::write(&tree::root()).map(|()| true),
        Task::Synth(args) => synth::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
