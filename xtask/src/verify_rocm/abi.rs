//! The table of HIP's functions against declarations that others made: hip-runtime-sys, and headers where they are
//! installed.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::{headers, hip_table};
use crate::{outcome::Outcome, test_run::watch, tree::read};

/// The table.
const TABLE: &str = "crates/device/src/rocm/sys.rs";

pub(super) fn gate(root: &Path) -> Result<Outcome> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["test", "-p", "portolan-device", "--test", "hip_abi"]);
    let what = match watch(cargo)?.outcome {
        Outcome::Pass(what) => what,
        other => return Ok(other),
    };
    let table = hip_table::read(&read(&root.join(TABLE))?)?;
    against_headers(&what, &table, headers::installed().as_deref())
}

/// Adds what the headers say.
fn against_headers(what: &str, table: &hip_table::Table, include: Option<&Path>) -> Result<Outcome> {
    let Some(include) = include else {
        return Ok(Outcome::Pass(format!("against hip-runtime-sys: {what}; no newer headers here")));
    };
    let (version, functions, constants) =
        (headers::version(include), table.functions.len(), table.constants.len());
    Ok(match headers::check(table, include)? {
        None => Outcome::Pass(format!("against hip-runtime-sys: {what}; no C compiler for the headers")),
        Some(findings) => Outcome::of(
            format!(
                "against hip-runtime-sys: {what}; {functions} functions and {constants} constants against the \
                 headers of HIP {version}"
            ),
            findings,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_not_there_are_said() {
        let table = hip_table::read(hip_table::SAMPLE).unwrap();
        let outcome = against_headers("2 passed", &table, None).unwrap();
        assert_eq!(
            outcome,
            Outcome::Pass("against hip-runtime-sys: 2 passed; no newer headers here".to_owned())
        );
        let empty = tempfile::tempdir().unwrap();
        let outcome = against_headers("2 passed", &table, Some(empty.path())).unwrap();
        assert!(outcome.word() != "SKIPPED", "{outcome:?}");
    }
}
