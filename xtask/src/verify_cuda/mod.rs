//! `cargo xtask verify-cuda`: what can be proved of the CUDA side on this machine.

mod compile;

use std::time::Instant;

use anyhow::Result;

use crate::outcome::Outcome;

/// What to run.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify-cuda --full")]
pub(crate) struct Args {
    /// Compile every kernel, and not a sample of them.
    #[arg(long)]
    full: bool,
    /// Fail if a gate could not be run.
    #[arg(long)]
    require: bool,
}

/// Runs the gates; whether all hold.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut good = true;
    for target in compile::TARGETS {
        let started = Instant::now();
        let outcome = compile::gate(target, args.full)?;
        println!(
            "{:<8} compile {target}: {} [{:.1} s]",
            outcome.word(),
            outcome.detail(),
            started.elapsed().as_secs_f64()
        );
        if let Outcome::Fail(findings) = &outcome {
            findings.iter().take(20).for_each(|finding| println!("    {finding}"));
        }
        good &= match outcome {
            Outcome::Pass(_) => true,
            Outcome::Fail(_) => false,
            Outcome::Skipped(_) => !args.require,
        };
    }
    Ok(good)
}
