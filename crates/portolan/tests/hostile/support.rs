//! One step of a model, and a trial of many that collects what goes wrong.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use portolan::{
    Core, Error, LoadOptions, Plan, Result, SeqStep, Want,
    device::{Device, cpu::CpuOptions},
};

pub(crate) fn cpu() -> Device {
    Device::cpu(&CpuOptions { threads: 1 }).unwrap()
}

pub(crate) fn options() -> LoadOptions {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.threads = 1;
    options
}

/// Plans, loads, and computes the logits of a few tokens.
pub(crate) fn step(device: &Device, path: &Path) -> Result<Vec<f32>> {
    let plan = Plan::new(path, device, &options())?;
    let mut core = Core::load(&plan, &mut |_, _| ())?;
    let seq = core.create();
    core.step(&[SeqStep { seq, tokens: &[3, 5, 7], want: Want::Last }])?;
    Ok(core.logits(0).to_vec())
}

/// Collects what goes wrong, so that one run shows all of it.
pub(crate) struct Trial {
    pub(crate) device: Device,
    tensors: Vec<String>,
    tried: usize,
    works: usize,
    wrong: Vec<String>,
}

impl Trial {
    pub(crate) fn new(tensors: Vec<String>) -> Self {
        Trial { device: cpu(), tensors, tried: 0, works: 0, wrong: Vec::new() }
    }

    /// Loads the model, of which one field was changed.
    pub(crate) fn run(&mut self, path: &Path, field: &str, what: impl FnOnce() -> String) {
        self.tried += 1;
        let fault = match catch_unwind(AssertUnwindSafe(|| step(&self.device, path))) {
            Err(_) => "a panic".to_owned(),
            Ok(Ok(logits)) if logits.len() == 512 && logits.iter().all(|l| l.is_finite()) => {
                return self.works += 1;
            }
            Ok(Ok(logits)) => format!("{} logits, or some that are not finite", logits.len()),
            // Three tokens in a model made for two, or a cache for a context that no memory holds.
            Ok(Err(Error::ContextOverflow { .. } | Error::DoesNotFit { .. }))
                if field.contains("max_position") || field.contains("context") =>
            {
                return;
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                let tensor = self.tensors.iter().any(|tensor| text.contains(tensor.as_str()));
                // All tensors that are missed are named.
                let missed = text.contains("that the checkpoint lacks: ");
                let names_it = text.contains(field) || text.contains(spoken(field)) || tensor || missed;
                match (text.contains(path.to_str().unwrap()), names_it) {
                    (true, true) => return,
                    (false, _) => format!("'{text}' names no file"),
                    (_, false) => format!("'{text}' names neither field nor tensor"),
                }
            }
        };
        self.wrong.push(format!("{}: {fault}", what()));
    }

    pub(crate) fn end(self, least: usize) {
        let Trial { tried, works, wrong, .. } = self;
        assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
        assert!(works >= least, "only {works} of {tried} give a model: the test tests nothing");
    }
}

/// How an error may name a field otherwise.
fn spoken(field: &str) -> &str {
    match field {
        // By its own value, and what it may be.
        "model_type" | "general.architecture" => "model type '",
        "rope_type" | "rope_scaling" | "rope_parameters" | "llama.rope.scaling.type" => "rope scaling '",
        // What it holds is named.
        "quantization" | "quantization_config" => "quantized module '",
        other => other,
    }
}
