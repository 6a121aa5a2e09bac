//! Changes to the expressions of a template: what builds lists and dicts is passed through a check of its size.
//!
//! `[a, b]` becomes `__checked_value([a, b])`, and so do dicts and what stands in round brackets of its own. A bracket
//! that calls a function or looks something up stays as it is.

use super::source::{CHECKED_VALUE, string_len};

/// Words and signs of one tag. The parser makes a tree as deep as a chain of them is long, and walks it by recursion:
/// this many need some 300 KiB of stack. Real templates have up to about two hundred.
pub(super) const MOST_TOKENS: usize = 1000;

/// What the last token was, as far as it says what a bracket after it means.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// A value ended: a bracket calls it or looks into it.
    Value,
    /// `is`, or `is not`: the name of a test follows, and what that takes.
    Is,
    /// Anything else: a bracket begins a value.
    Other,
}

/// Writes `text` to `out`, changed. The number of tokens is added to `tokens`.
///
/// # Errors
/// What is wrong, if that exceeds [`MOST_TOKENS`].
pub(super) fn rewrite(text: &str, tokens: &mut usize, out: &mut String) -> Result<(), String> {
    let mut open: Vec<bool> = Vec::new();
    let mut last = Last::Other;
    for token in Tokens(text) {
        if token.starts_with(char::is_whitespace) {
            out.push_str(token);
            continue;
        }
        *tokens += 1;
        if *tokens > MOST_TOKENS {
            return Err(format!("a tag of more than {MOST_TOKENS} words and signs"));
        }
        let first = token.as_bytes()[0];
        match first {
            b'(' | b'[' | b'{' => {
                let begins_a_value = last == Last::Other;
                if begins_a_value {
                    // `not(a)` would become another word.
                    if out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                        out.push(' ');
                    }
                    out.push_str(CHECKED_VALUE);
                    out.push('(');
                }
                open.push(begins_a_value);
                out.push_str(token);
                last = Last::Other;
            }
            b')' | b']' | b'}' => {
                out.push_str(token);
                if open.pop() == Some(true) {
                    out.push(')');
                }
                last = Last::Value;
            }
            _ => {
                out.push_str(token);
                last = after(token, last);
            }
        }
    }
    Ok(())
}

fn after(token: &str, last: Last) -> Last {
    match token {
        "is" => Last::Is,
        "not" if last == Last::Is => Last::Is,
        // `is in (...)` is the test of that name.
        "and" | "or" | "not" | "in" | "if" | "elif" | "else" if last != Last::Is => Last::Other,
        _ if token.starts_with(|c: char| c.is_alphanumeric() || "_\"'".contains(c)) => Last::Value,
        _ => Last::Other,
    }
}

/// Words, strings, runs of white space, and single other characters.
pub(super) struct Tokens<'a>(pub(super) &'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.0.chars().next()?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let run = |is: &dyn Fn(char) -> bool| self.0.find(|c| !is(c)).unwrap_or(self.0.len());
        let len = match first {
            '"' | '\'' => string_len(self.0),
            c if is_word(c) => run(&is_word),
            c if c.is_whitespace() => run(&char::is_whitespace),
            c => c.len_utf8(),
        };
        let (token, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(token)
    }
}

/// The names that a macro takes, or that a `with` tag sets: words that follow `(` or a comma of the outer list, or for
/// `with` stand at the beginning.
pub(super) fn names(list: &str, in_brackets: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut depth, mut expected) = (0usize, !in_brackets);
    let outer = usize::from(in_brackets);
    for token in Tokens(list).filter(|token| !token.starts_with(char::is_whitespace)) {
        match token {
            "(" | "[" | "{" => {
                depth += 1;
                expected = in_brackets && depth == 1;
            }
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                expected = false;
            }
            "," => expected = depth == outer,
            word => {
                if expected && word.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                    found.push(word);
                }
                expected = false;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let mut out = String::new();
        rewrite(text, &mut 0, &mut out).unwrap();
        assert_eq!(out, expected.replace("V(", &format!("{CHECKED_VALUE}(")));
    }

    #[test]
    fn what_builds_a_value_is_checked() {
        check(" [a, b] ", " V([a, b]) ");
        check("{'a': {'b': [1]}}", "V({'a': V({'b': V([1])})})");
        check("(a, b)[0]", "V((a, b))[0]");
        check("f([1], x=(2))", "f(V([1]), x=V((2)))");
        check("not(a) and not[b]", "not V((a)) and not V([b])");
        check("a or (b and not (c))", "a or V((b and not V((c))))");
        check("x if (y) else [z]", "x if V((y)) else V([z])");
        check("a in [1] and b not in (1, 2)", "a in V([1]) and b not in V((1, 2))");
    }

    #[test]
    fn what_calls_or_looks_up_is_not() {
        check("a[0]['b'](c)(d)[1:]", "a[0]['b'](c)(d)[1:]");
        check("a|f(b).g (c)", "a|f(b).g (c)");
        check("'['[0] ~ \"(\"", "'['[0] ~ \"(\"");
        check("a is divisibleby (3)", "a is divisibleby (3)");
        check("a is not in [3]", "a is not in [3]");
        check("a is in (1, 2) and (b)", "a is in (1, 2) and V((b))");
        check("(", "V((");
        check(")é", ")é");
    }

    #[test]
    fn names_of_macros_and_with() {
        assert_eq!(names(" m(a, b=[c, d], e=f(g, h)) ", true), ["a", "b", "e"]);
        assert_eq!(names(" m()", true), [""; 0]);
        assert_eq!(names(" a = f(b, c), d = [e, g] ", false), ["a", "d"]);
    }

    #[test]
    fn a_tag_has_an_end() {
        let text = |n: usize| vec!["a"; n].join("~");
        assert!(rewrite(&text(MOST_TOKENS / 2), &mut 0, &mut String::new()).is_ok());
        assert!(rewrite(&text(MOST_TOKENS), &mut 0, &mut String::new()).is_err());
    }
}
