//! A short text from the default model, and what the program says of how it was made.

use std::{collections::BTreeSet, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const PROMPT: &str = "The capital of France is";

/// What a run gave.
#[derive(Debug, Default, Clone)]
pub(super) struct Text {
    pub(super) tokens: Vec<u64>,
    pub(super) text: String,
    /// Lines of the log.
    pub(super) log: String,
}

/// Runs `portolan generate` on the default model, with these arguments too.
pub(super) fn generate(mut command: Command, args: &[&str]) -> Result<Text> {
    command.args(["generate", "-m", "smollm2", "-p", PROMPT, "--no-chat-template", "--json"]).args(args);
    let output = command.output().context("cannot run portolan")?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {}", output.status, log.trim());
    let answer: Value = serde_json::from_slice(&output.stdout).context("generate --json prints no JSON")?;
    let ids = answer["tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tokens = ids.iter().filter_map(Value::as_u64).collect();
    Ok(Text { tokens, text: answer["text"].as_str().unwrap_or_default().to_owned(), log })
}

/// What is wrong with a run on a device: too few tokens, no words, an op that another device ran, one without a port that
/// has to have one. `fused` are the ops that may decline: they come apart.
pub(super) fn faults(run: &Text, device: &str, tokens: usize, fused: &BTreeSet<&str>) -> Vec<String> {
    let mut faults = Vec::new();
    if run.tokens.len() != tokens {
        faults.push(format!("{} tokens, expected {tokens}", run.tokens.len()));
    }
    // A broken kernel gives one token over and over, or bytes that are no text.
    let words: BTreeSet<_> =
        run.text.split_whitespace().filter(|w| w.chars().any(char::is_alphabetic)).collect();
    if words.len() < tokens / 6 || run.text.contains('\u{fffd}') {
        faults.push(format!("no words: {:?}", run.text));
    }
    let lines: Vec<_> =
        run.log.lines().filter_map(|line| Some(line.split_once("portolan-port ")?.1)).collect();
    if lines.is_empty() {
        faults.push("PORTOLAN_DEBUG_KERNELS logs no port".to_owned());
    }
    for line in lines {
        let field = |name: &str| {
            line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        if !field("device").starts_with(device) {
            faults.push(format!("not on {device}: {line}"));
        }
        if !field("decline").is_empty() && !fused.contains(field("op")) {
            faults.push(format!("a decline that is not expected: {line}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(run: &Text, says: &[&str]) {
        let found = faults(run, "rocm", 12, &BTreeSet::from(["qkv"]));
        assert_eq!(found.len(), says.len(), "{found:?}");
        assert!(found.iter().zip(says).all(|(found, says)| found.contains(says)), "{found:?}");
    }

    #[test]
    fn a_run_that_is_not_as_it_should_be_is_told() {
        let port = |text: &str| format!(" INFO portolan-port {text}\n");
        let log =
            port("op=matmul device=rocm:0 port=gemv1 rows=1") + &port("op=qkv device=rocm:0 decline=Shape");
        let good = Text { tokens: vec![7; 12], text: " Paris. It is a city".to_owned(), log };
        check(&good, &[]);
        check(&Text { tokens: vec![7; 3], ..good.clone() }, &["3 tokens"]);
        check(&Text { text: "the the the".to_owned(), ..good.clone() }, &["no words"]);
        check(&Text { text: "a \u{fffd} b c".to_owned(), ..good.clone() }, &["no words"]);
        check(&Text { log: String::new(), ..good.clone() }, &["logs no port"]);
        let cpu = port("op=matmul device=cpu port=avx2");
        check(&Text { log: cpu, ..good.clone() }, &["not on rocm"]);
        let declined = port("op=matmul device=rocm:0 decline=NoPort");
        check(&Text { log: declined, ..good }, &["not expected"]);
    }
}
