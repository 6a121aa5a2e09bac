//! Shared by the integration tests: the oracle folder and a reader for GGUF vocabularies.
#![allow(dead_code)]

pub(crate) mod gguf;

use std::path::PathBuf;

/// A path in the oracle folder that `PORTOLAN_ORACLE` names. `None`, with a line on stderr, if
/// there is none; under `PORTOLAN_ORACLE_REQUIRED=1` that is a failure.
#[track_caller]
pub(crate) fn oracle(sub: &str) -> Option<PathBuf> {
    let found = std::env::var_os("PORTOLAN_ORACLE").map(|root| PathBuf::from(root).join(sub));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        let required = std::env::var_os("PORTOLAN_ORACLE_REQUIRED").is_some_and(|v| v == "1");
        assert!(!required, "PORTOLAN_ORACLE has no {sub}");
        eprintln!("SKIPPED(no oracle: {sub})");
    }
    found
}
