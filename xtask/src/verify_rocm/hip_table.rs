//! The table of HIP's functions and constants, read from its source (crates/device/src/rocm/sys.rs).

use anyhow::{Context, Result, bail};

use crate::rust_source::lines;

/// The table, with types as C spells them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Names and types of arguments. All return `hipError_t`.
    pub(super) functions: Vec<(String, Vec<String>)>,
    /// Names and numbers of constants.
    pub(super) constants: Vec<(String, u32)>,
    /// Names of enums.
    pub(super) enums: Vec<String>,
}

/// Reads the table.
///
/// # Errors
/// If the source is not of the form that it has.
pub(super) fn read(source: &str) -> Result<Table> {
    let code: String = lines(source).into_iter().map(|line| line.code + "\n").collect();
    let mut table = Table::default();
    let functions = block(&code, "\nfunctions! {").context("sys.rs has no functions! {")?;
    for group in ["required {", "optional {"] {
        let group = block(functions, group).with_context(|| format!("functions! has no {group}"))?;
        for line in group.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            table.functions.push(function(line).with_context(|| format!("no function: {line}"))?);
        }
    }
    let mut enums = block(&code, "\nenums! {").context("sys.rs has no enums! {")?;
    while let Some((name, rest)) = enums.split_once('{') {
        let (values, rest) = rest.split_once('}').context("an enum is not closed")?;
        table.enums.push(name.trim().to_owned());
        for value in values.split(';').map(str::trim).filter(|value| !value.is_empty()) {
            table.constants.push(constant(value)?);
        }
        enums = rest;
    }
    for line in code.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        table.constants.push(constant(&line.replace(": c_uint", "").replace(';', ""))?);
    }
    Ok(table)
}

/// What stands between the brace that `begin` ends with and the one that closes it.
fn block<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    let rest = text.split_once(begin)?.1;
    let mut depth = 1;
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return rest.get(..at);
        }
    }
    None
}

/// `name(argument: type, ...)`.
fn function(text: &str) -> Option<(String, Vec<String>)> {
    let (name, arguments) = text.strip_suffix(')')?.split_once('(')?;
    let arguments = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
    let types: Option<Vec<_>> =
        arguments.map(|argument| Some(c_type(argument.split_once(':')?.1.trim()))).collect();
    Some((name.trim().to_owned(), types?))
}

/// `name = number`.
fn constant(text: &str) -> Result<(String, u32)> {
    let parts = text.split_once('=').map(|(name, number)| (name.trim().to_owned(), number.trim().parse()));
    let Some((name, Ok(number))) = parts else { bail!("no constant: {text}") };
    Ok((name, number))
}

/// A type as C spells it.
fn c_type(rust: &str) -> String {
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(to));
    }
    match rust {
        "c_uint" => "unsigned int",
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        other => other,
    }
    .to_owned()
}

#[cfg(test)]
pub(super) const SAMPLE: &str = r#"
enums! {
    /// Codes.
    hipError_t {
        /// None.
        hipSuccess = 0;
        hipErrorOutOfMemory = 2;
    }
    hipMemcpyKind { hipMemcpyDefault = 4; }
}
/// A flag; not a `functions! {`.
pub const hipStreamNonBlocking: c_uint = 1;
macro_rules! functions { () => {}; }
functions! {
    required {
        /// Starts it.
        hipInit(flags: c_uint);
        hipMemcpyAsync(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            kind: hipMemcpyKind,
            stream: hipStream_t,
        );
    }
    optional {
        hipMalloc(address: *mut *mut c_void, bytes: usize);
    }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = read(SAMPLE).unwrap();
        let shown: Vec<_> =
            table.functions.iter().map(|(n, args)| format!("{n}({})", args.join(", "))).collect();
        let copy = "hipMemcpyAsync(void *, void const *, size_t, hipMemcpyKind, hipStream_t)";
        assert_eq!(shown, ["hipInit(unsigned int)", copy, "hipMalloc(void * *, size_t)"]);
        let names: Vec<_> = table.constants.iter().map(|(name, number)| format!("{name} {number}")).collect();
        assert_eq!(
            names,
            ["hipSuccess 0", "hipErrorOutOfMemory 2", "hipMemcpyDefault 4", "hipStreamNonBlocking 1"]
        );
        assert_eq!(table.enums, ["hipError_t", "hipMemcpyKind"]);
    }

    #[test]
    fn the_whole_of_the_tree_s_table_is_read() {
        use portolan::device::rocm::sys::Hip;
        let source =
            std::fs::read_to_string(crate::tree::root().join("crates/device/src/rocm/sys.rs")).unwrap();
        let table = read(&source).unwrap();
        let names: Vec<_> = table.functions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [Hip::REQUIRED, Hip::OPTIONAL].concat());
        assert!(table.constants.len() > 20 && table.enums.contains(&"hipMemcpyKind".to_owned()), "{table:?}");
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for broken in [
            String::new(),
            SAMPLE.replace("optional", "other"),
            SAMPLE.replace("hipInit(flags: c_uint)", "hipInit"),
            SAMPLE.replace("hipSuccess = 0", "hipSuccess = none"),
            SAMPLE.replace("hipStreamNonBlocking: c_uint = 1", "hipStreamNonBlocking: c_uint = hipOne"),
        ] {
            assert!(read(&broken).is_err(), "{broken}");
        }
    }
}
