//! `cargo xtask verify`: the gates, one after the other, and a table of how they end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use xshell::Shell;

use crate::outcome::Outcome;
use crate::report::{self, holds, table, timed};
use crate::{commands, docpaths, gendocs, layers, records, test_run, verify_cuda, versions};

/// What to run, and where to write it down.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify --only layers --only docpaths")]
pub(crate) struct Args {
    /// Run this gate and no other. May be given several times.
    #[arg(long, value_name = "GATE")]
    only: Vec<Gate>,
    /// Leave this gate out. May be given several times.
    #[arg(long, value_name = "GATE")]
    skip: Vec<Gate>,
    /// Write the results to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a gate that was asked for could not be run.
    #[arg(long)]
    require: bool,
}

/// A gate; quick ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gate {
    /// The format is rustfmt's.
    Fmt,
    /// The order of the crates, and where unsafe code and names of backends may stand.
    Layers,
    /// Every path that a document names is there.
    Docpaths,
    /// LOCAL_FIXES.md, the marks in the tree and the tests that it names agree.
    Records,
    /// All crates and documents name one version of Portolan.
    Versions,
    /// The generated documents are up to date.
    Gendocs,
    /// Licences, sources and doubled crates.
    Deny,
    /// A kernel of each variant of CUDA compiles, within its budget.
    Cuda,
    /// Clippy has no warning.
    Clippy,
    /// Rustdoc has no warning.
    Doc,
    /// All tests pass.
    Tests,
}

impl Gate {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(crate) fn run(self, root: &Path, sh: &Shell) -> Result<Outcome> {
        Ok(match self {
            Self::Fmt => commands::fmt(sh),
            Self::Cuda => verify_cuda::sample()?,
            Self::Clippy => commands::clippy(sh),
            Self::Doc => commands::doc(sh),
            Self::Deny => commands::deny(sh),
            Self::Gendocs => gendocs::gate(root),
            Self::Layers => Outcome::of("dependencies and sources of every crate", layers::check(root)?),
            Self::Docpaths => match docpaths::check(root)? {
                (0, _) => {
                    Outcome::Fail(vec!["no document names a path: is this the root of the tree?".to_owned()])
                }
                (count, findings) => Outcome::of(format!("{count} paths"), findings),
            },
            Self::Records => records::gate(root)?,
            Self::Versions => versions::gate(root)?,
            Self::Tests => test_run::gate(root)?,
        })
    }
}

/// Runs the gates; true if none fails.
///
/// # Errors
/// If the report cannot be written. A gate that breaks counts as failed.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let sh = Shell::new()?;
    sh.change_dir(root);
    let mut rows = Vec::new();
    for gate in chosen(args) {
        rows.push(timed(gate.name(), || gate.run(root, &sh)));
    }
    println!("\n{}", table(&rows));
    if let Some(path) = &args.json {
        let report = serde_json::json!({
            "commit": commands::commit(&sh),
            "rustc": commands::rustc(&sh)?,
            "gates": report::json(&rows),
        });
        fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(holds(&rows, args.require))
}

fn chosen(args: &Args) -> Vec<Gate> {
    let wanted =
        |gate: &&Gate| (args.only.is_empty() || args.only.contains(gate)) && !args.skip.contains(gate);
    Gate::value_variants().iter().filter(wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &[Gate], skip: &[Gate]) -> Args {
        Args { only: only.to_vec(), skip: skip.to_vec(), json: None, require: false }
    }

    #[test]
    fn gates_are_chosen_by_name() {
        assert_eq!(chosen(&args(&[], &[])).len(), 11);
        assert_eq!(chosen(&args(&[Gate::Tests, Gate::Fmt], &[])), [Gate::Fmt, Gate::Tests]);
        assert!(!chosen(&args(&[], &[Gate::Tests])).contains(&Gate::Tests));
    }
}
