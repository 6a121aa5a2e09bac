//! What results are of: commit, date, and what programs say of themselves.

use std::process::Command;

use xshell::Shell;

use crate::{commands, tree};

/// The tree's commit; without a tree, the one that this program was built from if the build said so.
pub(crate) fn commit() -> String {
    let built = option_env!("PORTOLAN_COMMIT").unwrap_or("unknown").to_owned();
    let root = tree::root();
    match Shell::new() {
        Ok(sh) if root.is_dir() => {
            sh.change_dir(root);
            Some(commands::commit(&sh)).filter(|commit| commit != "unknown").unwrap_or(built)
        }
        _ => built,
    }
}

/// Now, in UTC: `2026-01-31T12:00:00Z`.
pub(crate) fn date() -> String {
    said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).unwrap_or_else(|| "unknown".to_owned())
}

/// The first line that a program prints; none if it is not there or fails.
pub(crate) fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_says_nothing() {
        assert_eq!(said("no-such-program", &[]), None);
        assert_eq!(said("false", &[]), None);
        assert_eq!(said("echo", &["a b"]).as_deref(), Some("a b"));
        assert_eq!(date().len(), "2026-01-31T12:00:00Z".len());
    }
}
