//! A file a command.

pub(crate) mod bench;
pub(crate) mod compare_traces;
pub(crate) mod convert;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod ports;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod trace;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use portolan::{Core, Engine, GenerateOptions, LoadOptions, Plan, device::Device, loader};

use crate::{args::LoadArgs, output, progress::Bars};

/// Loads a model with a progress bar, and says on a terminal what was loaded. What `generate` asks for and no model
/// could honour is refused before.
fn load(model: &str, load: &LoadArgs, generate: &GenerateOptions) -> anyhow::Result<Engine> {
    let options = load.options();
    options.check()?;
    generate.check()?;
    let mut bars = Bars::new();
    let engine = Engine::load_with(model, &options, &mut bars)?;
    drop(bars);
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprintln!("{}", output::loaded_line(engine.info()));
    }
    Ok(engine)
}

/// Finds and plans a model: for the commands that drive its steps themselves.
fn plan(model: &str, options: &LoadOptions) -> anyhow::Result<(Plan, Device)> {
    options.check()?;
    let path = loader::find(model, &mut Bars::new())?;
    let plan = loader::plan(&path, options)?;
    let device = plan.device().clone();
    Ok((plan, device))
}

/// Loads what was planned, with a progress bar.
fn load_core(plan: &Plan) -> anyhow::Result<Core> {
    let mut bars = Bars::new();
    Ok(Core::load(plan, &mut |done, total| loader::Progress::load(&mut bars, done, total))?)
}

/// Refuses an output that cannot be written, and one that is a file of the model itself: before the wait.
fn check_output(plan: &Plan, output: &Path) -> anyhow::Result<()> {
    let same =
        |file: &PathBuf| matches!((file.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if plan.checkpoint.files.iter().any(same) {
        bail!("{} is a file of the model itself; give another name with -o", output.display());
    }
    if output.is_dir() {
        bail!("{}: cannot be written: it is a folder; give the name of a file with -o", output.display());
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("{}: cannot be written: there is no folder {}", output.display(), folder.display());
    }
    Ok(())
}

/// More than any context holds; a pipe or a device may be endless.
const MOST_TEXT: u64 = 64 << 20;

/// All of a text, which `what` names in errors.
fn read_text(from: impl Read, what: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST_TEXT + 1).read_to_end(&mut bytes).with_context(|| format!("reading {what}"))?;
    if bytes.len() as u64 > MOST_TEXT {
        bail!("{what} has more than {} MiB, which no model's context holds; give less", MOST_TEXT >> 20);
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(at).copied().unwrap_or_default();
        anyhow!("{what} is not UTF-8 text: byte {byte:#04x} at offset {at}; convert it first")
    })
}

/// All of a file.
fn read_file(path: &Path) -> anyhow::Result<String> {
    let what = path.display().to_string();
    read_text(File::open(path).with_context(|| format!("reading {what}"))?, &what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<&str, &str>) {
        let found = read_text(bytes, "the prompt").map_err(|e| output::describe(&e));
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn texts() {
        check(b"", Ok(""));
        check("a\0é🦙\n".as_bytes(), Ok("a\0é🦙\n"));
        check(b"ab\xff", Err("the prompt is not UTF-8 text: byte 0xff at offset 2; convert it first"));
        check(b"\xf0\x9f", Err("the prompt is not UTF-8 text: byte 0xf0 at offset 0; convert it first"));
        // A lone surrogate, as some programs write it.
        check(b"\xed\xa0\x80", Err("the prompt is not UTF-8 text: byte 0xed at offset 0; convert it first"));
    }

    #[test]
    fn a_text_without_an_end_is_refused() {
        let error = read_text(std::io::repeat(b'x'), "standard input").unwrap_err().to_string();
        assert!(error.contains("standard input has more than 64 MiB"), "{error}");
    }
}
