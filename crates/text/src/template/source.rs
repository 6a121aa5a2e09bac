//! Changes to a template's source where the engine differs from Python's Jinja.
//!
//! - transformers' `{% generation %}`, which marks the model's own words for training, becomes a
//!   block that changes nothing.
//! - What a template builds is passed through a check of its size, see [`super::bounds`] and [`super::expression`].
//! - `{% for x in y %}` becomes `{% for x in __checked_iterable(y) %}`, as Python refuses to go
//!   over None and the engine takes it for an empty list.
//!
//! Lines stay where they are, so messages name the right one.

use super::expression::{Tokens, names, rewrite};

/// The function that a `for` tag's iterable is passed through.
// LOCAL_FIX(1)
pub(super) const CHECKED_ITERABLE: &str = "__checked_iterable";
/// The function that a list, a dict, or what a variable is set to is passed through.
// LOCAL_FIX(10)
pub(super) const CHECKED_VALUE: &str = "__checked_value";
/// The function for what an attribute of a namespace is set to.
pub(super) const CHECKED_ATTRIBUTE: &str = "__checked_attribute";
/// The function that is called with what a macro or a `with` tag was given.
pub(super) const CHECKED_ALL: &str = "__checked_all";

/// `elif` tags in a template: the parser makes a tree as deep as there are.
const MOST_ELIF: usize = 500;

/// Why a source is not taken: the line, from 1, and what is wrong there.
pub(super) type Refused = (usize, String);

/// A template's source as the engine is to read it.
///
/// # Errors
/// A source that would end the parser's stack.
pub(super) fn to_engine(source: &str) -> Result<String, Refused> {
    let mut out = String::with_capacity(source.len() + source.len() / 4);
    let mut rest = source;
    let mut elif = 0;
    while let Some(at) = rest.find('{') {
        let line = || 1 + source[..source.len() - rest.len() + at].matches('\n').count();
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
        if let Some(inner) = tag.strip_prefix("{%").and_then(|inner| inner.strip_suffix("%}")) {
            elif += usize::from(head(inner).1 == "elif");
            if elif > MOST_ELIF {
                return Err((line(), format!("more than {MOST_ELIF} elif tags")));
            }
            rest = block(inner, after, &mut out).map_err(|detail| (line(), detail))?;
        } else if let Some(inner) = tag.strip_prefix("{{") {
            out.push_str("{{");
            let (inner, close) = inner.split_at(inner.strip_suffix("}}").map_or(inner.len(), str::len));
            rewrite(inner, &mut 0, &mut out).map_err(|detail| (line(), detail))?;
            out.push_str(close);
            rest = after;
        } else {
            // A block tag without an end may be as long as it likes too.
            rewrite(tag.strip_prefix("{%").unwrap_or_default(), &mut 0, &mut String::new())
                .map_err(|detail| (line(), detail))?;
            out.push_str(tag);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn is_mark(c: char) -> bool {
    c == '-' || c == '+' || c.is_whitespace()
}

/// What stands before a tag's name, its name, and all that follows.
fn head(inner: &str) -> (&str, &str, &str) {
    let start = inner.len() - inner.trim_start_matches(is_mark).len();
    let (lead, body) = inner.split_at(start);
    let end = body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len());
    (lead, &body[..end], &body[end..])
}

/// Writes a block tag and gives what is left to read.
fn block<'a>(inner: &str, after: &'a str, out: &mut String) -> Result<&'a str, String> {
    let (lead, name, body) = head(inner);
    let (parts, tail) = body.split_at(body.trim_end_matches(is_mark).len());
    let mut tokens = 0;
    out.extend(["{%", lead]);
    let mut checked = Vec::new();
    match name {
        "generation" if parts.is_empty() => out.push_str("with"),
        "endgeneration" if parts.is_empty() => out.push_str("endwith"),
        "for" => check_iterable(parts, &mut tokens, out)?,
        "set" => check_assigned(parts, &mut tokens, out)?,
        "macro" | "with" => {
            out.push_str(name);
            rewrite(parts, &mut tokens, out)?;
            checked = names(parts, name == "macro");
        }
        // A call's own bracket is that of a function.
        "call" => {
            out.push_str(name);
            let bracket = parts.trim_start().starts_with('(');
            let own = if bracket { parts.find(')').map_or(parts.len(), |at| at + 1) } else { 0 };
            out.push_str(&parts[..own]);
            rewrite(&parts[own..], &mut tokens, out)?;
        }
        _ => {
            out.push_str(name);
            rewrite(parts, &mut tokens, out)?;
        }
    }
    out.extend([tail, "%}"]);
    if !checked.is_empty() {
        let mark = tail.trim_start();
        out.push_str(&format!("{{% if {CHECKED_ALL}({}) %}}{{% endif {mark}%}}", checked.join(", ")));
    }
    // What stands in a raw block is no code.
    Ok(match name {
        "raw" => {
            let end = after.find("endraw").unwrap_or(after.len());
            out.push_str(&after[..end]);
            &after[end..]
        }
        _ => after,
    })
}

/// The tag of a loop, whose parts after `for` are given, with its iterable checked.
fn check_iterable(parts: &str, tokens: &mut usize, out: &mut String) -> Result<(), String> {
    out.push_str("for");
    let start = words(parts).find(|&(_, word)| word == "in").map(|(at, _)| at + 2);
    let Some(start) = start.filter(|_| parts.starts_with(char::is_whitespace)) else {
        return rewrite(parts, tokens, out);
    };
    let iterable = &parts[start..];
    let end = words(iterable).find(|&(_, word)| word == "if" || word == "recursive");
    let end = end.map_or(iterable.len(), |(at, _)| at);
    let (iterable, rest) = iterable.split_at(end);
    out.extend([&parts[..start], " ", CHECKED_ITERABLE, "("]);
    rewrite(iterable, tokens, out)?;
    out.push_str(if rest.is_empty() { ")" } else { ") " });
    rewrite(rest, tokens, out)
}

/// The tag `set`, whose parts after the name are given, with what it assigns checked.
fn check_assigned(parts: &str, tokens: &mut usize, out: &mut String) -> Result<(), String> {
    out.push_str("set");
    let is_target = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c);
    let at = parts.find(|c| !is_target(c)).unwrap_or(parts.len());
    let (target, rest) = parts.split_at(at);
    let value = rest.strip_prefix('=').filter(|value| !value.starts_with('=') && !value.trim().is_empty());
    let Some(value) = value else { return rewrite(parts, tokens, out) };
    *tokens += Tokens(target).count();
    let check = if target.contains('.') { CHECKED_ATTRIBUTE } else { CHECKED_VALUE };
    // Two brackets: what is assigned may be a tuple without any.
    out.extend([target, "= ", check, "(("]);
    rewrite(value, tokens, out)?;
    out.push_str("))");
    Ok(())
}

/// Length of the tag at the start of `text`; a `close` in a string or in brackets does not end it.
fn code_end(text: &str, close: &str) -> Option<usize> {
    let mut at = 2;
    let mut depth = 0usize;
    while at < text.len() {
        let rest = &text[at..];
        let byte = rest.as_bytes()[0];
        match byte {
            b'"' | b'\'' => {
                at += string_len(rest);
                continue;
            }
            _ if depth == 0 && rest.starts_with(close) => return Some(at + close.len()),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
    }
    None
}

/// Length of the string literal at the start of `text`.
pub(super) fn string_len(text: &str) -> usize {
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
        let expected =
            expected.replace("CHECK", CHECKED_ITERABLE).replace("V(", &format!("{CHECKED_VALUE}("));
        assert_eq!(to_engine(source).unwrap(), expected);
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
            "{% for x in CHECK( V((a if b else c)) ) recursive %}",
        );
        check("{%for x in ['%}']%}", "{%for x in CHECK( V(['%}']))%}");
        check("{%\n  for x in y\n%}", "{%\n  for x in CHECK( y)\n%}");
        check("{% format %}{% endfor %}{{ for }}", "{% format %}{% endfor %}{{ for }}");
    }

    #[test]
    fn what_is_set_is_checked() {
        check("{% set a = b %}", "{% set a = V(( b)) %}");
        check("{%- set a, b = c, [d] -%}", "{%- set a, b = V(( c, V([d]))) -%}");
        check("{% set a %}x{% endset %}", "{% set a %}x{% endset %}");
        check("{% set a | f('=') %}", "{% set a | f('=') %}");
        check("{% set a == b %}{% set a = %}", "{% set a == b %}{% set a = %}");
        let attribute = to_engine("{% set n.a = b %}").unwrap();
        assert_eq!(attribute, format!("{{% set n.a = {CHECKED_ATTRIBUTE}(( b)) %}}"));
    }

    #[test]
    fn what_macros_and_with_are_given_is_checked() {
        let all = |text: &str| text.replace("ALL", CHECKED_ALL);
        check("{% macro m(a, b=1) -%} x", &all("{% macro m(a, b=1) -%}{% if ALL(a, b) %}{% endif -%} x"));
        check("{% macro m() %}", "{% macro m() %}");
        check("{% with a = [b] %}", &all("{% with a = V([b]) %}{% if ALL(a) %}{% endif %}"));
        check("{% call(a) m([b]) %}", "{% call(a) m(V([b])) %}");
    }

    #[test]
    fn dicts_end_no_tag() {
        check("{{ {'a': {'b': 1}} }}x", "{{ V({'a': V({'b': 1})}) }}x");
        check("{{- f(x) -}}", "{{- f(x) -}}");
    }

    #[test]
    fn endless_chains_are_refused_with_their_line() {
        let chain = vec!["a"; 2000].join("|");
        for source in [
            format!("{{{{ {chain} }}}}"),
            format!("{{% if {chain} %}}"),
            format!("{{% {chain}"),
            format!("{{{{ {chain}"),
        ] {
            assert_eq!(to_engine(&format!("x\n\n{source}")).map_err(|e| e.0), Err(3), "{source:.20}");
        }
        let ladder = format!("{{% if a %}}\n{}", "{% elif a %}\n".repeat(600));
        assert_eq!(to_engine(&ladder).map_err(|e| e.0), Err(502));
    }

    #[test]
    fn odd_sources_come_through() {
        for source in
            ["", "{", "{%", "{%%}", "{%-%}", "{% - %}", "a {% 'b", "{{ \"\\\" }}", "é{%é%}", "{% for in %}"]
        {
            assert!(to_engine(source).unwrap().starts_with(&source[..source.len().min(2)]), "{source}");
        }
    }
}
