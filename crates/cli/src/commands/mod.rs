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

use std::path::{Path, PathBuf};

use anyhow::bail;
use portolan::{Core, Engine, LoadOptions, Plan, device::Device, loader};

use crate::{args::LoadArgs, output, progress::Bars};

/// Loads a model with a progress bar, and says on a terminal what was loaded.
fn load(model: &str, load: &LoadArgs) -> anyhow::Result<Engine> {
    let mut bars = Bars::new();
    let engine = Engine::load_with(model, &load.options(), &mut bars)?;
    drop(bars);
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprintln!("{}", output::loaded_line(engine.info()));
    }
    Ok(engine)
}

/// Finds and plans a model: for the commands that drive its steps themselves.
fn plan(model: &str, options: &LoadOptions) -> anyhow::Result<(Plan, Device)> {
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

/// Refuses to write over a file of the model itself.
fn refuse_model_file(plan: &Plan, output: &Path) -> anyhow::Result<()> {
    let same =
        |file: &PathBuf| matches!((file.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if plan.checkpoint.files.iter().any(same) {
        bail!("{} is a file of the model itself; give another name with -o", output.display());
    }
    Ok(())
}
