//! `portolan convert`: a model as an MLX checkpoint.

use std::{
    fmt::Write,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use portolan::{loader, tools::convert::ConvertPlan, weights::human_bytes};

use crate::{args::ConvertArgs, output, progress::Bars, signals};

pub(crate) fn run(args: ConvertArgs) -> anyhow::Result<()> {
    let source = loader::find(&args.source, &mut Bars::new())?;
    let plan = ConvertPlan::new(&source, &args.destination, &args.options())?;
    output::print_now(&text(&plan))?;
    plan.check_room()?;
    if args.dry_run {
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    signals::stop_on_termination(stop.clone())?;
    super::run::stop_on_ctrl_c(stop.clone())?;
    let mut bars = Bars::new();
    plan.run(&mut |done, total| {
        bars.leg("converting", done, total);
        if stop.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    drop(bars);
    output::print_now(&format!("written: {}\n", plan.destination.display()))
}

fn text(plan: &ConvertPlan) -> String {
    let mut out = String::new();
    let _ =
        writeln!(out, "source       {} ({}, format {})", plan.source.display(), plan.family, plan.dialect);
    let _ = writeln!(out, "destination  {} (MLX)", plan.destination.display());
    let _ = writeln!(
        out,
        "\n{:<34} {:<16} {:<17} {:<11} {:>7} {:>12}",
        "kind of tensor", "from", "to", "how", "tensors", "bytes"
    );
    for row in &plan.rows {
        let (to, how, bytes) = (row.to.to_string(), row.how.name(), human_bytes(row.bytes));
        let _ = writeln!(
            out,
            "{:<34} {:<16} {to:<17} {how:<11} {:>7} {bytes:>12}",
            row.kind, row.from, row.tensors
        );
        if let Some(note) = &row.note {
            let _ = writeln!(out, "  not quantized: {note}");
        }
    }
    if plan.unused.0 > 0 {
        let _ = writeln!(
            out,
            "left out: {} tensors that the model has no use for, {}",
            plan.unused.0,
            human_bytes(plan.unused.1)
        );
    }
    if let Some(reason) = &plan.no_tokenizer {
        let _ = writeln!(out, "no tokenizer: {reason}");
    }
    let files = if plan.shards() == 1 { "1 file".to_owned() } else { format!("{} files", plan.shards()) };
    let _ = writeln!(
        out,
        "\ntensors      {} in, {} out in {files}",
        human_bytes(plan.bytes_in),
        human_bytes(plan.bytes_out)
    );
    let _ = writeln!(
        out,
        "parameters   {:.1} M, {:.2} bits each",
        plan.parameters as f64 / 1e6,
        plan.bits_per_weight()
    );
    let free = plan.free_bytes.map_or("unknown".to_owned(), human_bytes);
    let _ = writeln!(out, "disk         {} needed, {free} free", human_bytes(plan.disk_bytes));
    let _ = writeln!(out, "memory       at most {}", human_bytes(plan.memory_bytes));
    out
}
