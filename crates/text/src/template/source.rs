//! Changes to a template's source where the engine differs from Python's Jinja.
//!
//! - transformers' `{% generation %}`, which marks the model's own words for training, becomes a
//!   block that changes nothing.
//! - `{% for x in y %}` becomes `{% for x in __checked_iterable(y) %}`, as Python refuses to go
//!   over None and the engine takes it for an empty list.
//!
//! Lines stay where they are, so messages name the right one.

/// The function that a `for` tag's iterable is passed through.
// LOCAL_FIX(1)
pub(super) const CHECKED_ITERABLE: &str = "__checked_iterable";

/// A template's source as the engine is to read it.
pub(super) fn to_engine(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'%') => code_end(tag, "%}"),
            Some(b'{') => code_end(tag, "}}"),
            Some(b'#') => tag.find("#}").map(|at| at + 2),
            _ => Some(1),
        };
        // A tag that does not end is the parser's to complain about.
        let (tag, after) = tag.split_at(end.unwrap_or(tag.len()));
        match tag.strip_prefix("{%").and_then(|inner| inner.strip_suffix("%}")) {
            Some(inner) => rest = block(inner, after, &mut out),
            None => {
                out.push_str(tag);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Writes a block tag and gives what is left to read.
fn block<'a>(inner: &str, after: &'a str, out: &mut String) -> &'a str {
    let is_mark = |c: char| c == '-' || c == '+' || c.is_whitespace();
    let name = inner.trim_matches(is_mark);
    let lead = &inner[..inner.len() - inner.trim_start_matches(is_mark).len()];
    let tail = &inner[inner.trim_end_matches(is_mark).len().max(lead.len())..];
    let changed = match name {
        "generation" => Some("with".to_owned()),
        "endgeneration" => Some("endwith".to_owned()),
        _ => name.strip_prefix("for").and_then(check_iterable),
    };
    out.push_str("{%");
    match changed {
        Some(changed) => out.extend([lead, &changed, tail]),
        None => out.push_str(inner),
    }
    out.push_str("%}");
    // What stands in a raw block is no code.
    match name {
        "raw" => {
            let end = after.find("endraw").unwrap_or(after.len());
            out.push_str(&after[..end]);
            &after[end..]
        }
        _ => after,
    }
}

/// The tag of a loop, whose parts after `for` are given, with its iterable checked.
fn check_iterable(parts: &str) -> Option<String> {
    if !parts.starts_with(char::is_whitespace) {
        return None;
    }
    let start = words(parts).find(|&(_, word)| word == "in").map(|(at, _)| at + 2)?;
    let iterable = &parts[start..];
    let end = words(iterable).find(|&(_, word)| word == "if" || word == "recursive");
    let end = end.map_or(iterable.len(), |(at, _)| at);
    let (iterable, rest) = iterable.split_at(end);
    let space = if rest.is_empty() { "" } else { " " };
    Some(format!("for{} {CHECKED_ITERABLE}({iterable}){space}{rest}", &parts[..start]))
}

/// Length of the tag at the start of `text`; a `close` in a string does not end it.
fn code_end(text: &str, close: &str) -> Option<usize> {
    let mut at = 2;
    while at < text.len() {
        let rest = &text[at..];
        match rest.as_bytes()[0] {
            b'"' | b'\'' => at += string_len(rest),
            _ if rest.starts_with(close) => return Some(at + close.len()),
            _ => at += rest.chars().next().map_or(1, char::len_utf8),
        }
    }
    None
}

/// Length of the string literal at the start of `text`.
fn string_len(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The words of an expression that stand in no string and in no brackets, with their places.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    let mut depth = 0usize;
    std::iter::from_fn(move || {
        while at < text.len() {
            let rest = &text[at..];
            let word_len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if word_len > 0 {
                let start = at;
                at += word_len;
                if depth == 0 {
                    return Some((start, &rest[..word_len]));
                }
                continue;
            }
            match rest.as_bytes()[0] {
                b'"' | b'\'' => at += string_len(rest),
                byte => {
                    match byte {
                        b'(' | b'[' | b'{' => depth += 1,
                        b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    at += rest.chars().next().map_or(1, char::len_utf8);
                }
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(to_engine(source), expected.replace("CHECK", CHECKED_ITERABLE));
    }

    #[test]
    fn generation() {
        check("{% generation %}x{%- endgeneration -%}", "{% with %}x{%- endwith -%}");
        check("{%-generation-%}", "{%-with-%}");
        check("{{ '{% generation %}' }}", "{{ '{% generation %}' }}");
        check("{# {% generation %} #}{% generation", "{# {% generation %} #}{% generation");
        check("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}");
    }

    #[test]
    fn loops() {
        check("{% for a in b %}", "{% for a in CHECK( b) %}");
        check(
            "{%- for a, b in c.d('if x') if a in e -%}",
            "{%- for a, b in CHECK( c.d('if x') ) if a in e -%}",
        );
        check(
            "{% for x in (a if b else c) recursive %}",
            "{% for x in CHECK( (a if b else c) ) recursive %}",
        );
        check("{%for x in ['%}']%}", "{%for x in CHECK( ['%}'])%}");
        check("{%\n  for x in y\n%}", "{%\n  for x in CHECK( y)\n%}");
        check("{% format %}{% endfor %}{{ for }}", "{% format %}{% endfor %}{{ for }}");
    }

    #[test]
    fn odd_sources_come_through() {
        for source in
            ["", "{", "{%", "{%%}", "{%-%}", "{% - %}", "a {% 'b", "{{ \"\\\" }}", "é{%é%}", "{% for in %}"]
        {
            assert!(to_engine(source).starts_with(&source[..source.len().min(2)]), "{source}");
        }
    }
}
