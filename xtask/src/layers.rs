//! The order of the crates, and what a crate may not hold.
//!
//! docs/ARCHITECTURE.md states the rules for people; this table is what is checked.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::rust_source::{Line, has_word, lines, words};
use crate::tree::{read, rust_files, shown};

/// The crates from the lowest layer up. One may depend on those before it.
const LAYERS: [&str; 7] = [
    "portolan-device",
    "portolan-weights",
    "portolan-kernels",
    "portolan-models",
    "portolan-text",
    "portolan",
    "portolan-cli",
];

/// Crates that only tests may depend on.
const FOR_TESTS: [&str; 3] = ["hip-emu", "hip-on-cuda", "portolan-testkit"];

/// Crates that nothing depends on, and that may depend on all others.
const TOOLS: [&str; 2] = ["portolan-benches", "xtask"];

/// Crates that may depend on fewer Portolan crates than their layer allows.
const NARROW: [(&str, &[&str]); 2] = [("portolan-text", &[]), ("portolan-cli", &["portolan"])];

/// Crates that may hold unsafe code.
const UNSAFE: [&str; 4] = ["portolan-device", "portolan-kernels", "hip-emu", "hip-on-cuda"];

/// Words that name a backend, and so may not stand in the code of `portolan-models`.
pub(crate) const BACKENDS: [&str; 6] = ["cuda", "rocm", "hip", "cpu", "nvrtc", "hiprtc"];

/// What breaks the rules in the workspace at `root`.
///
/// # Errors
/// If cargo cannot read the workspace, or a source file cannot be read.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec();
    let metadata = metadata.with_context(|| format!("cargo metadata of {}", root.display()))?;
    let mut findings = Vec::new();
    for package in metadata.workspace_packages() {
        dependencies(package, &metadata, &mut findings);
        sources(root, package, &mut findings)?;
    }
    findings.sort();
    Ok(findings)
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

/// Whether `from` may depend on `to`, or why not.
fn may_depend(from: &str, to: &str, kind: DependencyKind) -> Result<(), &'static str> {
    let for_tests = FOR_TESTS.contains(&to);
    if TOOLS.contains(&to) {
        return Err("nothing may depend on a tool");
    }
    if TOOLS.contains(&from) {
        return Ok(());
    }
    if for_tests && (kind == DependencyKind::Development || FOR_TESTS.contains(&from)) {
        return Ok(());
    }
    if for_tests {
        return Err("only tests may depend on it");
    }
    let narrow = NARROW.iter().find(|(name, _)| *name == from);
    if let Some((_, allowed)) = narrow
        && kind != DependencyKind::Development
        && !allowed.contains(&to)
    {
        return Err("this crate may not depend on it");
    }
    match (layer(from), layer(to)) {
        (Some(from), Some(to)) if to >= from => Err("its layer is not below"),
        _ => Ok(()),
    }
}

fn dependencies(package: &Package, metadata: &Metadata, findings: &mut Vec<String>) {
    let from = package.name.as_str();
    if layer(from).is_none() && !FOR_TESTS.contains(&from) && !TOOLS.contains(&from) {
        findings.push(format!("{from}: not in the table of layers (xtask/src/layers.rs)"));
        return;
    }
    let members: Vec<_> =
        metadata.workspace_packages().iter().map(|member| member.name.to_string()).collect();
    for dependency in package.dependencies.iter().filter(|dependency| members.contains(&dependency.name)) {
        if let Err(why) = may_depend(from, &dependency.name, dependency.kind) {
            let kind = dependency.kind;
            findings.push(format!(
                "{from}: its {kind} dependency on {} breaks the layers: {why}",
                dependency.name
            ));
        }
    }
}

fn sources(root: &Path, package: &Package, findings: &mut Vec<String>) -> Result<()> {
    let name = package.name.as_str();
    let folder = package.manifest_path.parent().map(|folder| folder.as_std_path().to_owned());
    let folder = folder.with_context(|| format!("{name} has no folder"))?;
    let mut parsed = BTreeMap::new();
    for path in rust_files(&folder)? {
        let lines = lines(&read(&path)?);
        parsed.insert(path, lines);
    }
    for (path, lines) in &parsed {
        let place = |number: usize| format!("{}:{}", shown(root, path), number + 1);
        if UNSAFE.contains(&name) {
            let bare = without_safety(lines);
            findings.extend(bare.map(|number| format!("{}: unsafe without a SAFETY comment", place(number))));
        } else {
            let unsafes = (0..).zip(lines).filter(|(_, line)| has_word(&line.code, "unsafe"));
            findings.extend(unsafes.map(|(number, _)| format!("{}: unsafe code in {name}", place(number))));
        }
        if name == "portolan-models" && path.starts_with(folder.join("src")) {
            for (number, line) in (0..).zip(lines) {
                if let Some(word) =
                    words(&line.text).into_iter().find(|word| BACKENDS.contains(&word.as_str()))
                {
                    findings.push(format!("{}: {name} names a backend: {word}", place(number)));
                }
            }
        }
    }
    let forbids = |lines: &Vec<Line>| lines.iter().any(|line| line.code.trim() == "#![forbid(unsafe_code)]");
    for target in package.targets.iter().filter(|target| target.is_lib() || target.is_bin()) {
        let path = target.src_path.as_std_path();
        if !UNSAFE.contains(&name) && !parsed.get(path).is_some_and(forbids) {
            findings.push(format!("{}: #![forbid(unsafe_code)] is missing", shown(root, path)));
        }
    }
    Ok(())
}

/// The lines, from 0, on which an unsafe block or impl begins that no SAFETY comment goes before.
fn without_safety(lines: &[Line]) -> impl Iterator<Item = usize> + '_ {
    let begins = |code: &str| {
        code.split("unsafe").skip(1).any(|rest| {
            let rest = rest.trim_start();
            rest.is_empty() || rest.starts_with('{') || rest.starts_with("impl")
        })
    };
    (0..lines.len()).filter(move |number| {
        let line = &lines[*number];
        has_word(&line.code, "unsafe") && begins(&line.code) && !has_safety(&lines[..=*number])
    })
}

/// Whether a SAFETY comment stands in the last of these lines or before the statement that it ends.
fn has_safety(lines: &[Line]) -> bool {
    for (steps, line) in lines.iter().rev().enumerate() {
        let code = line.code.trim();
        // An earlier statement, and a blank line, end the search; an attribute does not.
        let over = code.ends_with([';', '{', '}', ',']) || (code.is_empty() && line.comment.is_empty());
        if steps > 0 && over {
            return false;
        }
        if line.comment.contains("SAFETY:") {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
