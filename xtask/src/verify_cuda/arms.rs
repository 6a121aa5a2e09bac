//! The four ways of loading, through the program: the same tokens, and counters as they should be.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    profile::Profile,
    programs::{Program, Programs},
};
use crate::outcome::Outcome;

/// A reference checkpoint of each family, and of each kind of encoding.
const MODELS: [&str; 10] = [
    "tiny/llama",
    "tiny/llama_sharded",
    "tiny/llama_tied",
    "tiny/mistral",
    "tiny/qwen2",
    "tiny/qwen3",
    "tiny/smollm3",
    "mlx/llama-affine-4b-g64",
    "mlx/llama-mxfp4-4b-g32",
    "mlx/qwen3-affine-8b-g64",
];

/// What a device's four slots of 64 MiB pin.
const MOST_PINNED: u64 = 256 << 20;

/// The reference checkpoints have no tokenizer. Eight letters are enough for a prompt; what is compared are the ids.
const TOKENIZER: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7}, "merges": []}
}"#;

/// A way of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arm {
    lazy: bool,
    pinned: bool,
}

const ARMS: [Arm; 4] = [
    Arm { lazy: false, pinned: true },
    Arm { lazy: false, pinned: false },
    Arm { lazy: true, pinned: true },
    Arm { lazy: true, pinned: false },
];

impl Arm {
    fn name(self) -> &'static str {
        match (self.lazy, self.pinned) {
            (false, true) => "eager, pinned",
            (false, false) => "eager, pageable",
            (true, true) => "lazy, pinned",
            (true, false) => "lazy, pageable",
        }
    }

    fn arguments(self, command: &mut Command, model: &Path) {
        command.arg("generate").arg("-m").arg(model);
        command.args(["--device", "cuda", "--load", if self.lazy { "lazy" } else { "eager" }]);
        command.args(["-p", "abcdefghhgfedcba", "--no-chat-template", "--ignore-eos", "-n", "16"]);
        command.args(["--temp", "0", "--seed", "0", "--json", "--profile"]);
        command.env("PORTOLAN_PINNED_LOAD", if self.pinned { "1" } else { "0" });
    }

    /// What a profile says that this arm should not.
    fn faults(self, profile: &Profile) -> Vec<String> {
        let Profile { load, prefill, waits, pinned_peak } = *profile;
        let (busy, idle, when) = if self.lazy { (prefill, load, "before") } else { (load, prefill, "in") };
        let (used, unused) =
            if self.pinned { (busy.pinned, busy.pageable) } else { (busy.pageable, busy.pinned) };
        let most_pinned = if self.pinned { MOST_PINNED } else { 0 };
        let mut faults = Vec::new();
        if idle.bytes + idle.copies > 0 {
            faults.push(format!("{} bytes in {} copies {when} the prefill", idle.bytes, idle.copies));
        }
        if busy.bytes == 0 || busy.copies == 0 || used == 0 || unused + busy.direct > 0 {
            faults.push(format!("tensors on the wrong path, or on none: {busy:?}"));
        }
        if waits > 0 {
            faults.push(format!("{waits} waits of one stream for another"));
        }
        if pinned_peak > most_pinned {
            faults.push(format!("{pinned_peak} bytes pinned, at most {most_pinned}"));
        }
        faults
    }
}

/// Runs all arms of every checkpoint that is there.
pub(super) fn gate(programs: &Programs) -> Result<Outcome> {
    if let Err(reason) = programs.command(Program::Portolan) {
        return Ok(Outcome::Skipped(reason));
    }
    let (mut findings, mut missing) = (Vec::new(), Vec::new());
    for name in MODELS {
        let Some(source) = programs.oracle(name) else {
            missing.push(name);
            continue;
        };
        let folder = tempfile::tempdir().context("cannot make a folder for a checkpoint")?;
        with_tokenizer(&source, folder.path())
            .with_context(|| format!("cannot copy {}", source.display()))?;
        let mut first: Option<(Arm, Vec<u64>)> = None;
        for arm in ARMS {
            let (tokens, profile) = match one(programs, arm, folder.path())? {
                Ok(ran) => ran,
                Err(error) => {
                    findings.push(format!("{name}, {}: {error}", arm.name()));
                    continue;
                }
            };
            println!("{name}, {}: {tokens:?} {profile:?}", arm.name());
            let faults = arm.faults(&profile);
            findings.extend(faults.into_iter().map(|fault| format!("{name}, {}: {fault}", arm.name())));
            match &first {
                None => first = Some((arm, tokens)),
                Some((other, expected)) if *expected != tokens => {
                    findings.push(format!("{name}: {} and {} differ", other.name(), arm.name()));
                }
                Some(_) => {}
            }
        }
    }
    Ok(match (findings.is_empty(), missing.as_slice()) {
        (false, _) => Outcome::Fail(findings),
        (true, []) => Outcome::Pass(format!("{} checkpoints in four arms: the same tokens", MODELS.len())),
        (true, missing) => {
            Outcome::Skipped(format!("no oracle, PORTOLAN_ORACLE is to name it: {}", missing.join(", ")))
        }
    })
}

/// Runs one arm: the tokens and the profile, or what the program says.
fn one(programs: &Programs, arm: Arm, model: &Path) -> Result<Result<(Vec<u64>, Profile), String>> {
    let mut command = programs.command(Program::Portolan).map_err(anyhow::Error::msg)?;
    arm.arguments(&mut command, model);
    let output = command.output().context("cannot run portolan")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Ok(Err(format!("{}: {}", output.status, said.trim())));
    }
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("portolan generate --json prints no JSON")?;
    let ids = answer["tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tokens: Vec<u64> = ids.iter().filter_map(serde_json::Value::as_u64).collect();
    if tokens.len() != 16 {
        return Ok(Err(format!("{} tokens, expected 16", tokens.len())));
    }
    Ok(Profile::parse(&said).map(|profile| (tokens, profile)))
}

/// A copy of a checkpoint with a tokenizer.
fn with_tokenizer(source: &Path, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("model") || name == "config.json" {
            fs::copy(entry.path(), folder.join(name))?;
        }
    }
    fs::write(folder.join("tokenizer.json"), TOKENIZER)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::profile::Uploads, *};

    const MOVED: Uploads = Uploads { pinned: 9, pageable: 0, direct: 0, copies: 1, bytes: 100 };
    const PAGEABLE: Uploads = Uploads { pinned: 0, pageable: 9, ..MOVED };

    #[track_caller]
    fn check(arm: Arm, load: Uploads, prefill: Uploads, waits: u64, pinned_peak: u64, says: &[&str]) {
        let faults = arm.faults(&Profile { load, prefill, waits, pinned_peak });
        assert_eq!(faults.len(), says.len(), "{faults:?}");
        for (fault, says) in faults.iter().zip(says) {
            assert!(fault.contains(says), "{faults:?}");
        }
    }

    #[test]
    fn counters_that_are_wrong_for_an_arm_are_found() {
        let none = Uploads::default();
        let [eager, eager_pageable, lazy, lazy_pageable] = ARMS;
        check(eager, MOVED, none, 0, 1 << 20, &[]);
        check(lazy, none, MOVED, 0, 1 << 20, &[]);
        check(eager_pageable, PAGEABLE, none, 0, 0, &[]);
        check(lazy_pageable, none, PAGEABLE, 0, 0, &[]);
        check(eager, MOVED, MOVED, 0, 0, &["100 bytes in 1 copies in the prefill"]);
        check(lazy, MOVED, MOVED, 0, 0, &["before the prefill"]);
        check(eager, none, none, 0, 0, &["wrong path, or on none"]);
        check(eager, PAGEABLE, none, 0, 0, &["wrong path"]);
        check(eager_pageable, MOVED, none, 0, 0, &["wrong path"]);
        check(eager, MOVED, none, 1, (256 << 20) + 1, &["1 waits", "268435457 bytes pinned"]);
        check(lazy_pageable, none, PAGEABLE, 0, 1, &["1 bytes pinned, at most 0"]);
    }

    #[test]
    fn a_checkpoint_is_copied_with_a_tokenizer_that_is_read() {
        let (source, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        portolan_testkit::tiny::copy("llama", source.path());
        with_tokenizer(source.path(), folder.path()).unwrap();
        let engine =
            portolan::Engine::load(folder.path().to_str().unwrap(), &portolan::LoadOptions::default())
                .unwrap();
        let mut generation =
            engine.generate(portolan::Prompt::Text("abch"), &portolan::GenerateOptions::tokens(2)).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(generation.finish().unwrap().stats.prompt_tokens, 4);
    }
}
