//! A table of gates and how they end, and the same as JSON.

use std::time::Instant;

use anyhow::Result;

use crate::outcome::Outcome;

/// One row of the table.
pub(crate) struct Row {
    /// The gate.
    pub(crate) name: String,
    /// How it ends.
    pub(crate) outcome: Outcome,
    /// How long it took.
    pub(crate) seconds: f64,
}

/// Runs a gate and prints what it finds, the first twenty of it. One that breaks has failed.
pub(crate) fn timed(name: String, gate: impl FnOnce() -> Result<Outcome>) -> Row {
    println!("== {name}");
    let start = Instant::now();
    let outcome = gate().unwrap_or_else(|error| Outcome::Fail(vec![format!("{error:#}")]));
    if let Outcome::Fail(findings) = &outcome {
        findings.iter().take(20).for_each(|finding| println!("{finding}"));
    }
    Row { name, outcome, seconds: start.elapsed().as_secs_f64() }
}

/// Whether the rows let a change pass; under `require` a skip does not. No row at all does not.
pub(crate) fn holds(rows: &[Row], require: bool) -> bool {
    let good = |row: &Row| match row.outcome {
        Outcome::Pass(_) => true,
        Outcome::Fail(_) => false,
        Outcome::Skipped(_) => !require,
    };
    !rows.is_empty() && rows.iter().all(good)
}

/// A line a row.
pub(crate) fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).fold(9, usize::max);
    let line = |row: &Row| {
        let (name, word, detail) = (&row.name, row.outcome.word(), row.outcome.detail());
        format!("{name:<width$} {word:<8} {:>6.1} s  {detail}", row.seconds)
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// An object a row.
pub(crate) fn json(rows: &[Row]) -> Vec<serde_json::Value> {
    let row = |row: &Row| {
        let findings = if let Outcome::Fail(findings) = &row.outcome { findings.as_slice() } else { &[] };
        serde_json::json!({
            "gate": row.name,
            "outcome": row.outcome.word(),
            "detail": row.outcome.detail(),
            "findings": findings,
            "seconds": (row.seconds * 10.0).round() / 10.0,
        })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: Outcome) -> Row {
        Row { name: "fmt".into(), outcome, seconds: 1.26 }
    }

    #[test]
    fn a_failure_fails_and_a_skip_does_if_required() {
        let (pass, skip) = (|| row(Outcome::Pass("all".into())), || row(Outcome::Skipped("no tool".into())));
        let fail = || row(Outcome::Fail(vec!["a".into(), "b".into()]));
        for (rows, require, want) in [
            (vec![pass()], false, true),
            (vec![pass(), fail()], false, false),
            (vec![pass(), skip()], false, true),
            (vec![pass(), skip()], true, false),
            (vec![], false, false),
        ] {
            assert_eq!(holds(&rows, require), want, "{}", table(&rows));
        }
    }

    #[test]
    fn the_table_and_the_report_say_the_same() {
        let rows =
            [row(Outcome::Fail(vec!["a".into(), "b".into()])), row(Outcome::Skipped("no tool".into()))];
        let want = "fmt       FAIL        1.3 s  a (and 1 more)\nfmt       SKIPPED     1.3 s  (no tool)";
        assert_eq!(table(&rows), want);
        let json = json(&rows);
        assert_eq!(json[0]["findings"], serde_json::json!(["a", "b"]));
        assert_eq!(json[1]["outcome"], "SKIPPED");
        assert_eq!(json[0]["seconds"], 1.3);
    }
}
