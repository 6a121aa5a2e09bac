//! Templates that were made to break whoever renders them. Each must end soon, with an error that names the template
//! and the line; a stack that overflows or memory that runs out would end the whole test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use portolan_text::{ChatInput, ChatTemplate, Clock, LocalTime, Message, TextError};

fn render(source: &str) -> Result<String, TextError> {
    let messages = [Message::user("x")];
    let mut input = ChatInput::new(&messages);
    input.clock = Clock::Fixed(LocalTime::from_unix(0));
    ChatTemplate::new("bad", source)?.render_text(&input, &Default::default())
}

/// The error must name the template and its third line, and say `part`.
#[track_caller]
fn check(source: &str, part: &str) {
    let error = render(&format!("a\nb\n{source}")).map(|text| text.len()).expect_err(source).to_string();
    assert!(error.contains("\"bad\", line 3"), "{source:.200}: '{error:.300}' does not name the line");
    assert!(error.contains(part), "{source:.200}: '{error:.300}' does not say '{part}'");
    assert!(error.len() < 3000, "{source:.200}: an error of {} bytes", error.len());
}

const ENDLESS: &str = "without end";

#[test]
fn loops_without_an_end() {
    check("{% for i in range(10**9) %}{% endfor %}", "range has too many elements");
    check("{{ range(10**9)|list|length }}", "range has too many elements");
    let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}";
    check(&format!("{nested}{}", "{% endfor %}".repeat(3)), ENDLESS);
    check("{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x.find('b') }}{% endfor %}", ENDLESS);
    check(
        "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% set y = x.split('b') %}{% endfor %}",
        ENDLESS,
    );
    check(
        "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = n.x + [i] %}{% endfor %}",
        ENDLESS,
    );
}

#[test]
fn texts_without_an_end() {
    check("{{ 'x' * 10**9 }}", ENDLESS);
    check("{{ ([1] * 10**9)|length }}", "too large");
    check("{{ range(99999)|join('x' * 99999) }}", ENDLESS);
    check(
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        ENDLESS,
    );
    check("{% set x = 'x' * 100000 %}{{ x|replace('x', x) }}", ENDLESS);
    check("{% set x = 'x' * 100000 %}{{ x.replace('x', x) }}", ENDLESS);
    check("{{ ('x' * 50000000).split('x')|length }}", ENDLESS);
    check("{{ 'a'|indent(999999999, true) }}", ENDLESS);
    check("{{ [1]|batch(999999999, 0) }}", ENDLESS);
    check("{{ [1]|slice(999999999, 0) }}", ENDLESS);
    check("{{ '%999999999d'|format(1) }}", ENDLESS);
    check("{{ '{:>999999999}'.format(1) }}", "a width above 9999");
    check("{{ '{:>{}}'.format(1, 999999999) }}", "a width above 9999");
    check("{{ 'a'.center(999999999) }}", "a width above 10000");
    check("{{ 'a'.ljust(9999, 'x' * 99999) }}", "exactly one character");
    check("{{ strftime_now('%c' * 10000000) }}", "strftime_now: a format of 20000000 bytes");
    check(
        "{{ range(9999)|list|tojson(separators=('x' * 99999, ':')) }}",
        "separator or indent of 99999 bytes",
    );
    check("{{ range(9999)|list|tojson(indent='x' * 99999) }}", "separator or indent of 99999 bytes");
    check("{% set x = 'x' * 1000000 %}{{ [[x] * 999]|tojson }}", "MiB of text");
    check("{% set x = 'x' * 1000000 %}{{ [x] * 999 }}", "MiB of text");
    // What is too long for a prompt is no prompt, wherever it came from.
    let error = render("{{ 'x' * 70000000 }}").map(|text| text.len()).unwrap_err().to_string();
    assert!(error.contains("\"bad\"") && error.contains("70000000 bytes"), "{error}");
}

#[test]
fn recursion_without_an_end() {
    check("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit");
    check("{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}", "recursion limit");
    check("{% for x in [[[]]] recursive %}{{ loop([x]) }}{% endfor %}", "recursion limit");
    check("{% block a %}{{ self.a() }}{% endblock %}", "recursion limit");
}

/// Values that take little memory, and for ever to walk through.
#[test]
fn values_that_hold_themselves_many_times() {
    let doubled =
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
    check(doubled, "items");
    let dicts =
        "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}";
    check(dicts, "items");
    let macros = |step: &str| {
        format!(
            "{{% macro m(x, n) %}}{{% if n %}}{{{{ m({step}, n - 1) }}}}{{% else %}}{{{{ x }}}}{{% endif %}}{{% endmacro %}}{{{{ m([1], 60) }}}}"
        )
    };
    check(&macros("[x, x]"), "items");
    check(&macros("(x, x)"), "items");
    check(&macros("{'a': x, 'b': x}"), "items");
    check(&macros("dict(a=x, b=x)"), "items");
    check(&macros("namespace(a=x, b=x)"), "namespace");
    check(&macros("x + x"), "items");
    check(&macros("x|batch(9)|list * 2"), "items");
    let with: String = (0..60).map(|i| format!("{{% with x{} = x{i} + x{i} %}}", i + 1)).collect();
    check(&format!("{{% set x0 = [1] %}}{with}{{{{ x60 }}}}{}", "{% endwith %}".repeat(60)), "items");
}

/// Values so deep that dropping them would end the stack.
#[test]
fn values_without_a_bottom() {
    let deeper = |step: &str| {
        format!(
            "{{% set n = namespace(x=[1]) %}}{{% for i in range(99999) %}}{{% set n.x = {step} %}}{{% endfor %}}"
        )
    };
    for step in ["[n.x]", "{'a': n.x}", "(n.x,)", "dict(a=n.x)", "n.x|batch(1)|list", "{'a': n.x}.items()"] {
        check(&deeper(step), "nested deeper than 150");
    }
    for step in ["n", "[n]", "namespace(a=n)", "dict(a=n)"] {
        check(&deeper(step), "a namespace within a namespace");
    }
    check(&deeper("n.x|zip([1])"), "unknown filter");
    check(&deeper("n.x|chain([1])"), "unknown filter");
    check(&format!("{{% set x = [] %}}{}", "{% set x = [x] %}".repeat(99999)), "nested deeper than 150");
}

#[test]
fn sources_that_would_end_the_parsers_stack() {
    let long = "a tag of more than 1000 words and signs";
    for (before, link, after) in [
        ("{{ a", " ~ a", " }}"),
        ("{{ a", " + a", " }}"),
        ("{{ a", " ** a", " }}"),
        ("{{ a", " and a", " }}"),
        ("{{ a", " if a else a", " }}"),
        ("{{ a", ".a", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ a", "|trim", " }}"),
        ("{{ a", " is string", " }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{% if ", "not ", "1 %}{% endif %}"),
        ("{% set x = a", ".a", " %}"),
        ("{% set x", " | trim", " %}{% endset %}"),
        ("{% for x in a", ".a", " %}{% endfor %}"),
        ("{% filter trim", "|trim", " %}{% endfilter %}"),
        ("{% macro m(a=1", ".a", ") %}{% endmacro %}"),
        ("{% call m(a", ".a", ") %}{% endcall %}"),
        ("{% with a = a", ".a", " %}{% endwith %}"),
        // Not even closed.
        ("{{ a", ".a", ""),
        ("{% if a", ".a", ""),
    ] {
        check(&format!("{before}{}{after}", link.repeat(20000)), long);
        // What is just short enough neither ends the stack.
        drop(render(&format!("{before}{}{after}", link.repeat(300))));
        drop(render(&format!("{before}{}{after}", link.repeat(900))));
    }
    let ladder = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(99999));
    check(&ladder, "more than 500 elif tags");
    let most = format!("{{% if 0 %}}{}{{% elif 1 %}}x{{% endif %}}", "{% elif 0 %}".repeat(499));
    assert_eq!(render(&most).unwrap(), "x");
    for (open, close) in [("{{ ", " }}"), ("{% if ", " %}{% endif %}")] {
        for bracket in ["()", "[]", "{}"] {
            let (left, right) = bracket.split_at(1);
            check(&format!("{open}{}1{}{close}", left.repeat(400), right.repeat(400)), "recursion limits");
        }
    }
    check(&format!("{}{}", "{% if 1 %}".repeat(9999), "{% endif %}".repeat(9999)), "recursion limits");
}

#[test]
fn what_is_not_the_templates() {
    for tag in [
        "{% include 'chat' %}",
        "{% include '/etc/passwd' %}",
        "{% import 'chat' as c %}",
        "{% from 'chat' import x %}",
    ] {
        check(tag, "stands alone");
    }
    check("{% extends 'chat' %}", "cycle");
    check("{{ ''.__class__.__mro__ }}", "undefined");
    check("{{ messages.__class__.__init__ }}", "undefined");
    check("{{ cycler.__init__.__globals__.os }}", "undefined");
    check("{{ '%s'.__mod__(1) }}", "no method named __mod__");
    check("{{ debug() }}", "unknown function");
    check("{{ open('/etc/passwd') }}", "unknown function");
    for nothing in ["environ", "env", "config", "raise_exception.__globals__", "messages[0]['__class__']"] {
        assert_eq!(render(&format!("{{{{ {nothing} }}}}")).unwrap(), "", "{nothing}");
    }
    assert_eq!(render("{{ '{0.__class__}'.format('a') }}").map_err(drop), Err(()));
}

#[test]
fn numbers_at_their_ends() {
    for source in [
        "{{ 10 ** 1000000000 }}",
        "{{ 1 / 0 }}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ 'abc'[::0] }}",
        "{{ 'x'.zfill(-5) }}",
    ] {
        check(source, "");
    }
    for source in [
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -170141183460469231731687303715884105728 // -1 }}",
        "{{ 'abc'[-99:99:7] }}",
        "{{ 1e308 * 10 }}",
    ] {
        assert!(render(source).is_ok(), "{source}");
    }
}

/// A refusal is shown, but not a novel.
#[test]
fn llama_cpp_11402_a_refusal_is_cut() {
    let error = render("{{ raise_exception('é' * 10000000) }}").unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRefused { message } if message.chars().count() == 2001),
        "{error:.99}"
    );
    let error = render("{{ raise_exception([messages]) }}").unwrap_err().to_string();
    assert!(error.contains("'role': 'user'"), "{error}");
    assert!(render("{{ raise_exception() }}").is_err());
}

/// The same things in the sizes that real templates have.
#[test]
fn what_real_templates_do_goes_on() {
    #[track_caller]
    fn good(source: &str, expected: &str) {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
    good(
        "{% set n = namespace(x=[], y=none) %}{% for i in range(3) %}{% set n.x = n.x + [{'i': i}] %}{% endfor %}{{ n.x }}",
        "[{'i': 0}, {'i': 1}, {'i': 2}]",
    );
    good(
        "{% macro m(a, b=[1]) -%}\n {{ a }}{{ b }}{%- endmacro %}{{ m((1, 2)) }}{{ m(b=2, a={}) }}",
        "(1, 2)[1]{}2",
    );
    good("{% macro m() %}{{ caller('x') }}{% endmacro %}{% call(y) m() %}<{{ y }}>{% endcall %}", "<x>");
    good("{% with a = [1], b = 2 %}{{ a + [b] }}{% endwith %}", "[1, 2]");
    good("{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set c %}d{% endset %}{{ c }}", "1[2]d");
    good(
        "{{ {'a': {'b': (1, 2)}}.a.b[1] }}{{ ('a' ~ 'b')|upper }}{{ (messages)[0].role.strip() }}",
        "2ABuser",
    );
    good(
        "{{ (nothing) is defined }}{{ (messages[0].content is string) and not (1 is in [2]) }}",
        "FalseTrue",
    );
    good("{% if (nothing is defined and nothing) or (messages|length) > 0 %}y{% endif %}", "y");
    good(
        "{% macro t(x) %}{% if x is mapping %}{{ t(x.a) }}{% else %}{{ x }}{% endif %}{% endmacro %}{{ t({'a': {'a': {'a': 7}}}) }}",
        "7",
    );
    good(
        "{{ '{} and {:>5}'.format(1, 'x') }}{{ dict(a=1) }}{{ namespace(a=1).a }}{{ [1, 2, 3]|batch(2)|list }}",
        "1 and     x{'a': 1}1[[1, 2], [3]]",
    );
    // Fifty levels of recursion, as a schema within a schema may take.
    good("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}.{% endmacro %}{{ m(50) }}", &".".repeat(51));
}
