//! Traces of SmolLM2: the CPU's exact one against the GPU's, by type of activations and width of a step.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use portolan::hub::{self, HubOptions};

use super::programs::{Program, Programs};
use crate::outcome::Outcome;

/// A text that the program carries: long enough for the 300 decided positions of a verdict.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

/// Type of activations, that of the cache, width of a step, and the error of a logit that the type claims for itself.
const CASES: [(&str, &str, &str, &str); 5] = [
    ("f32", "f32", "1", "0.1"),
    ("f32", "f32", "256", "0.1"),
    ("bf16", "f16", "1", "0.5"),
    ("bf16", "f16", "8", "0.5"),
    ("bf16", "f16", "256", "0.5"),
];

/// Compares the traces.
pub(super) fn gate(programs: &Programs) -> Result<Outcome> {
    let model = match HubOptions::from_env().and_then(|options| hub::locate(hub::DEFAULT_MODEL, &options)) {
        Ok(Some(model)) => model,
        Ok(None) => {
            return Ok(Outcome::Skipped("SmolLM2 is not in the cache: `portolan pull smollm2`".to_owned()));
        }
        Err(error) => return Ok(Outcome::Skipped(error.to_string())),
    };
    if let Err(reason) = programs.command(Program::Portolan) {
        return Ok(Outcome::Skipped(reason));
    }
    let folder = tempfile::tempdir().context("cannot make a folder for traces")?;
    let text = folder.path().join("text");
    fs::write(&text, TEXT).context("cannot write the text")?;
    let traces = Traces { programs, model, text, folder: folder.path() };
    // A row of an exact trace does not depend on the width, so one serves all.
    let exact = match traces.write("exact", &["--device", "cpu", "--exact", "--width", "256"])? {
        Ok(exact) => exact,
        Err(error) => return Ok(Outcome::Fail(vec![format!("exact on the CPU: {error}")])),
    };
    let mut findings = Vec::new();
    for (activations, cache, width, error) in CASES {
        let name = format!("{activations}-{width}");
        let own = ["--device", "cuda", "--activations", activations, "--cache-type", cache, "--width", width];
        let found = match traces.write(&name, &own)? {
            Ok(other) => traces.compare(&exact, &other, error)?,
            Err(error) => Some(error),
        };
        findings.extend(found.map(|found| format!("activations {activations}, width {width}: {found}")));
    }
    Ok(Outcome::of(format!("{} traces against the CPU's exact one", CASES.len()), findings))
}

struct Traces<'a> {
    programs: &'a Programs,
    model: PathBuf,
    text: PathBuf,
    folder: &'a Path,
}

impl Traces<'_> {
    /// Writes a trace; its path, or what the program says.
    fn write(&self, name: &str, arguments: &[&str]) -> Result<Result<PathBuf, String>> {
        let path = self.folder.join(name);
        let mut command = self.programs.command(Program::Portolan).map_err(anyhow::Error::msg)?;
        command.arg("trace").arg("-m").arg(&self.model).arg("--text").arg(&self.text);
        command.arg("-o").arg(&path).args(arguments);
        let output = command.output().context("cannot run portolan trace")?;
        let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(if output.status.success() { Ok(path) } else { Err(format!("{}: {}", output.status, said())) })
    }

    /// What the comparison says, unless it passes.
    fn compare(&self, exact: &Path, other: &Path, error: &str) -> Result<Option<String>> {
        let mut command = self.programs.command(Program::Portolan).map_err(anyhow::Error::msg)?;
        command.args(["compare-traces", "--other-width", "--error", error]).arg(exact).arg(other);
        let output = command.output().context("cannot run portolan compare-traces")?;
        println!("{}", String::from_utf8_lossy(&output.stdout));
        Ok(match output.status.code() {
            Some(0) => None,
            Some(3) => Some("fail".to_owned()),
            Some(4) => Some("inconclusive".to_owned()),
            Some(5) => Some("mismatch".to_owned()),
            _ => Some(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
        })
    }
}
