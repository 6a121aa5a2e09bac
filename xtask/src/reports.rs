//! docs/reports.md: a row for each report, numbered from 1, that names its tests; each of them is there.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::tree::{prose, read};

const REPORTS: &str = "docs/reports.md";

/// Rows without a test, tests that are not there, and numbers out of order. The number is that of the rows.
///
/// # Errors
/// If the document cannot be read.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>)> {
    let text = read(&root.join(REPORTS))?;
    let (mut rows, mut findings) = (0, Vec::new());
    for (line, content) in prose(&text) {
        let Some(cells) = content.strip_prefix('|') else { continue };
        let Some(number) = cells.split('|').next().and_then(|cell| cell.trim().parse::<usize>().ok()) else {
            continue;
        };
        rows += 1;
        if number != rows {
            findings.push(format!("{REPORTS}:{line}: report {number} stands where {rows} should"));
        }
        let named = tests(content);
        if named.is_empty() {
            findings.push(format!("{REPORTS}:{line}: report {number} names no test: \"`name` in path.rs\""));
        }
        for (name, path) in named {
            findings.extend(missing(root, name, path).map(|what| format!("{REPORTS}:{line}: {what}")));
        }
    }
    if rows == 0 {
        findings.push(format!("{REPORTS}: it has no row \"| 1 | ... |\""));
    }
    Ok((rows, findings))
}

/// The pairs of `` `name` in path.rs ``; several names before one path, with commas between, are all in it.
fn tests(row: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut rest = row;
    while let Some((_, after)) = rest.split_once('`') {
        let Some((name, after)) = after.split_once('`') else { break };
        names.push(name);
        rest = after;
        if let Some(after) = after.strip_prefix(" in ") {
            let path = after.split([' ', ',', ';', '|', ')']).next().unwrap_or_default();
            found.extend(names.drain(..).map(|name| (name, path)));
        } else if !after.starts_with(", `") {
            // What stands in backticks and is in no file is no test.
            names.clear();
        }
    }
    found
}

fn missing(root: &Path, name: &str, path: &str) -> Option<String> {
    let Ok(text) = fs::read_to_string(root.join(path)) else {
        return Some(format!("the test {name} is said to be in {path}, which is not there"));
    };
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let at = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")));
    let is_test = |at: usize| {
        let before = lines[..at].iter().rev();
        before
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .any(|line| *line == "#[test]")
    };
    match at {
        None => Some(format!("{path} has no test {name}")),
        Some(at) if !is_test(at) => Some(format!("{name} in {path} is no test")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{root, sample};

    #[test]
    fn every_report_has_its_tests() {
        let (rows, findings) = check(&root()).unwrap();
        assert_eq!((rows, findings), (26, vec![]));
    }

    #[track_caller]
    fn check_rows(rows: &str, want: &[&str]) {
        let code = "#[test]\nfn a_1_works() {}\n\n#[test]\n// Why.\n#[cfg(unix)]\nfn b_2_works() {}\nfn helper() {}\n";
        let dir = sample(&[(REPORTS, rows), ("a/t.rs", code)]);
        assert_eq!(super::check(dir.path()).unwrap().1, want, "{rows}");
    }

    #[test]
    fn rows_and_their_tests() {
        check_rows("| # | report | tests |\n|---|---|---|\n| 1 | x | `a_1_works` in a/t.rs |", &[]);
        check_rows(
            "| 1 | `x y` | `a_1_works`, `b_2_works` in a/t.rs; a GPU |\n| 2 | x | `b_2_works` in a/t.rs |",
            &[],
        );
        check_rows(
            "| 2 | x | `a_1_works` in a/t.rs |",
            &["docs/reports.md:1: report 2 stands where 1 should"],
        );
        check_rows(
            "| 1 | x | `a_1_works` |",
            &["docs/reports.md:1: report 1 names no test: \"`name` in path.rs\""],
        );
        check_rows("| 1 | x | `gone` in a/t.rs |", &["docs/reports.md:1: a/t.rs has no test gone"]);
        check_rows(
            "| 1 | x | `a_1`, `a_1_works` in a/t.rs |",
            &["docs/reports.md:1: a/t.rs has no test a_1"],
        );
        check_rows("| 1 | x | `helper` in a/t.rs |", &["docs/reports.md:1: helper in a/t.rs is no test"]);
        check_rows(
            "| 1 | x | `a_1_works` in a/gone.rs |",
            &["docs/reports.md:1: the test a_1_works is said to be in a/gone.rs, which is not there"],
        );
        check_rows("# Reports", &["docs/reports.md: it has no row \"| 1 | ... |\""]);
    }
}
