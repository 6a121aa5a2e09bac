//! Methods of Python's strings, lists and dicts that neither the engine nor its contrib crate has.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Called for methods that a value itself lacks.
pub(super) fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => index_of(value, args),
        (ValueKind::Seq | ValueKind::Map, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        (ValueKind::String, _) => {
            let text = value.as_str().unwrap_or_default();
            match string_method(state, text, method, args) {
                Some(result) => result,
                None => unknown_method_callback(state, value, method, args),
            }
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

fn string_method(state: &State, text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "split" | "rsplit" => split(state, text, method == "rsplit", args),
        // What it makes is as wide as its text says.
        "format" if too_wide(text) => Err(invalid("format: a width above 9999, or a field within a field")),
        "partition" | "rpartition" => partition(text, method == "rpartition", args),
        "index" | "rindex" => from_args(args).and_then(|(part,): (&str,)| {
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| invalid("substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }),
        "removeprefix" => {
            from_args(args).map(|(part,): (&str,)| Value::from(text.strip_prefix(part).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args(args).map(|(part,): (&str,)| Value::from(text.strip_suffix(part).unwrap_or(text)))
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(text, method, args),
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase())),
        _ => return None,
    })
}

/// Whether a replacement field of `str.format` has a number of more than four digits, or another field in it.
fn too_wide(text: &str) -> bool {
    let fields = text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or_default());
    let digits = |field: &str| {
        let runs = field.split(|c: char| !c.is_ascii_digit());
        runs.map(str::len).max().unwrap_or(0)
    };
    let mut nested = text.split('{').skip(1).map(|rest| !rest.is_empty() && !rest.contains('}'));
    fields.map(digits).any(|digits| digits > 4) || nested.any(|nested| nested)
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// `split` and `rsplit`: at a separator or, without one, at runs of white space; at most so many
/// times, counted from the left or from the right.
fn split(state: &State, text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, times, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.map_or_else(|| named.get("sep"), |separator| Ok(Some(separator)))?;
    let times = times.map_or_else(|| named.get("maxsplit"), |times| Ok(Some(times)))?;
    named.assert_all_used()?;
    let pieces = usize::try_from(times.unwrap_or(-1)).map_or(usize::MAX, |n| n.saturating_add(1));
    // A piece is a value of its own, however short.
    let most = match separator {
        Some(separator) if !separator.is_empty() => text.matches(separator).take(pieces).count(),
        _ => text.split_whitespace().take(pieces).count(),
    };
    state.consume_fuel(most as u64)?;
    let mut parts: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(separator), false) => text.splitn(pieces, separator).collect(),
        (Some(separator), true) => text.rsplitn(pieces, separator).collect(),
        (None, false) => split_white_space(text, pieces, |rest| {
            let rest = rest.trim_start();
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (rest, &rest[..end], &rest[end..])
        }),
        (None, true) => split_white_space(text, pieces, |rest| {
            let rest = rest.trim_end();
            let start = rest.rfind(char::is_whitespace);
            let start = start.map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
            (rest, &rest[start..], &rest[..start])
        }),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Takes words off one end of `text` until `pieces` are made; the last is what is left. `word`
/// gives the rest without white space at that end, its next word, and what follows.
fn split_white_space<'t>(
    mut text: &'t str,
    pieces: usize,
    word: impl Fn(&'t str) -> (&'t str, &'t str, &'t str),
) -> Vec<&'t str> {
    let mut parts = Vec::new();
    loop {
        let (rest, first, after) = word(text);
        if rest.is_empty() {
            return parts;
        }
        if parts.len() + 1 == pieces {
            parts.push(rest);
            return parts;
        }
        parts.push(first);
        text = after;
    }
}

/// `partition` and `rpartition`: before, separator, after.
fn partition(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let parts = match from_right {
        false => text.split_once(separator),
        true => text.rsplit_once(separator),
    };
    let parts = match (parts, from_right) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// `ljust`, `rjust`, `center` and `zfill`.
fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    if width > 10_000 {
        return Err(invalid("a width above 10000"));
    }
    let fill = fill.unwrap_or(if method == "zfill" { "0" } else { " " });
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be exactly one character long"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        // Python puts the odd character of an odd width on the left.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (sign, digits) = match (method, text.chars().next()) {
        ("zfill", Some('-' | '+')) => text.split_at(1),
        _ => ("", text),
    };
    let right = fill.repeat(missing - left);
    Ok(Value::from(format!("{sign}{}{digits}{right}", fill.repeat(left))))
}

fn index_of(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == *wanted);
    at.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
}

#[cfg(test)]
mod tests {
    use super::super::environment::environment;

    #[track_caller]
    fn check(expression: &str, expected: &str) {
        let source = format!("{{{{ {expression} }}}}");
        assert_eq!(environment().render_str(&source, ()).unwrap(), expected, "{expression}");
    }

    #[test]
    fn foundry_local_800_replace_and_strip() {
        check("' a-b '.strip().replace('-', '+')", "a+b");
        check("'a\\n\\n'.rstrip('\\n') ~ '|' ~ '  a'.lstrip()", "a|a");
        check("'abc'.startswith('ab') and 'abc'.endswith(('x', 'c'))", "True");
    }

    #[test]
    fn jan_6123_split_then_filter() {
        check("'a b'.split()|first", "a");
        check("'</think> x'.split('</think>')|last", " x");
        check("'a.b.c'.split('.')[-1]", "c");
    }

    #[test]
    fn splits_as_python_does() {
        check("'a,b,c'.split(',', 1)", "['a', 'b,c']");
        check("'a,b,c'.split(',', maxsplit=1)", "['a', 'b,c']");
        check("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']");
        check("'a,b,c'.split(sep=',')", "['a', 'b', 'c']");
        check("'  a  b c '.split()", "['a', 'b', 'c']");
        check("'  a  b c '.split(none, 1)", "['a', 'b c ']");
        check("'  a  b c '.rsplit(none, 1)", "['  a  b', 'c']");
        check("''.split() ~ ''.split(',')", "[]['']");
        check("'a=b=c'.partition('=')", "('a', '=', 'b=c')");
        check("'a=b=c'.rpartition('=')", "('a=b', '=', 'c')");
        check("'a'.partition('=') ~ 'a'.rpartition('=')", "('a', '', '')('', '', 'a')");
    }

    #[test]
    fn other_methods() {
        check("'héllo'.index('l') ~ [3, 4].index(4)", "21");
        check("'abc'.removeprefix('a').removesuffix('x')", "bc");
        check("'x'.ljust(3) ~ 'x'.rjust(3, '.') ~ '-7'.zfill(4) ~ 'ab'.center(5, '*')", "x  ..x-007**ab*");
        check("{'a': 1}.copy().get('a') ~ {'a': 1}.items()|list", "1[('a', 1)]");
    }

    #[test]
    fn refusals() {
        for source in
            ["{{ 'a'.split('') }}", "{{ 'a'.index('b') }}", "{{ 'a'.ljust(99999) }}", "{{ [].append(1) }}"]
        {
            assert!(environment().render_str(source, ()).is_err(), "{source}");
        }
    }
}
