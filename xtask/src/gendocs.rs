//! The generated documents: written by `cargo xtask gendocs`, compared by `cargo xtask verify`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::outcome::Outcome;

/// Every generated document: its path, and what it must hold.
fn documents() -> Vec<(&'static str, String)> {
    vec![
        ("docs/environment.md", portolan::docs::environment_md()),
        ("docs/ports.md", portolan::docs::ports_md()),
    ]
}

/// Writes them.
pub(crate) fn write(root: &Path) -> Result<()> {
    for (path, text) in documents() {
        let file = root.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// The gate: each is there and up to date.
pub(crate) fn gate(root: &Path) -> Outcome {
    let documents = documents();
    if documents.is_empty() {
        return Outcome::Skipped("no document is generated yet".to_owned());
    }
    let names: Vec<_> = documents.iter().map(|(path, _)| *path).collect();
    Outcome::of(names.join(", "), stale(root, &documents))
}

/// Those that are missing or differ, with the first line that does.
fn stale(root: &Path, documents: &[(&str, String)]) -> Vec<String> {
    let compare = |(path, want): &(&str, String)| {
        let have = match fs::read_to_string(root.join(path)) {
            Ok(have) => have,
            Err(error) => return Some(format!("{path}: {error}; run cargo xtask gendocs")),
        };
        if have == *want {
            return None;
        }
        let same = have.lines().zip(want.lines()).take_while(|(have, want)| have == want).count();
        Some(format!("{path}:{}: out of date; run cargo xtask gendocs", same + 1))
    };
    documents.iter().filter_map(compare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    #[track_caller]
    fn check(have: &str, want: &str, finding: Option<&str>) {
        let dir = sample(&[("docs/a.md", have)]);
        let findings = stale(dir.path(), &[("docs/a.md", want.to_owned())]);
        assert_eq!(findings, Vec::from_iter(finding.map(str::to_owned)));
    }

    #[test]
    fn what_differs_is_named_with_its_line() {
        check("a\nb\n", "a\nb\n", None);
        check("a\nb\n", "a\nc\n", Some("docs/a.md:2: out of date; run cargo xtask gendocs"));
        check("a\n", "a\nb\n", Some("docs/a.md:2: out of date; run cargo xtask gendocs"));
        check("a", "a\n", Some("docs/a.md:2: out of date; run cargo xtask gendocs"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let findings = stale(sample(&[]).path(), &[("docs/b.md", String::new())]);
        assert!(findings.len() == 1 && findings[0].starts_with("docs/b.md: "), "{findings:?}");
    }
}
