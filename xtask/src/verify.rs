//! `cargo xtask verify`: the gates, one after the other, and a table of how they end.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use xshell::Shell;

use crate::gates::{self, Flags};
use crate::outcome::Outcome;
use crate::report::{self, timed};
use crate::{commands, docpaths, gendocs, layers, records, test_run, verify_cuda, versions};

/// What to run, and where to write it down.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask verify --only layers --only docpaths")]
pub(crate) struct Args {
    #[command(flatten)]
    gates: Flags<Gate>,
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
    for gate in args.gates.chosen() {
        rows.push(timed(gates::name(&gate), || gate.run(root, &sh)));
    }
    args.gates.end(&rows, || {
        Ok(serde_json::json!({
            "commit": commands::commit(&sh),
            "rustc": commands::rustc(&sh)?,
            "gates": report::json(&rows),
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_chosen_by_name() {
        assert_eq!(Flags::<Gate>::of(&[], &[]).chosen().len(), 11);
        assert_eq!(Flags::of(&[Gate::Tests, Gate::Fmt], &[]).chosen(), [Gate::Fmt, Gate::Tests]);
        assert!(!Flags::of(&[], &[Gate::Tests]).chosen().contains(&Gate::Tests));
    }
}
