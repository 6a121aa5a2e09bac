//! LOCAL_FIXES.md and the marks in the tree: each item has its mark, each mark its item.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::tree::{files, prose, read, shown};

const RECORDS: &str = "LOCAL_FIXES.md";

/// What an item must say, each on a line `- Field: text`.
const FIELDS: [&str; 4] = ["Symptom", "Versions", "Upstream", "Remove when"];

/// What a mark begins with; its number and a bracket follow. Written in two, for it is no mark itself.
const MARK: &str = concat!("LOCAL_", "FIX(");

/// Items without their fields or marks, and marks without an item. The number is that of the items.
///
/// # Errors
/// If LOCAL_FIXES.md or the tree cannot be read.
pub(crate) fn check(root: &Path) -> Result<(usize, Vec<String>)> {
    let text = read(&root.join(RECORDS))?;
    let mut findings = Vec::new();
    let items = items(&text, &mut findings);
    let marks = marks(root)?;
    for (number, item) in &items {
        for field in FIELDS.iter().filter(|field| !item.fields.iter().any(|have| have == *field)) {
            findings.push(format!("{RECORDS}:{}: item {number} has no line \"- {field}: ...\"", item.line));
        }
        if !marks.contains_key(number) {
            findings.push(format!("{RECORDS}:{}: nothing in the tree is marked {MARK}{number})", item.line));
        }
    }
    for (number, place) in marks.iter().filter(|(number, _)| !items.contains_key(number)) {
        findings.push(format!("{place}: {MARK}{number}) has no item in {RECORDS}"));
    }
    Ok((items.len(), findings))
}

struct Item {
    line: usize,
    fields: Vec<String>,
}

fn items(text: &str, findings: &mut Vec<String>) -> BTreeMap<u32, Item> {
    let mut items: BTreeMap<u32, Item> = BTreeMap::new();
    let mut current = None;
    for (line, content) in prose(text) {
        if let Some(heading) = content.strip_prefix("## ") {
            let title = heading.split_once(". ").filter(|(_, title)| !title.trim().is_empty());
            current = title.and_then(|(number, _)| number.parse::<u32>().ok());
            match current {
                None => findings.push(format!("{RECORDS}:{line}: a heading is \"## N. title\"")),
                Some(number) if items.contains_key(&number) => {
                    findings.push(format!("{RECORDS}:{line}: item {number} is there twice"));
                }
                Some(number) => drop(items.insert(number, Item { line, fields: Vec::new() })),
            }
        } else if let Some(item) = current.and_then(|number| items.get_mut(&number))
            && let Some((field, said)) = content.strip_prefix("- ").and_then(|rest| rest.split_once(':'))
            && !said.trim().is_empty()
        {
            item.fields.push(field.to_owned());
        }
    }
    items
}

/// The numbers of all marks, each with the first place where it stands. Documents may speak of marks.
fn marks(root: &Path) -> Result<BTreeMap<u32, String>> {
    let mut found = BTreeMap::new();
    for path in files(root)? {
        if path.extension().is_some_and(|extension| extension == "md") {
            continue;
        }
        // A file that is no text holds no mark.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            for rest in line.split(MARK).skip(1) {
                if let Some(mark) = rest.split_once(')').and_then(|(mark, _)| mark.parse::<u32>().ok()) {
                    found.entry(mark).or_insert_with(|| format!("{}:{number}", shown(root, &path)));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{root, sample};

    #[test]
    fn the_records_and_the_marks_agree() {
        assert_eq!(check(&root()).unwrap().1, Vec::<String>::new());
    }

    const ITEM: &str = "## 1. A thing\n- Symptom: a\n- Versions: b\n- Upstream: c\n- Remove when: d\n";

    #[track_caller]
    fn check_found(records: &str, code: &str, want: &[&str]) {
        let code = code.replace("MARK", MARK);
        let dir = sample(&[(RECORDS, records), ("a/b.rs", &code), ("other.md", &format!("{MARK}9)"))]);
        let want: Vec<_> = want.iter().map(|want| want.replace("MARK", MARK)).collect();
        assert_eq!(check(dir.path()).unwrap().1, want);
    }

    #[test]
    fn whole_records_pass() {
        check_found("# Local fixes\n\n```text\n## N. title\n```\n", "// nothing", &[]);
        check_found(ITEM, "// MARK1): a thing", &[]);
    }

    #[test]
    fn broken_records_are_seen() {
        check_found(ITEM, "// nothing", &["LOCAL_FIXES.md:1: nothing in the tree is marked MARK1)"]);
        check_found("# x", "\n// MARK2)", &["a/b.rs:2: MARK2) has no item in LOCAL_FIXES.md"]);
        let without = ITEM.replace("- Upstream: c\n", "- Upstream:\n");
        check_found(&without, "// MARK1)", &["LOCAL_FIXES.md:1: item 1 has no line \"- Upstream: ...\""]);
        let twice = format!("{ITEM}{ITEM}");
        check_found(&twice, "// MARK1)", &["LOCAL_FIXES.md:6: item 1 is there twice"]);
        check_found("## A thing", "", &["LOCAL_FIXES.md:1: a heading is \"## N. title\""]);
    }

    #[test]
    fn a_tree_without_records_is_an_error() {
        assert!(check(sample(&[("a.rs", "")]).path()).is_err());
    }
}
