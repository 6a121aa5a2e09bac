//! What Portolan's tests share: where the oracle is, how a skip is said, how numbers are compared.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, clippy::panic, clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::Write,
    path::{Path, PathBuf},
};

mod compare;
pub mod fixture;
mod tensors;
pub mod tiny;

pub use compare::{assert_close, max_abs_diff};
pub use tensors::Tensors;

/// The folder `sub` of the oracle: first what is committed under this crate's `data/`, then `PORTOLAN_ORACLE`.
///
/// Returns none, and says so through [`skipped`], when neither has it.
///
/// # Panics
/// When `PORTOLAN_ORACLE_REQUIRED` is on and neither has it.
pub fn oracle(sub: &str) -> Option<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(sub);
    if committed.exists() {
        return Some(committed);
    }
    if let Some(root) = std::env::var_os("PORTOLAN_ORACLE").filter(|r| !r.is_empty()) {
        let path = Path::new(&root).join(sub);
        if path.exists() {
            return Some(path);
        }
    }
    let required = std::env::var("PORTOLAN_ORACLE_REQUIRED").unwrap_or_default();
    assert!(
        matches!(required.to_ascii_lowercase().as_str(), "" | "0" | "false" | "off" | "no"),
        "PORTOLAN_ORACLE_REQUIRED is on, but the oracle has no '{sub}' (PORTOLAN_ORACLE={:?})",
        std::env::var_os("PORTOLAN_ORACLE")
    );
    skipped(&format!("no oracle: {sub}"));
    None
}

/// Says that a test, or a part of one, was skipped and why: on stderr, and in the file that
/// `PORTOLAN_SKIP_LOG` names, since the test runner hides the output of a test that passes.
pub fn skipped(reason: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED({reason}) in {test}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("PORTOLAN_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{line}");
        }
    }
}
