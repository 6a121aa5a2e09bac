//! The Jinja environment that templates expect: Python's, as transformers sets it up.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python_json::{python_number, tojson};

/// How much work a template may do, in template instructions or 64 bytes of text each. Real
/// templates take some hundreds a message.
pub(super) const FUEL: u64 = 20_000_000;

/// How deep macros may call each other. Real templates go some levels into a JSON schema; each
/// level costs native stack, and threads have little.
const RECURSION: usize = 150;

/// What `raise_exception` was called with; the source of the error it makes.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment with everything but the template.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(whitespace());
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_unknown_method_callback(python_method);
    env.set_formatter(|out, state, value| match is_float(value) {
        true => Ok(std::fmt::Write::write_str(out, &python_number(value))?),
        false => minijinja::escape_formatter(out, state, value),
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", string);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_function("raise_exception", raise_exception);
    env
}

fn whitespace() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    // Without custom delimiters there is nothing that could be refused.
    builder.build().unwrap_or_default()
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// `string`: floats as Python writes them, everything else as the engine does.
fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        _ if is_float(value) => Value::from(python_number(value)),
        _ => Value::from(value.to_string()),
    }
}

/// Jinja's `sequence` means "has a length and items", which in Python strings and dicts have.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map) || value.is_undefined()
}

fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::String || value.try_iter().is_ok()
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// Methods of Python's types that the engine lacks, over those of `minijinja-contrib`.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), method, args) {
        (ValueKind::String, "removeprefix", [prefix]) => {
            let (text, prefix) = (str_arg(value, method)?, str_arg(prefix, method)?);
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (ValueKind::String, "removesuffix", [suffix]) => {
            let (text, suffix) = (str_arg(value, method)?, str_arg(suffix, method)?);
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

fn str_arg<'v>(value: &'v Value, method: &str) -> Result<&'v str, Error> {
    value.as_str().ok_or_else(|| {
        let detail = format!("{method} takes strings, not {}", value.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// Takes a template's source to what the engine reads: transformers' `generation` tag, which
/// marks the model's own words for training, becomes a block that changes nothing.
pub(super) fn preprocess(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let name = tag[2..end].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match name {
            "generation" => out.push_str(&tag.replacen(name, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(name, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
