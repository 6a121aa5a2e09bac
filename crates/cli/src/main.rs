//! The program `portolan`: flags in, text out. No logic of its own; everything it does is a call into the `portolan`
//! library.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this crate is for")]

mod args;
mod commands;
mod output;
mod progress;
mod signals;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    let args = Args::parse();
    output::start_log(args.verbose);
    signals::file_limits_are_errors();
    let mut code = ExitCode::SUCCESS;
    // A variable that cannot be read is told of at once, and not when something comes to read it.
    let checked = portolan::check_environment().map_err(anyhow::Error::from);
    let result = checked.and_then(|()| match args.command {
        Command::Run(args) => commands::run::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::CompareTraces(args) => commands::compare_traces::run(args).map(|verdict| code = verdict),
        Command::Pull(args) => commands::pull::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Ports(args) => commands::ports::run(args),
        Command::Bench(args) => commands::bench::run(args),
    });
    match result {
        Ok(()) => code,
        // Whoever reads our output has gone (`| head`): that is no failure of ours.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", output::describe(&error));
            ExitCode::from(1)
        }
    }
}
