//! From preprocessed HIP text to C++: the marks that the device header's macros leave are replaced, and every kernel
//! gets an entry in the module's table.
//!
//! - `HIP_EMU_SHARED` becomes a static object in one section; behind `extern`, the dynamic shared memory;
//! - `HIP_EMU_GLOBAL` goes, and the function behind it is noted;
//! - `HIP_EMU_BOUNDS(n, ...)` goes, and its first argument becomes the most threads of a block.

/// A kernel that a text defines or declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    /// What `__launch_bounds__` says, an expression.
    pub(crate) bounds: Option<String>,
}

const SHARED: &str = "HIP_EMU_SHARED";
const GLOBAL: &str = "HIP_EMU_GLOBAL";
const BOUNDS: &str = "HIP_EMU_BOUNDS";

/// The text for the C++ compiler, with the kernels' entries at its end, and the kernels.
///
/// `aliases`: for g++, which forgets a symbol's other name within templates, so that dynamic shared memory needs a symbol
/// of each name that it is declared by.
pub(crate) fn rewrite(text: &str, aliases: bool) -> (String, Vec<Found>) {
    let mut kernels: Vec<Found> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut out = String::with_capacity(text.len() + 4096);
    let mut rest = text;
    while let Some((at, mark)) = next_mark(rest) {
        out.push_str(&rest[..at]);
        let tail = &rest[at + mark.len()..];
        match mark {
            SHARED => rest = shared(&mut out, tail, &mut names),
            GLOBAL => {
                let in_template = is_template(&out);
                if let Some(found) = kernel(tail)
                    && !in_template
                    && !kernels.iter().any(|k| k.name == found.name)
                {
                    kernels.push(found);
                }
                rest = tail;
            }
            _ => rest = arguments(tail).map_or(tail, |(_, tail)| tail),
        }
    }
    out.push_str(rest);
    names.sort_unstable();
    names.dedup();
    for name in names.iter().filter(|_| aliases) {
        out.push_str(&format!(
            "\n__asm__(\".globl {name}\\n.hidden {name}\\n.set {name}, hip_emu_dynamic\");\n"
        ));
    }
    for kernel in &kernels {
        let Found { name, bounds } = kernel;
        let bounds = bounds.as_deref().unwrap_or("1024");
        out.push_str(&format!(
            "\nextern \"C\" __attribute__((visibility(\"default\"), used)) const hip_emu::kernel \
             hip_emu_kernel_{name} = hip_emu::describe<&{name}>({bounds});\n"
        ));
    }
    (out, kernels)
}

/// The next mark that is a whole word.
fn next_mark(text: &str) -> Option<(usize, &'static str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("HIP_EMU_")?;
        let mark = [SHARED, GLOBAL, BOUNDS]
            .into_iter()
            .find(|mark| text[at..].starts_with(mark) && !text[at + mark.len()..].starts_with(is_word));
        match mark {
            Some(mark) if !text[..at].ends_with(is_word) => return Some((at, mark)),
            _ => from = at + 1,
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Writes a shared object's declaration, and notes its name where the memory is dynamic; returns what is left of the text.
fn shared<'t>(out: &mut String, tail: &'t str, names: &mut Vec<&'t str>) -> &'t str {
    let before = out.trim_end();
    let extern_before = before.ends_with("extern") && !before[..before.len() - 6].ends_with(is_word);
    let extern_after =
        tail.trim_start().starts_with("extern") && !tail.trim_start()[6..].starts_with(is_word);
    if extern_before || extern_after {
        let Some(end) = tail.find(';') else { return tail };
        out.push_str("__attribute__((visibility(\"hidden\")))");
        out.push_str(&tail[..end]);
        let declared = tail[..end].rsplit_once('[').map_or(&tail[..end], |(before, _)| before).trim_end();
        names.extend(declared.rsplit(|c| !is_word(c)).next());
        out.push_str(" __asm__(\"hip_emu_dynamic\")");
        return &tail[end..];
    }
    // A kernel may say static itself.
    let is_static = before.ends_with("static") && !before[..before.len() - 6].ends_with(is_word);
    out.push_str(if is_static { "" } else { "static " });
    out.push_str("__attribute__((section(\"hip_emu_shared\"), used))");
    tail
}

/// Whether the declaration that a text ends in is a template's.
fn is_template(text: &str) -> bool {
    let start = text.rfind([';', '}', '{']).map_or(0, |at| at + 1);
    text[start..].split(|c| !is_word(c)).any(|word| word == "template")
}

/// The text between the brackets that a text begins with, and what is behind them.
fn arguments(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    if !text.starts_with('(') {
        return None;
    }
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return Some((&text[1..at], &text[at + 1..]));
                }
            }
            _ => {}
        }
    }
    None
}

/// The function that is declared behind `__global__`: the word before the first bracket that is no attribute's.
fn kernel(text: &str) -> Option<Found> {
    let mut bounds = None;
    let mut rest = text;
    loop {
        let open = rest.find('(')?;
        let head = rest[..open].trim_end();
        let word = head.rsplit(|c| !is_word(c)).next()?;
        let (inside, tail) = arguments(&rest[open..])?;
        match word {
            "__attribute__" | "alignas" | "__declspec" => {}
            BOUNDS => bounds = Some(first_argument(inside)),
            "" => return None,
            name => return Some(Found { name: name.to_owned(), bounds }),
        }
        rest = tail;
    }
}

/// The text up to the first comma that is in no bracket.
fn first_argument(text: &str) -> String {
    let mut depth = 0i32;
    let end = text.char_indices().find(|&(_, c)| {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    text[..end.map_or(text.len(), |(at, _)| at)].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, Option<&str>)]) {
        let expected: Vec<Found> = expected
            .iter()
            .map(|(name, bounds)| Found { name: (*name).to_owned(), bounds: bounds.map(str::to_owned) })
            .collect();
        assert_eq!(rewrite(text, false).1, expected);
    }

    #[test]
    fn kernels_are_found() {
        check("extern \"C\" HIP_EMU_GLOBAL void f(int *p) { p[0] = g(1); }", &[("f", None)]);
        check(
            "HIP_EMU_GLOBAL void HIP_EMU_BOUNDS((128 * 2), 4) f(A a) {}\nHIP_EMU_GLOBAL void g();",
            &[("f", Some("(128 * 2)")), ("g", None)],
        );
        check("HIP_EMU_GLOBAL __attribute__((used)) void f();HIP_EMU_GLOBAL void f() {}", &[("f", None)]);
        check(
            "template <int N> HIP_EMU_GLOBAL void f() {} int x; HIP_EMU_GLOBAL void g() {}",
            &[("g", None)],
        );
        check("int HIP_EMU_GLOBALS(); int x = MY_HIP_EMU_GLOBAL(2);", &[]);
    }

    #[test]
    fn shared_memory_is_placed() {
        let (text, _) =
            rewrite("void f() { HIP_EMU_SHARED float x[2]; extern HIP_EMU_SHARED int y[]; y[0] = 1; }", true);
        assert!(
            text.contains("static __attribute__((section(\"hip_emu_shared\"), used)) float x[2];"),
            "{text}"
        );
        assert!(text.contains("int y[] __asm__(\"hip_emu_dynamic\");"), "{text}");
        assert!(text.contains(".set y, hip_emu_dynamic"), "{text}");
    }
}
