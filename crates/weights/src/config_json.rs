//! `config.json`, as Python writes it.

use std::path::Path;

use serde_json::Value;

use crate::{Result, WeightError, file::read_text};

/// Most bytes of a `config.json`: one with an entry for every module of a large model takes a few MiB. Parsed, a text
/// takes up to forty times its size.
const MOST_CONFIG: u64 = 16 << 20;

/// Most bytes of an index: some 100 for each tensor, and the largest models have 200 000.
const MOST_INDEX: u64 = 64 << 20;

/// A model's configuration.
pub(crate) fn read_config(path: &Path) -> Result<Value> {
    read_json(path, MOST_CONFIG)
}

/// The index of a model's shards.
pub(crate) fn read_index(path: &Path) -> Result<Value> {
    read_json(path, MOST_INDEX)
}

/// Reads a JSON file in which Python's bare `NaN`, `Infinity` and `-Infinity` may stand. They become null and
/// plus and minus `f64::MAX`, which is infinity once it is an f32.
fn read_json(path: &Path, most: u64) -> Result<Value> {
    let text = read_text(path, most)?;
    parse(&text).map_err(|e| WeightError::Json { path: path.to_owned(), reason: e.to_string() })
}

fn parse(text: &str) -> serde_json::Result<Value> {
    match serde_json::from_str(text) {
        Err(_) if text.contains("Infinity") || text.contains("NaN") => serde_json::from_str(&plain(text)),
        result => result,
    }
}

/// The text with Python's three words replaced outside of strings.
fn plain(text: &str) -> String {
    const WORDS: [(&str, &str); 3] =
        [("-Infinity", "-1.7976931348623157e308"), ("Infinity", "1.7976931348623157e308"), ("NaN", "null")];
    let mut out = String::with_capacity(text.len() + 32);
    let mut rest = text;
    let (mut in_string, mut escaped) = (false, false);
    while let Some(c) = rest.chars().next() {
        if !in_string && let Some((word, number)) = WORDS.iter().find(|(word, _)| rest.starts_with(word)) {
            out.push_str(number);
            rest = &rest[word.len()..];
            continue;
        }
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Value) {
        assert_eq!(parse(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn python_floats() {
        let max = f64::MAX;
        check(r#"{"a": [0.0, Infinity]}"#, serde_json::json!({"a": [0.0, max]}));
        check(r#"{"a": -Infinity, "b": NaN}"#, serde_json::json!({"a": -max, "b": null}));
        check(r#"["Infinity", NaN]"#, serde_json::json!(["Infinity", null]));
        check(r#"["\"NaN", NaN]"#, serde_json::json!(["\"NaN", null]));
        check(r#"["\\", Infinity]"#, serde_json::json!(["\\", max]));
        assert!(max as f32 == f32::INFINITY);
        assert!(parse("{Infinity: 1}").is_err());
        assert!(parse("[Infinit]").is_err());
    }
}
