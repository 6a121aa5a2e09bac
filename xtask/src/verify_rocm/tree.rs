//! What every change of the tree has to pass, in one row: gates of `cargo xtask verify`.

use std::path::Path;

use anyhow::Result;
use xshell::Shell;

use crate::{gates, outcome::Outcome, report::Row, report::timed, verify::Gate};

/// The gates that are run. Licences and rustdoc are left to `verify`, CUDA to `verify-cuda`; records have a row of their own.
const GATES: [Gate; 7] =
    [Gate::Fmt, Gate::Layers, Gate::Docpaths, Gate::Versions, Gate::Gendocs, Gate::Clippy, Gate::Tests];

pub(super) fn gate(root: &Path) -> Result<Outcome> {
    let sh = Shell::new()?;
    sh.change_dir(root);
    let rows: Vec<Row> =
        GATES.into_iter().map(|gate| timed(gates::name(&gate), || gate.run(root, &sh))).collect();
    Ok(sum(&rows))
}

/// One row of many: what fails in any; else what was skipped in any; else what each says.
fn sum(rows: &[Row]) -> Outcome {
    let (mut passed, mut findings, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for Row { name, outcome, .. } in rows {
        match outcome {
            Outcome::Pass(what) => passed.push(format!("{name}: {what}")),
            Outcome::Fail(found) => findings.extend(found.iter().map(|finding| format!("{name}: {finding}"))),
            Outcome::Skipped(reason) => skips.push(format!("{name}: {reason}")),
        }
    }
    match (findings.is_empty(), skips.is_empty()) {
        (false, _) => Outcome::Fail(findings),
        (true, false) => Outcome::Skipped(skips.join("; ")),
        (true, true) => Outcome::Pass(passed.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_says_what_all_say() {
        let row = |name: &str, outcome| Row { name: name.into(), outcome, seconds: 0.0 };
        let pass = || row("fmt", Outcome::Pass("good".into()));
        let skip = || row("docs", Outcome::Skipped("no tool".into()));
        let fail = || row("tests", Outcome::Fail(vec!["a".into(), "b".into()]));
        for (rows, word, says) in [
            (vec![pass(), pass()], "PASS", "fmt: good; fmt: good"),
            (vec![pass(), skip()], "SKIPPED", "docs: no tool"),
            (vec![pass(), skip(), fail()], "FAIL", "tests: a (and 1 more)"),
        ] {
            let outcome = sum(&rows);
            assert_eq!(outcome.word(), word);
            assert!(outcome.detail().contains(says), "{outcome:?}");
        }
    }
}
