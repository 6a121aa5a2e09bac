//! The gates that are a command of cargo.

use std::path::Path;

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::outcome::Outcome;
use crate::tree::shown;

/// `cargo fmt --check`, which names the files and not each difference.
pub(crate) fn fmt(sh: &Shell) -> Outcome {
    let output = match cmd!(sh, "cargo fmt --all -- --check -l").ignore_status().output() {
        Ok(output) => output,
        Err(error) => return Outcome::Fail(vec![error.to_string()]),
    };
    let (root, listed) = (sh.current_dir(), String::from_utf8_lossy(&output.stdout));
    let mut findings: Vec<_> = listed.lines().map(|line| shown(&root, Path::new(line))).collect();
    if findings.is_empty() && !output.status.success() {
        findings.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Outcome::of("cargo fmt --all --check", findings)
}

/// Clippy, with warnings denied.
pub(crate) fn clippy(sh: &Shell) -> Outcome {
    let run = cmd!(sh, "cargo clippy --workspace --all-targets -- -D warnings").run();
    of("cargo clippy --workspace --all-targets", run)
}

/// The documentation builds without a warning.
pub(crate) fn doc(sh: &Shell) -> Outcome {
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    of("cargo doc --workspace --no-deps", cmd!(sh, "cargo doc --workspace --no-deps").run())
}

/// Licences, sources and doubled crates, by deny.toml. Known vulnerabilities are not asked for: that needs a
/// database from the network, and the answer would change without a change of the tree.
pub(crate) fn deny(sh: &Shell) -> Outcome {
    if !has_deny(sh) {
        return Outcome::Skipped("cargo-deny is not installed: cargo install cargo-deny --locked".to_owned());
    }
    let run = cmd!(sh, "cargo deny --workspace check --hide-inclusion-graph bans licenses sources").run();
    of("cargo deny check bans licenses sources", run)
}

fn has_deny(sh: &Shell) -> bool {
    cmd!(sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}

fn of(what: &str, run: xshell::Result<()>) -> Outcome {
    match run {
        Ok(()) => Outcome::Pass(what.to_owned()),
        Err(error) => Outcome::Fail(vec![error.to_string()]),
    }
}

/// The commit of the tree, with `-dirty` if files differ from it; `unknown` without git.
pub(crate) fn commit(sh: &Shell) -> String {
    let commit = cmd!(sh, "git rev-parse --short=12 HEAD").quiet().ignore_stderr().read();
    let Ok(commit) = commit else { return "unknown".to_owned() };
    let changed = cmd!(sh, "git status --porcelain").quiet().ignore_stderr().read().unwrap_or_default();
    if changed.is_empty() { commit } else { format!("{commit}-dirty") }
}

/// The compiler.
pub(crate) fn rustc(sh: &Shell) -> Result<String> {
    Ok(cmd!(sh, "rustc --version").quiet().read()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    const MANIFEST: &str = "[workspace]\n[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
                            license = \"GPL-2.0-only\"\n";
    const GOOD: &str =
        "//! Small.\n\n/// See [`g`].\npub fn f() {\n    g()\n}\n\n/// Nothing.\npub fn g() {}\n";

    /// How a gate ends in a crate with this source, with this deny.toml.
    fn word(gate: fn(&Shell) -> Outcome, source: &str, licences: &str) -> &'static str {
        let deny = format!("[licenses]\nallow = [{licences}]\n");
        let dir = sample(&[("Cargo.toml", MANIFEST), ("src/lib.rs", source), ("deny.toml", &deny)]);
        let sh = Shell::new().unwrap();
        sh.change_dir(dir.path());
        sh.set_var("CARGO_TARGET_DIR", dir.path().join("target"));
        gate(&sh).word()
    }

    #[test]
    fn each_command_passes_a_good_crate_and_fails_a_broken_one() {
        for (gate, broken) in [
            (fmt as fn(&Shell) -> Outcome, GOOD.replace("    g()", "g ( )")),
            (clippy, GOOD.replace("g()", "g();\n    return;")),
            (doc, GOOD.replace("[`g`]", "[`nothing`]")),
        ] {
            assert_eq!(word(gate, GOOD, ""), "PASS", "{broken}");
            assert_eq!(word(gate, &broken, ""), "FAIL", "{broken}");
        }
    }

    #[test]
    fn a_licence_that_is_not_allowed_fails() {
        if !has_deny(&Shell::new().unwrap()) {
            portolan_testkit::skipped("cargo-deny is not installed");
            return;
        }
        assert_eq!(word(deny, GOOD, "\"GPL-2.0-only\""), "PASS");
        assert_eq!(word(deny, GOOD, "\"MIT\""), "FAIL");
    }
}
