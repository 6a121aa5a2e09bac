//! One version for all: the workspace's, every crate's, what crates ask of each other, and what documents name.

use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::{
    outcome::Outcome,
    tree::{read, shown},
};

/// Documents that may name the version.
const DOCUMENTS: [&str; 3] = ["README.md", "CHANGELOG.md", "docs/installation.md"];

/// The gate.
///
/// # Errors
/// If the workspace or a document cannot be read.
pub(crate) fn gate(root: &Path) -> Result<Outcome> {
    let (version, findings) = check(root)?;
    Ok(Outcome::of(format!("all is of version {version}"), findings))
}

/// The workspace's version, and what has another.
fn check(root: &Path) -> Result<(String, Vec<String>)> {
    let manifest = root.join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(&manifest).no_deps().exec();
    let metadata = metadata.with_context(|| format!("cargo metadata of {}", root.display()))?;
    let version = workspace(&read(&manifest)?).context("Cargo.toml has no version in [workspace.package]")?;
    let mut findings = crates(&metadata, &version);
    for path in DOCUMENTS.map(|name| root.join(name)) {
        if path.is_file() {
            let named = named(&read(&path)?, path.ends_with("CHANGELOG.md"));
            let others = named.into_iter().filter(|(_, found)| *found != version);
            let place = shown(root, &path);
            findings.extend(others.map(|(line, found)| format!("{place}:{line}: {found} is not {version}")));
        }
    }
    Ok((version, findings))
}

/// The version that crates inherit.
fn workspace(manifest: &str) -> Option<String> {
    let section = manifest.split("\n[").find(|section| section.starts_with("workspace.package]"))?;
    let line = section.lines().find_map(|line| line.strip_prefix("version"))?;
    Some(line.trim_start().strip_prefix('=')?.trim().trim_matches('"').to_owned())
}

/// Crates of another version, and those that ask one of ours for another.
fn crates(metadata: &Metadata, version: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for package in metadata.workspace_packages() {
        let name = &package.name;
        if package.version.to_string() != version {
            findings.push(format!("{name}: its version is {}, the workspace's {version}", package.version));
        }
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            // What is not published needs no version.
            let asked = dependency.req.to_string();
            if asked != "*" && asked.trim_start_matches(['^', '=']) != version {
                let of = &dependency.name;
                findings.push(format!(
                    "{name}: it asks for {asked} of {of}, the workspace's version is {version}"
                ));
            }
        }
    }
    findings
}

/// Versions of Portolan in a document, with their lines: `portolan 0.1.0`, `portolan-cli@0.1.0`,
/// `portolan = { version = "0.1.0"`; in the change log also the heading of the newest release.
fn named(text: &str, is_log: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.to_lowercase();
        for rest in line.split("portolan").skip(1) {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '-' || c == '_');
            let rest = rest.trim_start_matches([' ', '@', '=', '{', '"', '\'', ':', '`']);
            let rest = rest.trim_start_matches("--").trim_start_matches("version");
            let rest = rest.trim_start_matches([' ', '=', '"', 'v']);
            found.extend(leading_version(rest).map(|version| (number, version)));
        }
    }
    let headings = || (1..).zip(text.lines()).filter_map(|(n, line)| Some((n, line.strip_prefix("## ")?)));
    if is_log {
        let newest = headings().find_map(|(n, heading)| {
            let version = leading_version(heading.trim_start_matches(['[', 'v']))?;
            Some((n, version))
        });
        found.extend(newest);
    }
    found
}

/// Three numbers with points between them, at the start of a text.
fn leading_version(text: &str) -> Option<String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let version = text.get(..end)?.trim_end_matches('.');
    let parts: Vec<_> = version.split('.').collect();
    (parts.len() == 3 && parts.iter().all(|part| !part.is_empty())).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{root, sample};

    #[test]
    fn the_tree_has_one_version() {
        assert_eq!(check(&root()).unwrap().1, Vec::<String>::new());
    }

    const WORKSPACE: &str = "[workspace]\nmembers = [\"a\", \"b\"]\nresolver = \"3\"\n\n[workspace.package]\n\
                             edition = \"2024\"\nversion = \"0.2.0\"\n\n[workspace.dependencies]\nx = { version = \"9.9.9\" }\n";
    const A: &str = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n";
    const B: &str = "[package]\nname = \"b\"\nversion.workspace = true\nedition.workspace = true\n\
                     [dependencies]\na = { path = \"../a\", version = \"0.2.0\" }\n";

    #[track_caller]
    fn check_found(a: &str, b: &str, documents: &[(&str, &str)], want: &[&str]) {
        let mut files = vec![("Cargo.toml", WORKSPACE), ("a/Cargo.toml", a), ("b/Cargo.toml", b)];
        files.extend([("a/src/lib.rs", ""), ("b/src/lib.rs", "")]);
        files.extend(documents);
        let (version, findings) = check(sample(&files).path()).unwrap();
        assert_eq!((version.as_str(), findings), ("0.2.0", want.iter().map(|f| (*f).to_owned()).collect()));
    }

    #[test]
    fn crates_that_disagree_are_named() {
        check_found(A, B, &[], &[]);
        check_found(A, &B.replace(", version = \"0.2.0\"", ""), &[], &[]);
        let other = A.replace("version.workspace = true", "version = \"0.2.1\"");
        check_found(&other, B, &[], &["a: its version is 0.2.1, the workspace's 0.2.0"]);
        let asks = B.replace("version = \"0.2.0\"", "version = \"0.1.0\"");
        check_found(A, &asks, &[], &["b: it asks for ^0.1.0 of a, the workspace's version is 0.2.0"]);
    }

    #[test]
    fn documents_that_disagree_are_named() {
        let good = "Portolan 0.2.0, portolan-cli@0.2.0, `portolan = { version = \"0.2.0\" }`; llm 0.1.2\n";
        check_found(
            A,
            B,
            &[("README.md", good), ("docs/installation.md", "portolan runs on HIP 6.2.4")],
            &[],
        );
        let old = [
            ("README.md", "x\ncargo install portolan-cli@0.1.0"),
            ("docs/installation.md", "`portolan` v0.1.9."),
        ];
        check_found(
            A,
            B,
            &old,
            &["README.md:2: 0.1.0 is not 0.2.0", "docs/installation.md:1: 0.1.9 is not 0.2.0"],
        );
        check_found(A, B, &[("CHANGELOG.md", "## Unreleased\n\n## 0.2.0, today\n\n## 0.1.0\n")], &[]);
        check_found(A, B, &[("CHANGELOG.md", "## 0.1.0\n")], &["CHANGELOG.md:1: 0.1.0 is not 0.2.0"]);
    }
}
