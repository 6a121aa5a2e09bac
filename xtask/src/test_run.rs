//! The gate that runs the tests, counts them, and names what was skipped.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::outcome::Outcome;

/// A file to which tests append a line for each skip: the test runner hides what passing tests print.
const SKIP_LOG: &str = "PORTOLAN_SKIP_LOG";

/// The numbers of the `test result:` lines, summed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    binaries: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs `cargo test --workspace`, showing its output as it comes.
///
/// # Errors
/// If cargo cannot be started or its output cannot be read.
pub(crate) fn gate(root: &Path) -> Result<Outcome> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root);
    run(cargo)
}

fn run(mut cargo: Command) -> Result<Outcome> {
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    println!("$ cargo test --workspace --no-fail-fast");
    Ok(watch(cargo)?.outcome)
}

/// A run of tests.
pub(crate) struct Ran {
    /// How it ends. A skipped test counts as passed here.
    pub(crate) outcome: Outcome,
    /// What was skipped, each once.
    pub(crate) skips: Vec<String>,
}

/// Runs a command that runs tests, showing its output as it comes.
///
/// # Errors
/// If it cannot be started or its output cannot be read.
pub(crate) fn watch(mut command: Command) -> Result<Ran> {
    let log = tempfile::NamedTempFile::new().context("cannot make the log of skips")?;
    command.env(SKIP_LOG, log.path());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {program}"))?;
    let (mut counts, mut failures) = (Counts::default(), Vec::new());
    let stdout = child.stdout.take().with_context(|| format!("{program} has no output"))?;
    // Bytes that are no UTF-8 must not end the run.
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("cannot read what {program} prints"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count(&line, &mut counts);
        failures.extend(failed_test(&line));
    }
    let success = child.wait().with_context(|| format!("cannot wait for {program}"))?.success();
    let skips = skips(&fs::read_to_string(log.path()).unwrap_or_default());
    for (skip, times) in &skips {
        println!("{skip}{}", if *times > 1 { format!(" ({times} times)") } else { String::new() });
    }
    let outcome = verdict(counts, failures, skips.len(), success);
    Ok(Ran { outcome, skips: skips.into_keys().collect() })
}

fn verdict(counts: Counts, failures: Vec<String>, skips: usize, success: bool) -> Outcome {
    let Counts { binaries, passed, failed, ignored } = counts;
    let summary = format!(
        "{passed} passed, {failed} failed, {ignored} ignored, {skips} skipped, in {binaries} binaries"
    );
    let mut findings: Vec<_> = failures.into_iter().map(|name| format!("failed: {name}")).collect();
    if ignored > 0 {
        findings
            .push(format!("{ignored} tests are ignored; a test that cannot run here says SKIPPED(reason)"));
    }
    if passed == 0 {
        findings.push("no test ran".to_owned());
    }
    if (failed > 0 || !success) && findings.is_empty() {
        findings.push("the test run failed".to_owned());
    }
    if !findings.is_empty() {
        findings.insert(0, summary.clone());
    }
    Outcome::of(summary, findings)
}

/// Adds the numbers of a line `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn count(line: &str, counts: &mut Counts) {
    let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
    counts.binaries += 1;
    for part in rest.split([';', '.']) {
        let Some((number, what)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => counts.passed += number,
            "failed" => counts.failed += number,
            "ignored" => counts.ignored += number,
            _ => {}
        }
    }
}

/// The name in a line `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<String> {
    Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned())
}

/// The lines of the log, each once, with how often it stands there.
fn skips(log: &str) -> BTreeMap<String, usize> {
    let mut skips = BTreeMap::new();
    for line in log.lines().map(str::trim).filter(|line| !line.is_empty()) {
        *skips.entry(line.to_owned()).or_insert(0) += 1;
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, ignored: u64) -> Counts {
        Counts { binaries: 1, passed, failed, ignored }
    }

    #[test]
    fn result_lines_are_summed() {
        let mut sum = Counts::default();
        for line in [
            "test result: ok. 38 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.21s",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "running 5 tests",
            "the test result: ok. 9 passed",
        ] {
            count(line, &mut sum);
        }
        assert_eq!(sum, Counts { binaries: 2, passed: 42, failed: 2, ignored: 1 });
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test a::b ... FAILED").as_deref(), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }

    #[test]
    fn skips_are_told_once() {
        let skips = skips("SKIPPED(a) in x\nSKIPPED(b) in y\n\nSKIPPED(a) in x\n");
        assert_eq!(
            skips.into_iter().collect::<Vec<_>>(),
            [("SKIPPED(a) in x".into(), 2), ("SKIPPED(b) in y".into(), 1)]
        );
    }

    #[track_caller]
    fn check(counts: Counts, failures: &[&str], success: bool, word: &str, says: &str) {
        let outcome = verdict(counts, failures.iter().map(|name| (*name).to_owned()).collect(), 3, success);
        assert_eq!(outcome.word(), word);
        assert!(format!("{outcome:?}").contains(says), "{outcome:?}");
    }

    #[test]
    fn only_a_whole_run_passes() {
        check(counts(4, 0, 0), &[], true, "PASS", "4 passed, 0 failed, 0 ignored, 3 skipped, in 1 binaries");
        check(counts(4, 1, 0), &["a::b"], false, "FAIL", "failed: a::b");
        check(counts(4, 1, 0), &[], true, "FAIL", "the test run failed");
        check(counts(4, 0, 0), &[], false, "FAIL", "the test run failed");
        check(counts(4, 0, 2), &[], true, "FAIL", "2 tests are ignored");
        check(counts(0, 0, 0), &[], true, "FAIL", "no test ran");
    }

    #[test]
    fn a_run_of_cargo_is_counted_and_a_broken_test_fails_it() {
        let manifest = "[workspace]\n[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        let skips = format!(
            "std::fs::write(std::env::var(\"{SKIP_LOG}\").unwrap(), \"SKIPPED(x) in a\\n\").unwrap()"
        );
        for (broken, word) in [("true", "PASS"), ("false", "FAIL")] {
            let source = format!("#[test]\nfn a() {{ {skips} }}\n#[test]\nfn b() {{ assert!({broken}) }}\n");
            let dir = crate::tree::sample(&[("Cargo.toml", manifest), ("src/lib.rs", &source)]);
            let mut cargo = Command::new("cargo");
            cargo.current_dir(dir.path()).env("CARGO_TARGET_DIR", dir.path().join("target"));
            let outcome = run(cargo).unwrap();
            assert_eq!(outcome.word(), word, "{outcome:?}");
            assert!(outcome.detail().contains("1 skipped, in 2 binaries"), "{outcome:?}");
        }
    }
}
