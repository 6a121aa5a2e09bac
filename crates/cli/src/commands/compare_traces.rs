//! `portolan compare-traces`: two traces held against each other. The exit code is the verdict.

use std::{fmt::Write, process::ExitCode};

use portolan::tools::{
    compare::{Comparison, Mismatch, Ranks, Verdict, compare},
    trace::Trace,
};
use serde_json::json;

use crate::{args::CompareTracesArgs, output};

/// The exit codes of a comparison. Errors end with 1 and flags that cannot be read with 2, as everywhere.
const FAIL: u8 = 3;
const INCONCLUSIVE: u8 = 4;
const MISMATCH: u8 = 5;

pub(crate) fn run(args: CompareTracesArgs) -> anyhow::Result<ExitCode> {
    let (reference, other) = (Trace::open(&args.reference)?, Trace::open(&args.other)?);
    let result = compare(&reference, &other, &args.options());
    let (text, code) = match &result {
        Ok(comparison) => {
            let text = if args.json { format!("{:#}\n", json!(comparison)) } else { table(comparison) };
            let code = match comparison.verdict {
                Verdict::Pass => 0,
                Verdict::Fail => FAIL,
                Verdict::Inconclusive => INCONCLUSIVE,
            };
            (text, code)
        }
        Err(mismatches) => {
            let json = json!({"verdict": "mismatch", "mismatches": mismatches});
            (if args.json { format!("{json:#}\n") } else { refusal(mismatches) }, MISMATCH)
        }
    };
    match output::print_now(&text) {
        // A reader that goes away takes the text along, and not the verdict.
        Err(error) if !output::is_broken_pipe(&error) => Err(error),
        _ => Ok(ExitCode::from(code)),
    }
}

fn refusal(mismatches: &[Mismatch]) -> String {
    let mut out = String::from("These are not traces of the same thing:\n");
    for mismatch in mismatches {
        let _ = writeln!(out, "  {mismatch}");
    }
    out.push_str("\nMISMATCH\n");
    out
}

fn table(c: &Comparison) -> String {
    let mut out = String::new();
    for d in &c.differences {
        let _ = writeln!(out, "{:<15} {} | {}", d.what, d.reference, d.other);
    }
    if !c.differences.is_empty() {
        out.push('\n');
    }
    let share = |n: usize| 100.0 * n as f64 / c.positions.max(1) as f64;
    let _ = writeln!(out, "positions       {}", c.positions);
    let _ = writeln!(out, "disagreements   {} ({:.2} %)", c.disagreements, share(c.disagreements));
    let margin = c.largest_margin_at_disagreement.map_or("none".to_owned(), |m| format!("{m:.4}"));
    let _ = writeln!(out, "largest margin at a disagreement {margin}");
    let Ranks { first, second, third_to_fifth, sixth_to_tenth, beyond } = c.ranks;
    let _ = writeln!(out, "\n{:<44} {:>10}", "rank of the reference's token in the other", "positions");
    for (rank, n) in
        [("1", first), ("2", second), ("3-5", third_to_fifth), ("6-10", sixth_to_tenth), ("beyond", beyond)]
    {
        let _ = writeln!(out, "{rank:<44} {n:>10}");
    }
    let _ = writeln!(out, "\n{:<32} {:>10} {:>14}", "margin of the reference", "positions", "disagreements");
    for band in &c.margins {
        let range = if band.to.is_finite() {
            format!("{} to {}", band.from, band.to)
        } else {
            format!("{} and more", band.from)
        };
        let _ = writeln!(out, "{range:<32} {:>10} {:>14}", band.positions, band.disagreements);
    }
    let _ = writeln!(out, "\n{:<32} {:>10} {:>14}", "decided at", "positions", "disagreements");
    for row in &c.sweep {
        let _ = writeln!(out, "{:<32.1} {:>10} {:>14}", row.threshold, row.decided, row.disagreements);
    }
    let _ = writeln!(out, "\n{:<15} {:>12} {:>12} {:>12}", "", "reference", "other", "delta");
    let _ = writeln!(
        out,
        "{:<15} {:>12.5} {:>12.5} {:>12.5}",
        "NLL a token",
        c.reference.nll,
        c.other.nll,
        c.other.nll - c.reference.nll
    );
    let _ = writeln!(
        out,
        "{:<15} {:>12.4} {:>12.4} {:>12.4}",
        "perplexity", c.reference.perplexity, c.other.perplexity, c.perplexity_delta
    );
    let kind = if c.kl.exact {
        "over the whole vocabulary".to_owned()
    } else {
        format!("a lower bound: {:.2} % of the probability counts as one token", 100.0 * c.kl.rest)
    };
    let _ = writeln!(out, "KL divergence   mean {:.3e}, max {:.3e} nats ({kind})", c.kl.mean, c.kl.max);
    let _ = writeln!(
        out,
        "logits          differ by {:.4} at most; the stated error is {}",
        c.largest_logit_difference, c.error
    );
    let _ = writeln!(out, "\n{:<32} {:>12} {:>12}", "gate", "found", "at most");
    for gate in &c.gates {
        let name = gate.name.replace('_', " ");
        let result = if gate.pass { "pass" } else { "FAIL" };
        let _ = writeln!(out, "{name:<32} {:>12.6} {:>12} {result}", gate.value, gate.limit);
    }
    let _ = writeln!(out, "\n{}", c.verdict.name().to_uppercase());
    out
}
