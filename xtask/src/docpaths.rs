//! The paths that the documents name: each must be there.

use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::tree::{files, prose, read, shown};

/// Documents at the root. Those in docs/ are all read.
const AT_ROOT: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LOCAL_FIXES.md", "ARCHITECTURE.md"];

/// Endings by which a word in backticks with a slash is taken for a file of the tree.
const ENDINGS: [&str; 12] = ["rs", "md", "toml", "cu", "hip", "h", "py", "sh", "json", "jinja", "yml", "txt"];

/// What is named and not there: a line for each, with the document and the line in it.
///
/// Looked at are the targets of links and whatever in backticks looks like a path: it has a slash and either a
/// known ending or a folder of the root in front. `{a,b}` means both, a name with `*` needs one match, and a path
/// counts from the root or from the document's own folder. Fenced code is left out.
///
/// # Errors
/// If a document cannot be read.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>)> {
    let (mut looked_at, mut findings) = (0, Vec::new());
    for document in documents(root)? {
        let text = read(&document)?;
        let folder = document.parent().unwrap_or(root);
        for (number, line) in prose(&text) {
            let place = || format!("{}:{number}", shown(root, &document));
            for target in links(line) {
                looked_at += 1;
                if !exists(root, &[folder], target) {
                    findings.push(format!("{}: the link leads nowhere: {target}", place()));
                }
            }
            for path in code_spans(line).into_iter().filter(|span| looks_like_path(root, span)) {
                for path in braces(path) {
                    looked_at += 1;
                    if !exists(root, &[root, folder], &path) {
                        findings.push(format!("{}: there is no {path}", place()));
                    }
                }
            }
        }
    }
    Ok((looked_at, findings))
}

fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<_> =
        AT_ROOT.iter().map(|name| root.join(name)).filter(|path| path.is_file()).collect();
    if root.join("docs").is_dir() {
        let markdown = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
        found.extend(files(&root.join("docs"))?.into_iter().filter(markdown));
    }
    Ok(found)
}

/// The local targets of `[text](target)` and `[label]: target`.
fn links(line: &str) -> Vec<&str> {
    let outside = outside_code(line);
    let mut found = Vec::new();
    for part in outside.iter().flat_map(|part| part.split("](").skip(1)) {
        found.extend(part.split(')').next());
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        found.push(target);
    }
    found.into_iter().filter_map(local_target).collect()
}

/// A link's target without its title and anchor; none if it leads to the web or into the same document.
fn local_target(target: &str) -> Option<&str> {
    let target = target.trim().trim_matches(['<', '>']);
    let web = target.contains("://") || target.starts_with("mailto:");
    target.split([' ', '#']).next().filter(|target| !web && !target.is_empty())
}

/// What stands between single backticks.
fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// What stands outside them. The text of a link may hold some, so its brackets stay together.
fn outside_code(line: &str) -> Vec<&str> {
    line.split('`').step_by(2).collect()
}

fn looks_like_path(root: &Path, span: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./{},*".contains(c);
    if !span.contains('/') || !span.chars().all(allowed) || span.starts_with('/') {
        return false;
    }
    let first = span.split('/').next().unwrap_or_default();
    let ending = Path::new(span).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    // What cargo builds is not in the tree.
    first != "target" && (ENDINGS.contains(&ending) || (!first.is_empty() && root.join(first).is_dir()))
}

/// `a/{b,c}` is `a/b` and `a/c`.
fn braces(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (choices, tail))) = parts else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| braces(&format!("{head}{choice}{tail}"))).collect()
}

/// Whether `path` is there, from one of these folders, and in the tree.
fn exists(root: &Path, from: &[&Path], path: &str) -> bool {
    from.iter().any(|folder| {
        let Some(path) = inside(root, &folder.join(path)) else { return false };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.split_once('*') {
            None => path.exists(),
            Some((head, tail)) => {
                path.parent().and_then(|folder| folder.read_dir().ok()).is_some_and(|entries| {
                    let names =
                        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
                    names.into_iter().any(|n| {
                        n.len() >= head.len() + tail.len() && n.starts_with(head) && n.ends_with(tail)
                    })
                })
            }
        }
    })
}

/// `path` without its `..`, if it stays below `root`.
fn inside(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean.starts_with(root).then_some(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{root, sample};

    #[test]
    fn every_path_in_the_documents_is_there() {
        assert_eq!(check(&root()).unwrap().1, Vec::<String>::new());
    }

    /// In docs/a.md of a small tree, `text` leads to these findings.
    #[track_caller]
    fn check_text(text: &str, want: &[&str]) {
        let files = [("docs/a.md", text), ("docs/b.md", ""), ("crates/x/src/lib.rs", ""), ("README.md", "")];
        let dir = sample(&files);
        assert_eq!(check(dir.path()).unwrap().1, want, "{text:?}");
    }

    #[test]
    fn what_is_there_is_found() {
        check_text("[b](b.md) [b](b.md#part) [up](../README.md) [top](#top) [w](https://w.org/x.md)", &[]);
        check_text(
            "[x]: ../crates/x\n[`x/lib.rs`](../crates/x/src/lib.rs)",
            &["docs/a.md:2: there is no x/lib.rs"],
        );
        check_text(
            "`crates/x/src/lib.rs` `crates/x/` `b.md` `a/b` `owner/name` `cargo test` `../README.md`",
            &[],
        );
        check_text(
            "`crates/x/{src,src/lib.rs}` `crates/*/src` `crates/x/src/*.rs`",
            &["docs/a.md:1: there is no crates/*/src"],
        );
        check_text("```sh\ncat crates/y.rs\n`crates/y.rs`\n```\n`target/doc/x.md` `/etc/x.toml`", &[]);
    }

    #[test]
    fn what_is_not_there_is_named_with_its_line() {
        check_text("x\n[c](c.md)", &["docs/a.md:2: the link leads nowhere: c.md"]);
        check_text("[c](crates/x)", &["docs/a.md:1: the link leads nowhere: crates/x"]);
        check_text("see `crates/y/src/lib.rs`", &["docs/a.md:1: there is no crates/y/src/lib.rs"]);
        check_text("see `other/y.rs`", &["docs/a.md:1: there is no other/y.rs"]);
        check_text("see `crates/x/{src,no}`", &["docs/a.md:1: there is no crates/x/no"]);
        check_text("see `crates/x/src/*.cu`", &["docs/a.md:1: there is no crates/x/src/*.cu"]);
        check_text("[out](../../x)", &["docs/a.md:1: the link leads nowhere: ../../x"]);
    }
}
