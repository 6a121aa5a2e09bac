//! The programs that the gates run: through cargo, or built elsewhere.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::tree;

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// `portolan` itself.
    Portolan,
    /// The conformance suite on a GPU.
    Conformance,
    /// The families against their references.
    Oracle,
    /// What only a GPU has.
    Gpu,
}

impl Program {
    /// Its name in a folder of prebuilt programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Portolan => "portolan",
            Program::Conformance => "conformance",
            Program::Oracle => "oracle",
            Program::Gpu => "gpu",
        }
    }

    /// How cargo runs it.
    fn cargo(self) -> &'static [&'static str] {
        match self {
            Program::Portolan => &["run", "--quiet", "-p", "portolan-cli", "--"],
            Program::Conformance => &["test", "-p", "portolan-kernels", "--test", "gpu"],
            Program::Oracle => &["test", "-p", "portolan", "--test", "oracle"],
            Program::Gpu => &["test", "-p", "portolan", "--test", "gpu"],
        }
    }
}

/// Where the programs come from.
#[derive(Debug)]
pub(super) enum Programs {
    /// Cargo, in this tree.
    Cargo(PathBuf),
    /// A folder of programs.
    Prebuilt(PathBuf),
}

impl Programs {
    /// Where they come from; without either, the reason.
    pub(super) fn find(prebuilt: Option<&Path>) -> Result<Self, String> {
        if let Some(dir) = prebuilt {
            // A program by a relative path would be looked for where it runs.
            let dir = dir.canonicalize().map_err(|e| format!("--prebuilt {}: {e}", dir.display()))?;
            return Ok(Programs::Prebuilt(dir));
        }
        let root = tree::root();
        let has_cargo = Command::new("cargo").arg("--version").output().is_ok_and(|o| o.status.success());
        match has_cargo && root.join("Cargo.toml").is_file() {
            true => Ok(Programs::Cargo(root)),
            false => Err("no cargo or no source tree here; give --prebuilt DIR".to_owned()),
        }
    }

    /// A command that runs a program; if it is not there, the reason.
    pub(super) fn command(&self, program: Program) -> Result<Command, String> {
        match self {
            Programs::Cargo(root) => {
                let mut command = Command::new("cargo");
                command.current_dir(root).args(program.cargo());
                Ok(command)
            }
            Programs::Prebuilt(dir) => {
                let path = dir.join(program.name());
                match path.is_file() {
                    true => Ok(Command::new(path)),
                    false => Err(format!("{} is not there", path.display())),
                }
            }
        }
    }

    /// The folder with reference checkpoints of this name (`tiny/llama`): the tree's own, else `PORTOLAN_ORACLE`'s.
    pub(super) fn oracle(&self, name: &str) -> Option<PathBuf> {
        let own = match self {
            Programs::Cargo(root) => Some(root.join("crates/testkit/data")),
            Programs::Prebuilt(dir) => Some(dir.join("data")),
        };
        let other = std::env::var_os("PORTOLAN_ORACLE").filter(|root| !root.is_empty()).map(PathBuf::from);
        own.into_iter().chain(other).map(|root| root.join(name)).find(|path| path.is_dir())
    }
}
