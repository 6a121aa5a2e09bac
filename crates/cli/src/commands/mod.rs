//! A file a command.

pub(crate) mod bench;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod ports;
pub(crate) mod pull;
pub(crate) mod run;

use portolan::Engine;

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
