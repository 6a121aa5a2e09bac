//! The files of the tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of this workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// All files below `folder`, sorted, without git's own and what cargo builds.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(folder, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let name = name.to_string_lossy();
        if kind.is_dir() {
            // A folder with cargo's tag is a target folder, whatever its name.
            let built = entry.path().join("CACHEDIR.TAG").exists();
            if !(name == ".git" || name == "target" || name.starts_with("target-") || built) {
                collect(&entry.path(), found)?;
            }
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// All `.rs` files below `folder`; none if there is no such folder.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = files(folder)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(found)
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// `path` as the findings name it: from the root, with slashes.
pub(crate) fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// The lines of a Markdown text with their numbers from 1, without fenced code.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => {
                fence = Some(mark);
                false
            }
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                false
            }
            (open, _) => open.is_none(),
        }
    })
}

/// A tree of files for a test, in a folder that goes when it is dropped.
#[cfg(test)]
pub(crate) fn sample(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_files_and_gits_own_are_left_out() {
        let dir = sample(&[
            ("a/b.rs", ""),
            ("target/x.rs", ""),
            ("target-2/x.rs", ""),
            (".git/x", ""),
            ("odd/CACHEDIR.TAG", ""),
            ("odd/y.rs", ""),
            (".ci/run", ""),
        ]);
        let names: Vec<_> = files(dir.path()).unwrap().iter().map(|path| shown(dir.path(), path)).collect();
        assert_eq!(names, [".ci/run", "a/b.rs"]);
    }

    #[test]
    fn fenced_code_is_no_prose() {
        let lines: Vec<_> = prose("a\n```text\nb\n~~~\n```\nc\n~~~\nd\n").collect();
        assert_eq!(lines, [(1, "a"), (6, "c")]);
    }
}
