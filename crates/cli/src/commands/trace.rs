//! `portolan trace`: a teacher-forced logit trace of a text, into a file.

use std::{
    io::{self, IsTerminal},
    path::Path,
};

use portolan::{
    Plan,
    tools::trace::{Corpus, trace},
};

use crate::args::TraceArgs;

pub(crate) fn run(args: TraceArgs) -> anyhow::Result<()> {
    let load = args.load.options();
    let options = args.options();
    options.check()?;
    let (plan, _) = super::plan(&args.model, &options.load_options(&load))?;
    super::check_output(&plan, &args.output)?;
    // Before the wait for the weights.
    let corpus = corpus(&args, &plan)?;
    let mut core = super::load_core(&plan)?;
    let terminal = io::stderr().is_terminal();
    let traced = trace(&mut core, &plan, &load, &corpus, &options, &mut |done, total| {
        if terminal && (done % 16 == 0 || done == total) {
            eprint!("\r{done} of {total} positions");
        }
    });
    if terminal {
        eprintln!();
    }
    let traced = traced?;
    traced.save(&args.output)?;
    if terminal {
        let nll = traced.mean_nll();
        eprintln!("negative log-likelihood {nll:.4} a token, perplexity {:.4}", nll.exp());
    }
    Ok(())
}

fn corpus(args: &TraceArgs, plan: &Plan) -> anyhow::Result<Corpus> {
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    if let Some(path) = &args.text {
        let text = super::read_file(path)?;
        return Ok(Corpus::from_text(&name(path), &text, plan)?);
    }
    // The parser of the flags has seen to it that there is one of the two.
    let list = args.ids.as_deref().unwrap_or_default();
    let ids = super::logits::parse_ids(list)?;
    let path = Path::new(list);
    Ok(Corpus { name: if path.is_file() { name(path) } else { "--ids".to_owned() }, ids })
}
