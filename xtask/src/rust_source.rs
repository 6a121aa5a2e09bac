//! Rust source taken apart into code and comments, line by line.

/// A line of source.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code, with the contents of strings and characters left out.
    pub(crate) code: String,
    /// The code, with the contents of strings.
    pub(crate) text: String,
    /// The comments.
    pub(crate) comment: String,
}

#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    /// With its depth, since they nest.
    BlockComment(u32),
    /// A string that ends at a quote and so many `#`; escapes count if it is not raw.
    String {
        hashes: usize,
        raw: bool,
    },
}

/// The lines of a file.
pub(crate) fn lines(source: &str) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let hashes_from = |i: usize| chars[i.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    let mut lines = Vec::new();
    let mut line = Line::default();
    let (mut state, mut i) = (State::Code, 0);
    while i < chars.len() {
        let (c, next) = (at(i), at(i + 1));
        if c == '\n' {
            lines.push(std::mem::take(&mut line));
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            i += 1;
            continue;
        }
        let mut taken = 1;
        match state {
            State::Code => match (c, next) {
                ('/', '/') => (state, taken) = (State::LineComment, 2),
                ('/', '*') => (state, taken) = (State::BlockComment(1), 2),
                ('"', _) => {
                    let (hashes, raw) = raw_before(&line.code);
                    line.code.push('"');
                    line.text.push('"');
                    state = State::String { hashes, raw };
                }
                ('\'', _) => {
                    // 'x' and '\n' are characters; 'a with no quote after it is a lifetime.
                    let len = match next {
                        '\\' => (2..12).find(|n| at(i + n + 1) == '\'').map(|n| n + 2),
                        _ if at(i + 2) == '\'' => Some(3),
                        _ => None,
                    };
                    taken = len.unwrap_or(1);
                    line.code.push('\'');
                    line.text.extend(&chars[i..(i + taken).min(chars.len())]);
                }
                _ => {
                    line.code.push(c);
                    line.text.push(c);
                }
            },
            State::LineComment => line.comment.push(c),
            State::BlockComment(depth) => match (c, next) {
                ('/', '*') => (state, taken) = (State::BlockComment(depth + 1), 2),
                ('*', '/') if depth == 1 => (state, taken) = (State::Code, 2),
                ('*', '/') => (state, taken) = (State::BlockComment(depth - 1), 2),
                _ => line.comment.push(c),
            },
            State::String { hashes, raw } => match c {
                '\\' if !raw => {
                    line.text.push(c);
                    // An escaped line end is still a line end.
                    if next != '\n' {
                        line.text.push(next);
                        taken = 2;
                    }
                }
                '"' if hashes_from(i + 1) >= hashes => {
                    taken = 1 + hashes;
                    line.code.push('"');
                    line.text.push('"');
                    state = State::Code;
                }
                _ => line.text.push(c),
            },
        }
        i += taken;
    }
    lines.push(line);
    lines
}

/// Whether the code so far ends like the start of a raw string, and with how many `#`.
fn raw_before(code: &str) -> (usize, bool) {
    let body = code.trim_end_matches('#');
    let prefix = body.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
    match matches!(prefix, "r" | "br" | "cr") {
        true => (code.len() - body.len(), true),
        false => (0, false),
    }
}

/// The words of a text: identifiers, cut at underscores and where a capital follows a small letter, in lower case.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in text.chars() {
        let starts = c.is_uppercase() && before.is_lowercase();
        if !c.is_alphanumeric() || starts {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether `code` has `word` as a whole identifier.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, code: &str, comment: &str) {
        let lines = lines(source);
        let join =
            |part: fn(&Line) -> &String| lines.iter().map(part).cloned().collect::<Vec<_>>().join("\n");
        assert_eq!(join(|line| &line.code), code, "code of {source:?}");
        assert_eq!(join(|line| &line.comment), comment, "comment of {source:?}");
    }

    #[test]
    fn code_and_comments_are_told_apart() {
        check("a // b", "a ", " b");
        check("a /* b /* c */ d */ e", "a  e", " b  c  d ");
        check("x(\"// no\"); // yes", "x(\"\"); ", " yes");
        check(r#"x("a\"unsafe"); y"#, "x(\"\"); y", "");
        check("r#\"a\" // b\"# c", "r#\"\" c", "");
        check("br\"\\\" c", "br\"\" c", "");
        check("'\"' x", "' x", "");
        check("'\\'' x '\\u{1F600}' y", "' x ' y", "");
        check("f<'a>(&'a x) // c", "f<'a>(&'a x) ", " c");
        check("\"a\nb\" c", "\"\n\" c", "\n");
        check("\"a\\\nb\" c", "\"\n\" c", "\n");
        check("/* a\nb */ c", "\n c", " a\nb ");
        check("a\n// b\nc", "a\n\nc", "\n b\n");
    }

    #[test]
    fn strings_are_kept_in_the_text() {
        assert_eq!(lines("f(\"cuda\") // rocm")[0].text, "f(\"cuda\") ");
    }

    #[test]
    fn words_are_cut_at_underscores_and_capitals() {
        assert_eq!(
            words("CpuDevice::cuda_graph, ship HIP"),
            ["cpu", "device", "cuda", "graph", "ship", "hip"]
        );
        assert!(has_word("x.unsafe {", "unsafe") && !has_word("unsafe_code", "unsafe"));
    }
}
