//! No key of the cache of compiled kernels without all that decides the code.
//!
//! A kernel's types and sizes reach its text as defines alone (the compile gate compiles with nothing else), so a key that
//! takes in every field of `KernelSource`, the compiler and its options takes in all. The key cannot be called from here:
//! its function is looked at, and the test that changes each of them must be there. `tree` runs it.

use super::Source;
use crate::rust_source::lines;

/// Where the source of a kernel is declared.
const FIELDS: &str = "crates/device/src/kernel.rs";
/// Where the key is made.
const KEY: &str = "crates/device/src/kernel_cache.rs";
/// Where the test is, and its name.
const TEST: (&str, &str) =
    ("crates/device/src/kernel_cache/tests.rs", "fn whatever_decides_the_code_decides_the_name(");
/// A file's name decides nothing.
const NO_PART: [&str; 1] = ["file"];
/// What the key takes besides.
const BESIDES: [&str; 2] = ["compiler", "options"];

/// What the key leaves out.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let text = |path: &str| sources.iter().find(|(p, _)| p == path).map_or("", |(_, text)| text);
    let mut findings = check_key(text(FIELDS), text(KEY));
    if !text(TEST.0).contains(TEST.1) {
        findings.push(format!("{}: the test of the key is gone: {}...)", TEST.0, TEST.1));
    }
    findings
}

fn check_key(declared: &str, key: &str) -> Vec<String> {
    let (declaration, body) = (block(declared, "pub struct KernelSource"), block(key, "pub(crate) fn key("));
    let (Some(declaration), Some(body)) = (declaration, body) else {
        return vec![format!("{KEY}: the key or the source of a kernel is no longer where it was")];
    };
    let fields = declaration.iter().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("pub ")?.split_once(':')?;
        Some(format!("source.{name}"))
    });
    let parts = fields.filter(|field| !NO_PART.iter().any(|name| *field == format!("source.{name}")));
    let mut findings = Vec::new();
    for part in parts.chain(BESIDES.map(str::to_owned)) {
        // The head names the parameters.
        let has = |line: &String| {
            line.split(|c: char| !(c.is_alphanumeric() || "_.".contains(c))).any(|word| {
                word == part || word.strip_prefix(part.as_str()).is_some_and(|rest| rest.starts_with('.'))
            })
        };
        if !body.iter().skip(1).any(has) {
            findings.push(format!("{KEY}: the key of a compiled kernel leaves out {part}"));
        }
    }
    findings
}

/// The lines from one with this beginning to the brace that closes what it opens.
fn block(text: &str, begin: &str) -> Option<Vec<String>> {
    let lines = lines(text).into_iter().map(|line| line.code);
    let mut found = lines.skip_while(|line| !line.starts_with(begin)).peekable();
    found.peek()?;
    Some(found.take_while(|line| line != "}").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &str = "pub struct KernelSource<'a> {\n    pub file: &'a str,\n    pub text: &'a str,\n    \
                            pub defines: &'a [(&'a str, String)],\n}\n";
    const MADE: &str = "pub(crate) fn key(compiler: &str, options: &[String], source: &KernelSource<'_>) -> String {\n    \
                        add(compiler);\n    options.iter().for_each(add);\n    add(source.text);\n    \
                        for d in source.defines {\n    }\n}\n";

    #[track_caller]
    fn check_text(declared: &str, key: &str, says: Option<&str>) {
        let found = check_key(declared, key);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
    }

    #[test]
    fn a_key_that_leaves_something_out_is_found() {
        check_text(DECLARED, MADE, None);
        check_text(
            DECLARED,
            &MADE.replace("source.defines", "source.nothing"),
            Some("leaves out source.defines"),
        );
        check_text(
            DECLARED,
            &MADE.replace("add(source.text);", "// source.text"),
            Some("leaves out source.text"),
        );
        check_text(DECLARED, &MADE.replace("add(compiler);", ""), Some("leaves out compiler"));
        check_text(DECLARED, &MADE.replace("options.iter", "iter"), Some("leaves out options"));
        let more = DECLARED.replace("    pub file", "    pub types: u32,\n    pub file");
        check_text(&more, MADE, Some("leaves out source.types"));
        check_text("", MADE, Some("no longer where it was"));
    }

    #[test]
    fn the_test_of_the_key_must_be_there() {
        let with = |test: &str| {
            let row = |path: &str, text: &str| (path.to_owned(), text.to_owned());
            check(&[row(FIELDS, DECLARED), row(KEY, MADE), row(TEST.0, test)])
        };
        assert_eq!(with(&format!("{}) {{}}", TEST.1)), Vec::<String>::new());
        assert!(with("").len() == 1 && with("")[0].contains("is gone"));
    }
}
