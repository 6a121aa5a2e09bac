//! Every environment variable that Portolan reads, in one table with one parser.
//!
//! A flag wins over a variable. An unknown `PORTOLAN_` variable gets a warning, since a misspelt switch that
//! does nothing is worse than an error (llama.cpp #16197, #10091: `=0` still enabled the feature there).

/// What a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarType {
    /// `0`, `false`, `off`, `no` are off; `1`, `true`, `on`, `yes` are on.
    Switch,
    /// A whole number.
    Number,
    /// A path.
    Path,
    /// Any text.
    Text,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    /// The name. A trailing `*` stands for a family of names.
    pub name: &'static str,
    /// What it holds.
    pub kind: VarType,
    /// What counts when it is not set.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// The table, in the order of docs/environment.md.
pub const TABLE: &[Var] = &[
    Var {
        name: "PORTOLAN_MODELS_DIR",
        kind: VarType::Path,
        default: "$XDG_CACHE_HOME/portolan/models or ~/.cache/portolan/models",
        meaning: "Where fetched models are kept.",
    },
    Var {
        name: "PORTOLAN_CACHE_DIR",
        kind: VarType::Path,
        default: "$XDG_CACHE_HOME/portolan/kernels or ~/.cache/portolan/kernels",
        meaning: "Where compiled kernels of GPUs are kept.",
    },
    Var {
        name: "PORTOLAN_NVRTC_LIBRARY",
        kind: VarType::Path,
        default: "libnvrtc.so.13 or .12, of the system, of CUDA_HOME, or of a Python environment",
        meaning: "The CUDA compiler library to open.",
    },
    Var {
        name: "PORTOLAN_HIP_LIBRARY",
        kind: VarType::Path,
        default: "libamdhip64.so.7, .6 or .5, of the system, of ROCM_PATH or /opt/rocm, or of a Python environment",
        meaning: "The HIP runtime library to open.",
    },
    Var {
        name: "PORTOLAN_HIPRTC_LIBRARY",
        kind: VarType::Path,
        default: "the HIP runtime itself, or libhiprtc.so of its version",
        meaning: "The HIP compiler library to open.",
    },
    Var {
        name: "PORTOLAN_ROCM_FORCE_DEVICE_MEM",
        kind: VarType::Switch,
        default: "off",
        meaning: "On: an integrated AMD GPU keeps weights in its own pool too, not in the host's memory.",
    },
    Var {
        name: "PORTOLAN_GRAPHS",
        kind: VarType::Switch,
        default: "on",
        meaning: "Off: steps of a GPU are launched kernel by kernel, not as captured graphs.",
    },
    Var {
        name: "PORTOLAN_THREADS",
        kind: VarType::Number,
        default: "one a core",
        meaning: "Threads of the CPU device. The flag --threads wins.",
    },
    Var {
        name: "PORTOLAN_PORT_*",
        kind: VarType::Switch,
        default: "each port's own",
        meaning: "PORTOLAN_PORT_<OP>=0 closes the ports of an op (a closed fused op is taken apart, a closed \
                  primitive is a refusal by name); =1 opens one that is opt-in.",
    },
    Var {
        name: "PORTOLAN_DEBUG_KERNELS",
        kind: VarType::Switch,
        default: "off",
        meaning: "Logs once an op which port was taken, or why not.",
    },
    Var {
        name: "PORTOLAN_MEMORY_GUARD",
        kind: VarType::Switch,
        default: "on",
        meaning: "Off: go on with a warning where the memory plan does not fit.",
    },
    Var {
        name: "PORTOLAN_PINNED_LOAD",
        kind: VarType::Switch,
        default: "on",
        meaning: "Off: weights go to a GPU from pageable memory, one copy after another.",
    },
    Var {
        name: "PORTOLAN_COMMIT",
        kind: VarType::Text,
        default: "unknown",
        meaning: "When Portolan is built: the commit that it is built from, for the head of traces.",
    },
    Var {
        name: "PORTOLAN_ORACLE",
        kind: VarType::Path,
        default: "not set",
        meaning: "For the tests: the folder with the reference checkpoints and numbers.",
    },
    Var {
        name: "PORTOLAN_ORACLE_REQUIRED",
        kind: VarType::Switch,
        default: "off",
        meaning: "For the tests: a missing reference fails a test in place of skipping it.",
    },
    Var {
        name: "PORTOLAN_SKIP_LOG",
        kind: VarType::Path,
        default: "not set",
        meaning: "For the tests: a file to which each skipped test adds a line with its reason.",
    },
    Var {
        name: "PORTOLAN_TEST_ONLY",
        kind: VarType::Text,
        default: "all",
        meaning: "For the tests of GPUs: the ops, or variants of ops (matmul.gemv1), whose cases are run, with commas.",
    },
    Var {
        name: "PORTOLAN_TEST_SAMPLE",
        kind: VarType::Number,
        default: "1",
        meaning: "For the conformance suite: run every so-many-th case, and on a GPU those of common encodings too.",
    },
    Var {
        name: "PORTOLAN_TEST_FEW",
        kind: VarType::Number,
        default: "all",
        meaning: "For the tests of GPUs: run so many cases of a variant, and so many models.",
    },
    Var {
        name: "PORTOLAN_SYSFS_ROOT",
        kind: VarType::Path,
        default: "/sys",
        meaning: "For the tests: where the kernel's counts of a GPU's memory are read.",
    },
    Var {
        name: "PORTOLAN_BENCH_LOAD_MIB",
        kind: VarType::Number,
        default: "128 on a GPU, 16 on the CPU",
        meaning: "For `cargo bench --bench load`: MiB of each of its 16 tensors.",
    },
];

/// A variable that is set to something that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value} cannot be read: expected {expected}")]
pub struct BadVariable {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub expected: &'static str,
}

/// The rows of the table.
pub fn table() -> &'static [Var] {
    TABLE
}

fn row_of(name: &str) -> Option<&'static Var> {
    TABLE.iter().find(|v| match v.name.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix) && name.len() > prefix.len(),
        None => v.name == name,
    })
}

/// Reads a switch. Empty counts as not set.
pub fn parse_switch(name: &str, value: &str) -> Result<Option<bool>, BadVariable> {
    match value.trim().to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "0" | "false" | "off" | "no" => Ok(Some(false)),
        "1" | "true" | "on" | "yes" => Ok(Some(true)),
        _ => Err(BadVariable {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: "0, false, off, no, 1, true, on or yes",
        }),
    }
}

/// The switch `name`, if it is set.
pub fn switch(name: &str) -> Result<Option<bool>, BadVariable> {
    debug_assert!(row_of(name).is_some(), "{name} is not in the table");
    parse_switch(name, &value_of(name)?)
}

/// The value of a variable that holds no path; empty where it is not set.
fn value_of(name: &str) -> Result<String, BadVariable> {
    let value = std::env::var_os(name).unwrap_or_default();
    value.into_string().map_err(|value| BadVariable {
        name: name.to_owned(),
        value: value.to_string_lossy().into_owned(),
        expected: "UTF-8 text",
    })
}

/// Reads a whole number. Empty counts as not set.
pub fn parse_number(name: &str, value: &str) -> Result<Option<usize>, BadVariable> {
    match value.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| BadVariable {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: "a whole number, 0 or more",
        }),
    }
}

/// The whole number `name`, if it is set.
pub fn number(name: &str) -> Result<Option<usize>, BadVariable> {
    debug_assert!(row_of(name).is_some(), "{name} is not in the table");
    parse_number(name, &value_of(name)?)
}

/// The text or path `name`, if it is set and not empty.
pub fn text(name: &str) -> Option<String> {
    debug_assert!(row_of(name).is_some(), "{name} is not in the table");
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The path `name`, if it is set and not empty; it need not be UTF-8.
pub fn path(name: &str) -> Option<std::path::PathBuf> {
    debug_assert!(row_of(name).is_some(), "{name} is not in the table");
    std::env::var_os(name).filter(|v| !v.is_empty()).map(Into::into)
}

/// Reads a variable by the type that its row has, and drops what it says. One without a row can hold anything.
pub fn check_one(name: &str, value: &std::ffi::OsStr) -> Result<(), BadVariable> {
    let Some(row) = row_of(name) else { return Ok(()) };
    let bad = |expected| {
        let value = value.to_string_lossy().into_owned();
        BadVariable { name: name.to_owned(), value, expected }
    };
    let text = || value.to_str().ok_or_else(|| bad("UTF-8 text"));
    match row.kind {
        VarType::Switch => parse_switch(name, text()?).map(drop),
        VarType::Number => parse_number(name, text()?).map(drop),
        VarType::Text => text().map(drop),
        VarType::Path => Ok(()),
    }
}

/// Refuses the first variable of the process, by name, that stands in the table and cannot be read: at the start, and
/// not when it is reached, which may be never.
pub fn check_all() -> Result<(), BadVariable> {
    let mut set: Vec<_> = std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v))).collect();
    set.sort();
    set.iter().try_for_each(|(name, value)| check_one(name, value))
}

/// Names among `names` that begin with `PORTOLAN_` and stand in no row.
pub fn unknown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    names.into_iter().filter(|n| n.starts_with("PORTOLAN_") && row_of(n).is_none()).collect()
}

/// Warns of each `PORTOLAN_` variable of the process that Portolan does not know.
pub fn warn_unknown() {
    let names: Vec<String> = std::env::vars_os().filter_map(|(n, _)| n.into_string().ok()).collect();
    for name in unknown(names.iter().map(String::as_str)) {
        tracing::warn!("{name} is set, but Portolan knows no such variable; see docs/environment.md");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Result<Option<bool>, ()>) {
        assert_eq!(parse_switch("PORTOLAN_X", value).map_err(drop), expected, "{value:?}");
    }

    #[test]
    fn llama_cpp_16197_zero_is_off() {
        for off in ["0", "false", "off", "no", "OFF", " 0 ", "False"] {
            check(off, Ok(Some(false)));
        }
        for on in ["1", "true", "on", "yes", "YES"] {
            check(on, Ok(Some(true)));
        }
        check("", Ok(None));
        check("2", Err(()));
        check("maybe", Err(()));
    }

    #[test]
    fn llama_cpp_16197_each_type_has_one_reading() {
        #[track_caller]
        fn check(name: &str, value: &str, expected: &str) {
            let found =
                check_one(name, value.as_ref()).map_or_else(|bad| bad.to_string(), |()| "read".to_owned());
            assert!(found.contains(expected), "{name}={value}: {found}");
        }
        for name in
            ["PORTOLAN_GRAPHS", "PORTOLAN_MEMORY_GUARD", "PORTOLAN_PORT_MATMUL", "PORTOLAN_ORACLE_REQUIRED"]
        {
            for good in ["", "0", "1", " no ", "TRUE"] {
                check(name, good, "read");
            }
            for bad in ["2", "-1", "maybe", "0x1", "yes please", "\u{ff11}"] {
                check(name, bad, &format!("{name}={bad} cannot be read: expected 0, false"));
            }
        }
        for name in ["PORTOLAN_THREADS", "PORTOLAN_TEST_FEW"] {
            for good in ["", "0", " 8 ", "18446744073709551615"] {
                check(name, good, "read");
            }
            for bad in ["-1", "1.5", "1e3", "8 threads", "18446744073709551616", "0x8"] {
                check(name, bad, &format!("{name}={bad} cannot be read: expected a whole number"));
            }
        }
        // A path may be anything, and what has no row is another's affair.
        check("PORTOLAN_ORACLE", "\n", "read");
        check("PORTOLAN_NOT_THERE", "?", "read");
    }

    /// Every row is read by its type somewhere; a type that this test does not know fails to build.
    #[cfg(unix)]
    #[test]
    fn what_is_no_text_is_no_switch_and_no_number() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let odd = OsStr::from_bytes(b"1\xff");
        for row in TABLE {
            let name = row.name.replace('*', "X");
            let takes_anything = match row.kind {
                VarType::Path => true,
                VarType::Switch | VarType::Number | VarType::Text => false,
            };
            assert_eq!(check_one(&name, odd).is_ok(), takes_anything, "{name}");
        }
    }

    #[test]
    fn llama_cpp_10091_unknown_variables_are_named() {
        let names = ["PATH", "PORTOLAN_THREADS", "PORTOLAN_PORT_MATMUL", "PORTOLAN_PORT_", "PORTOLAN_THREAD"];
        assert_eq!(unknown(names), ["PORTOLAN_PORT_", "PORTOLAN_THREAD"]);
    }
}
