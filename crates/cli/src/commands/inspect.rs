//! `portolan inspect`: what a checkpoint is, and what it would take.

use std::fmt::Write;

use portolan::{
    loader,
    tools::inspect::{Report, inspect},
    weights::human_bytes,
};

use crate::{args::InspectArgs, output, progress::Bars};

pub(crate) fn run(args: InspectArgs) -> anyhow::Result<()> {
    let options = args.load.options();
    options.check()?;
    let path = loader::find(&args.model, &mut Bars::new())?;
    let report = inspect(&path, &options)?;
    let text = if args.json { format!("{:#}\n", report.json()) } else { text(&report) };
    output::print_now(&text)
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let millions = report.parameters as f64 / 1e6;
    let _ = writeln!(out, "{}", report.path.display());
    let _ =
        writeln!(out, "family       {} ({}), format {}", report.family, report.model_type, report.dialect);
    let _ = writeln!(out, "parameters   {millions:.1} M, {} in files", human_bytes(report.file_bytes));
    for (name, size) in report.sizes {
        let _ = writeln!(out, "{name:<12} {size}");
    }
    let _ = writeln!(out, "context      {} (the model's own: {})", report.context, report.trained_context);
    match &report.tokenizer {
        Ok(tokenizer) => {
            let _ = writeln!(out, "tokenizer    {tokenizer}");
        }
        Err(reason) => {
            let _ = writeln!(out, "tokenizer    none: {reason}");
        }
    }
    let templates = if report.templates.is_empty() { "none".to_owned() } else { report.templates.join(", ") };
    let _ = writeln!(out, "templates    {templates}");
    let _ = writeln!(out, "\n{:<34} {:<18} {:>7} {:>12}", "kind of tensor", "encoding", "tensors", "bytes");
    for kind in &report.kinds {
        let encoding = kind.encoding.to_string();
        let bytes = human_bytes(kind.bytes);
        let _ = writeln!(out, "{:<34} {encoding:<18} {:>7} {bytes:>12}", kind.kind, kind.tensors);
    }
    if report.unused.0 > 0 {
        let _ = writeln!(out, "not read: {} tensors, {}", report.unused.0, human_bytes(report.unused.1));
    }
    let _ = write!(out, "\nmemory plan\n{}", report.memory);
    if let Some((_, need, available)) = report.memory.shortage() {
        let (need, available) = (human_bytes(need), human_bytes(available));
        let _ = writeln!(out, "DOES NOT FIT: needs {need}, {available} can be had");
    }
    out
}
