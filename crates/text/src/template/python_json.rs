use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::bounds::{MOST_BYTES, check_printed};
use super::guard::GUARDS;

/// The layout that Python's `json.dumps` gives to its output.
struct Layout {
    item_separator: String,
    key_separator: String,
    /// What each level is indented by; `None` keeps all on one line.
    indent: Option<String>,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The `tojson` filter as transformers defines it: `json.dumps` with non-ASCII text kept, unlike
/// Jinja's own, which escapes for HTML.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let named: Option<bool> = kwargs.get("ensure_ascii")?;
    let ensure_ascii = ensure_ascii.or(named).unwrap_or(false);
    let named: Option<Value> = kwargs.get("indent")?;
    let indent = match indent.or(named).filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match indent.as_usize() {
            // Deep indents multiply with depth; no template wants more than a few.
            Some(spaces) if spaces <= 64 => Some(" ".repeat(spaces)),
            Some(spaces) => return Err(invalid(format!("tojson(indent={spaces}) is too deep"))),
            None => Some(short(indent.as_str().unwrap_or_default())?),
        },
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (short(item)?, short(key)?),
        Some(other) => {
            return Err(invalid(format!("tojson: {} separators, not 2", other.len())));
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    check_printed(state, value)?;
    let layout = Layout { item_separator, key_separator, indent, sort_keys, ensure_ascii };
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    // The engine counts a filter's result at a unit for 64 bytes; walking the value costs more.
    state.consume_fuel(out.len() as u64 / 4)?;
    Ok(out)
}

/// A separator or an indent: it comes again with every item.
fn short(text: &str) -> Result<String, Error> {
    match text.len() {
        0..=64 => Ok(text.to_owned()),
        len => Err(invalid(format!("tojson: a separator or indent of {len} bytes, at most 64"))),
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// A nesting deeper than this is refused, as Python's recursion limit does.
const MAX_DEPTH: usize = 200;

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: value nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&python_number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<Value>>();
                self.write_items(('[', ']'), items.iter(), depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    pairs.push((json_key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_items(('{', '}'), pairs.iter(), depth, out, |(key, value), out| {
                    self.write_string(key, out);
                    out.push_str(&self.key_separator);
                    self.write(value, depth + 1, out)
                })?;
            }
            kind => return Err(invalid(format!("a value of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_items<T>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let empty = items.len() == 0;
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !empty) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(depth + 1, out);
            write(item, out)?;
            if out.len() > 2 * MOST_BYTES {
                return Err(invalid(format!("tojson: more than {} MiB", 2 * MOST_BYTES >> 20)));
            }
        }
        new_line(depth, out);
        out.push(close);
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                // A guard is none of the text's characters and is taken out again later.
                c if self.ensure_ascii && !c.is_ascii() && !GUARDS.contains(&c) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A dictionary key as JSON text: Python turns numbers, booleans and None into strings.
fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(python_number(key)),
        kind => Err(invalid(format!("keys must be strings, not {kind}"))),
    }
}

/// A number as Python's `repr` writes it: the shortest digits that read back, and an exponent
/// below 1e-4 and from 1e16 on.
pub(super) fn python_number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Err(_) => value.to_string(),
        Ok(x) if x.is_nan() => "NaN".to_owned(),
        Ok(x) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Ok(x) => {
            let text = format!("{x:?}");
            match text.split_once('e') {
                // Rust writes 1e16 and 1e-5 where Python writes 1e+16 and 1e-05.
                Some((digits, exponent)) => {
                    let (sign, exponent) = match exponent.strip_prefix('-') {
                        Some(exponent) => ('-', exponent),
                        None => ('+', exponent),
                    };
                    format!("{digits}e{sign}{exponent:0>2}")
                }
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    #[track_caller]
    fn check(expression: &str, expected: &str) {
        let mut env = Environment::new();
        env.add_filter("tojson", super::tojson);
        let source = format!("{{{{ ({expression}) }}}}");
        assert_eq!(env.render_str(&source, ()).unwrap(), expected, "{expression}");
    }

    #[test]
    fn like_json_dumps() {
        check("{'b': [1, 2.0, none, true], 'a': {}}|tojson", r#"{"b": [1, 2.0, null, true], "a": {}}"#);
        check("{'b': 1, 'a': []}|tojson(sort_keys=true)", r#"{"a": [], "b": 1}"#);
        check("[1, {'a': 2}]|tojson(separators=(',', ':'))", r#"[1,{"a":2}]"#);
        check("'<é & 🦙>\"\\n\\u0001'|tojson", r#""<é & 🦙>\"\n\u0001""#);
        check("'é🦙'|tojson(ensure_ascii=true)", r#""\u00e9\ud83e\udd99""#);
        check("[1e16, 1e-5, 0.1, 1.5e300, -0.0]|tojson", "[1e+16, 1e-05, 0.1, 1.5e+300, -0.0]");
        check("{1: 2, true: 3}|tojson", r#"{"1": 3}"#);
    }

    #[test]
    fn mistral_rs_649_tojson_indent() {
        check(
            "{'a': [1, 2], 'b': {}}|tojson(indent=2)",
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}",
        );
        check("[1]|tojson(indent='\\t')", "[\n\t1\n]");
        check("[1]|tojson(indent=none)", "[1]");
    }

    #[test]
    fn refusals() {
        let mut env = Environment::new();
        env.add_filter("tojson", super::tojson);
        for source in ["{{ nothing|tojson }}", "{{ [1]|tojson(indent=999) }}", "{{ 1|tojson(what=1) }}"] {
            assert!(env.render_str(source, ()).is_err(), "{source}");
        }
    }
}
