//! `portolan bench`: speed under llama-bench's names.

use anyhow::bail;
use portolan::tools::bench::{BenchOptions, BenchRow, OpProfile, bench, by_op};
use serde_json::{Value, json};

use crate::{args::BenchArgs, output};

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<()> {
    if args.repetitions == 0 {
        bail!("--repetitions is 0, expected at least 1");
    }
    if args.prompt.iter().chain(&args.generate).all(|&tokens| tokens == 0) {
        bail!("nothing to measure: neither --prompt nor --generate has a number above 0");
    }
    args.sample.params().check()?;
    let deepest = args.depth.iter().max().copied().unwrap_or(0);
    let longest = args.prompt.iter().chain(&args.generate).max().copied().unwrap_or(0);
    let mut options = args.load.options();
    options.context = Some(options.context.unwrap_or(0).max(deepest.saturating_add(longest)).max(1));
    options.max_sequences = 1;
    options.max_logits = 1;
    let (plan, device) = super::plan(&args.model, &options)?;
    let mut core = super::load_core(&plan)?;
    let path = &plan.checkpoint.path;
    let sampling = (args.sample.temperature > 0.0 || args.sample.top_p < 1.0).then(|| args.sample.params());
    let plain = !args.json && !args.csv;
    if plain {
        output::print_now(&format!(
            "{} on {} ({}, {} threads), {} runs each\n{:<16} {:>10} {:>22}\n",
            path.display(),
            device.id(),
            device.caps().name,
            device.caps().units,
            args.repetitions,
            "test",
            "tok/s",
            "slowest - fastest"
        ))?;
    }
    let spec = BenchOptions {
        prompts: args.prompt.clone(),
        generated: args.generate.clone(),
        depths: args.depth.clone(),
        repetitions: args.repetitions,
        sampling,
    };
    let mut failed = Ok(());
    let rows = bench(&mut core, &spec, &mut |row| {
        if plain {
            let (low, high) = row.spread();
            let line = format!("{:<16} {:>10.1} {low:>11.1} - {high:.1}\n", row.name, row.median());
            failed = output::print_now(&line);
        }
    })?;
    failed?;
    let model = path.display().to_string();
    if args.csv {
        output::print_now(&csv(&model, &rows))?;
    }
    let profiles = if args.by_op {
        let first = |list: &[usize]| list.first().copied().unwrap_or(1);
        Some(by_op(&mut core, first(&args.prompt), first(&args.generate), first(&args.depth))?)
    } else {
        None
    };
    if args.json {
        let device = format!("{} ({})", device.id(), device.caps().name);
        let rows: Vec<Value> = rows.iter().map(row_json).collect();
        let by_op = profiles.as_ref().map(|(pp, tg)| json!({"pp": op_json(pp), "tg": op_json(tg)}));
        let object = json!({"model": model, "device": device, "rows": rows, "by_op": by_op});
        output::print_now(&format!("{object:#}\n"))?;
    } else if let Some((prefill, decode)) = profiles {
        for (name, profile) in [("prefill", prefill), ("decode", decode)] {
            let text = op_text(name, &profile);
            // CSV is for a program, which would stumble over a table.
            if args.csv {
                eprint!("{text}");
            } else {
                output::print_now(&text)?;
            }
        }
    }
    Ok(())
}

/// A line a run, for pairing with another file.
fn csv(model: &str, rows: &[BenchRow]) -> String {
    let mut out = String::from("model,test,run,tokens,seconds,tokens_per_second\n");
    for row in rows {
        for (run, seconds) in row.seconds.iter().enumerate() {
            let rate = row.tokens as f64 / seconds;
            out += &format!(
                "\"{}\",{},{run},{},{seconds:.6},{rate:.3}\n",
                model.replace('"', "\"\""),
                row.name,
                row.tokens
            );
        }
    }
    out
}

fn row_json(row: &BenchRow) -> Value {
    let (low, high) = row.spread();
    json!({"test": row.name, "tokens": row.tokens, "seconds": row.seconds,
           "median": row.median(), "slowest": low, "fastest": high})
}

/// Ops by their share of the time, the largest first.
fn shares(profile: &OpProfile) -> Vec<(String, usize, f64, f64)> {
    let wall = profile.wall.as_secs_f64().max(1e-9);
    let mut rows: Vec<_> = profile
        .ops
        .iter()
        .map(|((op, variant), (count, time))| {
            (format!("{op}/{variant}"), *count, time.as_secs_f64(), time.as_secs_f64() / wall)
        })
        .collect();
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    rows
}

fn op_text(name: &str, profile: &OpProfile) -> String {
    let mut out = format!("\n{name}, {:.1} ms\n", profile.wall.as_secs_f64() * 1e3);
    let mut sum = 0.0;
    for (op, count, seconds, share) in shares(profile) {
        out += &format!("  {op:<28} {count:>7} launches {:>9.2} ms {:>6.1}%\n", seconds * 1e3, share * 100.0);
        sum += share;
    }
    out + &format!("  {:<28} {:>16} {:>12} {:>6.1}%\n", "between the ops", "", "", (1.0 - sum) * 100.0)
}

fn op_json(profile: &OpProfile) -> Value {
    let ops: Vec<Value> = shares(profile)
        .into_iter()
        .map(|(op, launches, seconds, share)| json!({"op": op, "launches": launches, "seconds": seconds, "share": share}))
        .collect();
    json!({"seconds": profile.wall.as_secs_f64(), "ops": ops})
}
