//! The Jinja environment that templates expect: Python's, as transformers sets it up.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use super::bounds::{check_printed, checked_all, checked_attribute, checked_value};
use super::methods::python_method;
use super::python_json::{python_number, tojson};
use super::source::{CHECKED_ALL, CHECKED_ATTRIBUTE, CHECKED_ITERABLE, CHECKED_VALUE};

/// How much work a template may do on a conversation of so many messages, in template
/// instructions or 64 bytes of text each.
///
/// Real templates take some hundreds a message, and some go over all messages for each message.
pub(super) fn fuel(messages: usize) -> u64 {
    let messages = messages as u64;
    let squared = messages.saturating_mul(messages).saturating_mul(400);
    squared.saturating_add(4_000_000).min(100_000_000)
}

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
    env.set_unknown_method_callback(python_method);
    env.set_formatter(|out, state, value| match is_float(value) {
        true => Ok(std::fmt::Write::write_str(out, &float_str(value))?),
        false => {
            check_printed(state, value)?;
            minijinja::escape_formatter(out, state, value)
        }
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", string);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function(CHECKED_ITERABLE, checked_iterable);
    env.add_function(CHECKED_VALUE, checked_value);
    env.add_function(CHECKED_ATTRIBUTE, checked_attribute);
    env.add_function(CHECKED_ALL, checked_all);
    bound_builders(&mut env);
    env
}

/// Checks what the engine's own functions build, and takes out what Jinja has not: filters that nest without a bound, and
/// the function that prints everything a template was given.
fn bound_builders(env: &mut Environment<'static>) {
    env.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        checked_value(state, &minijinja::filters::batch(state, value, count, fill)?)
    });
    env.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        checked_value(state, &minijinja::filters::slice(state, value, count, fill)?)
    });
    env.add_function("dict", |state: &State, value: Option<Value>, more: Kwargs| {
        checked_value(state, &minijinja::functions::dict(value, more)?)
    });
    env.add_function("namespace", |state: &State, value: Option<Value>, more: Kwargs| {
        let defaults = minijinja::functions::dict(value, more)?;
        checked_attribute(state, &defaults)?;
        minijinja::functions::namespace(Some(defaults.into()))
    });
    env.remove_filter("chain");
    env.remove_filter("zip");
    env.remove_global("debug");
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

/// Python's `str` of a float.
fn float_str(value: &Value) -> String {
    python_number(value).replace("Infinity", "inf").replace("NaN", "nan")
}

/// `int`: what is no number is the default, not an error.
fn int(value: &Value, default: Option<i64>) -> Value {
    let text = value.as_str().map(str::trim);
    let whole = |x: f64| (x.is_finite() && x.abs() < 9e18).then_some(x.trunc() as i64);
    let number = match (value.kind(), text) {
        (ValueKind::Number, _) if value.is_integer() => return value.clone(),
        (ValueKind::Number, _) => f64::try_from(value.clone()).ok().and_then(whole),
        (ValueKind::Bool, _) => Some(i64::from(value.is_true())),
        (_, Some(text)) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
        _ => None,
    };
    Value::from(number.unwrap_or(default.unwrap_or(0)))
}

/// `float`, likewise.
fn float(value: &Value, default: Option<f64>) -> f64 {
    let number = match (value.kind(), value.as_str()) {
        (ValueKind::Number | ValueKind::Bool, _) => f64::try_from(value.clone()).ok(),
        (_, Some(text)) => text.trim().parse().ok(),
        _ => None,
    };
    number.unwrap_or(default.unwrap_or(0.0))
}

/// `string`: floats as Python writes them, everything else as the engine does.
fn string(state: &State, value: &Value) -> Result<Value, Error> {
    check_printed(state, value)?;
    Ok(match value.kind() {
        ValueKind::String => value.clone(),
        _ if is_float(value) => Value::from(float_str(value)),
        _ => Value::from(value.to_string()),
    })
}

/// Jinja's `sequence` means "has a length and items", which in Python strings and dicts have.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map) || value.is_undefined()
}

fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::String || !value.is_none() && value.try_iter().is_ok()
}

/// What a `for` tag goes over, see [`super::source`]: in Python None is no empty list.
fn checked_iterable(state: &State, value: &Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(Error::new(ErrorKind::InvalidOperation, "'NoneType' object is not iterable")),
        false => checked_value(state, value),
    }
}

/// As much of a refusal as somebody reads.
const MOST_REFUSAL: usize = 2000;

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    check_printed(state, message)?;
    let mut message = message.to_string();
    if let Some((end, _)) = message.char_indices().nth(MOST_REFUSAL) {
        message.truncate(end);
        message.push('…');
    }
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let vars = context! {
            f => 1e16, none => (), list => vec![3, 1], map => context! { k => "v" },
        };
        assert_eq!(environment().render_str(source, vars).unwrap(), expected, "{source}");
    }

    #[test]
    fn numbers_as_python_writes_them() {
        check(
            "{{ 1.0 }} {{ f }} {{ f|string }} {{ 3 }} {{ 10 / 4 }} {{ 1e300 * 1e10 }}",
            "1.0 1e+16 1e+16 3 2.5 inf",
        );
        check("{{ '3'|int + 1 }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ true|int }}", "4 3 0 5 1");
        check("{{ '2.5'|float }} {{ 3|float }} {{ 'x'|float(1.5) }} {{ none|float }}", "2.5 3.0 1.5 0.0");
    }

    #[test]
    fn values_as_python_writes_them() {
        check("{{ true }} {{ none }} {{ list }} {{ map }}", "True None [3, 1] {'k': 'v'}");
        check("{{ 'a' ~ true ~ none ~ list }}", "aTrueNone[3, 1]");
    }

    #[test]
    fn tests_as_python_has_them() {
        check("{{ 'a' is sequence }} {{ map is sequence }} {{ 3 is sequence }}", "True True False");
        check("{{ none is iterable }} {{ 'a' is iterable }} {{ map is iterable }}", "False True True");
        check("{{ map is mapping }} {{ list is mapping }} {{ true is number }}", "True False True");
    }

    #[test]
    fn whitespace_as_transformers_sets_it() {
        check("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    }

    #[test]
    fn loop_controls_slices_namespaces_and_macros() {
        check(
            "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
            "13",
        );
        check("{{ 'abcd'[::-1] }}{{ [1, 2, 3][1:] }}{{ 'abcd'[-2:] }}", "dcba[2, 3]cd");
        check(
            "{% set ns = namespace(n=0) %}{% for x in list %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
            "4",
        );
        check("{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}", "1213");
    }
}
