//! LOCAL_FIXES.md, the marks in the tree and the tests that it names: each item has its mark and its test, each mark its
//! item, and no number is used again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::outcome::Outcome;
use crate::reports;
use crate::tree::{files, prose, read, shown};

const RECORDS: &str = "LOCAL_FIXES.md";

/// What an item must say, each on a line `- Field: text`.
const FIELDS: [&str; 4] = ["Symptom", "Versions", "Upstream", "Remove when"];

/// What a mark begins with; its number and a bracket follow. Written in two, for it is no mark itself.
const MARK: &str = concat!("LOCAL_", "FIX(");

/// The gate, which takes [`reports::check`] along.
///
/// # Errors
/// As [`check`].
pub(crate) fn gate(root: &Path) -> Result<Outcome> {
    let (count, mut findings) = check(root)?;
    let (rows, wrong) = reports::check(root)?;
    findings.extend(wrong);
    Ok(Outcome::of(format!("{count} local fixes, {rows} reports"), findings))
}

/// Items without their fields, marks or tests, numbers out of order, and marks without an item. The number is that of
/// the items.
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
        findings.extend(test(root, *number, item));
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
    /// All that it says.
    text: String,
}

/// What is wrong with the test that an item names: `` `name` in path.rs ``, or `the whole of path.rs`.
fn test(root: &Path, number: u32, item: &Item) -> Option<String> {
    let found = |what: String| Some(format!("{RECORDS}:{}: item {number} {what}", item.line));
    let path_of = |rest: &str| {
        let path = rest.split_whitespace().next()?.trim_matches(['`', ',', ';', '.', ')']).to_owned();
        path.ends_with(".rs").then_some(path)
    };
    let whole = item.text.split("the whole of ").skip(1).find_map(|rest| Some((None, path_of(rest)?)));
    let named = item.text.split("` in ").collect::<Vec<_>>().windows(2).find_map(|pair| {
        let [before, after] = pair else { return None };
        Some((Some(before.rsplit('`').next()?.to_owned()), path_of(after)?))
    });
    let Some((name, path)) = named.or(whole) else {
        return found("names no test: \"`name` in path.rs\"".to_owned());
    };
    let Ok(text) = fs::read_to_string(root.join(&path)) else {
        return found(format!("names a test in {path}, which is not there"));
    };
    match name {
        Some(name) if !text.contains(&format!("fn {name}(")) => {
            found(format!("names the test {name}, which is not in {path}"))
        }
        _ if !text.contains("#[test]") => found(format!("names {path}, which has no test")),
        _ => None,
    }
}

/// Numbers ascend from 1 without a gap. A line `Removed: N` outside of code stands for an item that went.
fn order(numbers: &[(usize, u32)], findings: &mut Vec<String>) {
    let mut next = 1;
    for &(line, number) in numbers {
        if number != next {
            findings.push(format!("{RECORDS}:{line}: item {number} stands where {next} should: an item that went leaves a line \"Removed: {next}\", and no number is used again"));
        }
        next = next.max(number + 1);
    }
}

fn items(text: &str, findings: &mut Vec<String>) -> BTreeMap<u32, Item> {
    let mut items: BTreeMap<u32, Item> = BTreeMap::new();
    let (mut current, mut numbers) = (None, Vec::new());
    for (line, content) in prose(text) {
        let removed = content.strip_prefix("Removed: ").and_then(|number| number.trim().parse().ok());
        numbers.extend(removed.map(|number| (line, number)));
        if let Some(heading) = content.strip_prefix("## ") {
            let title = heading.split_once(". ").filter(|(_, title)| !title.trim().is_empty());
            current = title.and_then(|(number, _)| number.parse::<u32>().ok());
            match current {
                None => findings.push(format!("{RECORDS}:{line}: a heading is \"## N. title\"")),
                Some(number) if items.contains_key(&number) => {
                    findings.push(format!("{RECORDS}:{line}: item {number} is there twice"));
                }
                Some(number) => {
                    numbers.push((line, number));
                    items.insert(number, Item { line, fields: Vec::new(), text: String::new() });
                }
            }
        } else if let Some(item) = current.and_then(|number| items.get_mut(&number)) {
            item.text += content;
            item.text.push('\n');
            let field = content.strip_prefix("- ").and_then(|rest| rest.split_once(':'));
            item.fields
                .extend(field.filter(|(_, said)| !said.trim().is_empty()).map(|(name, _)| name.to_owned()));
        }
    }
    order(&numbers, findings);
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

    const ITEM: &str = "## 1. A thing\n- Symptom: a\n- Versions: b\n- Upstream: c\n\
                        - Remove when: d; the test is `it_works` in a/t.rs\n";

    #[track_caller]
    fn check_found(records: &str, code: &str, want: &[&str]) {
        let code = code.replace("MARK", MARK);
        let other = format!("{MARK}9)");
        let test = ("a/t.rs", "#[test]\nfn it_works() {}\n");
        let dir = sample(&[(RECORDS, records), ("a/b.rs", &code), ("other.md", &other), test]);
        let want: Vec<_> = want.iter().map(|want| want.replace("MARK", MARK)).collect();
        assert_eq!(check(dir.path()).unwrap().1, want);
    }

    #[test]
    fn whole_records_pass() {
        check_found("# Local fixes\n\n```text\n## N. title\n```\n", "// nothing", &[]);
        check_found(ITEM, "// MARK1): a thing", &[]);
        let whole = ITEM.replace("`it_works` in a/t.rs", "the whole of a/t.rs, which needs nothing");
        check_found(&whole, "// MARK1): a thing", &[]);
        // An item that went leaves its number behind.
        let second = format!("Removed: 1\n{}", ITEM.replace("## 1", "## 2"));
        check_found(&second, "// MARK2)", &[]);
    }

    #[test]
    fn a_test_that_is_not_there_is_seen() {
        for (test, says) in [
            ("none", "names no test: \"`name` in path.rs\""),
            ("`it_works`", "names no test: \"`name` in path.rs\""),
            ("`it_works` in place", "names no test: \"`name` in path.rs\""),
            ("`it_breaks` in a/t.rs.", "names the test it_breaks, which is not in a/t.rs"),
            ("`it_works` in `a/gone.rs`", "names a test in a/gone.rs, which is not there"),
            ("the whole of a/b.rs", "names a/b.rs, which has no test"),
        ] {
            let item = ITEM.replace("`it_works` in a/t.rs", test);
            check_found(&item, "// MARK1)", &[&format!("LOCAL_FIXES.md:1: item 1 {says}")]);
        }
    }

    #[test]
    fn a_number_is_not_used_again() {
        let advice =
            |n| format!("an item that went leaves a line \"Removed: {n}\", and no number is used again");
        let second = ITEM.replace("## 1", "## 2");
        let finding = format!("LOCAL_FIXES.md:1: item 2 stands where 1 should: {}", advice(1));
        check_found(&second, "// MARK2)", &[&finding]);
        let again = format!("Removed: 1\n{ITEM}");
        let finding = format!("LOCAL_FIXES.md:2: item 1 stands where 2 should: {}", advice(2));
        check_found(&again, "// MARK1)", &[&finding]);
        let reversed = format!("{second}{ITEM}");
        check_found(
            &reversed,
            "// MARK1) MARK2)",
            &[
                &format!("LOCAL_FIXES.md:1: item 2 stands where 1 should: {}", advice(1)),
                &format!("LOCAL_FIXES.md:6: item 1 stands where 3 should: {}", advice(3)),
            ],
        );
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
