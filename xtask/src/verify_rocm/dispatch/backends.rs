//! No backend is named where the code is the same for all: in models (`layers` checks that too), and in the engine.

use crate::{
    layers::BACKENDS,
    rust_source::{lines, words},
};

/// Folders of sources that name none.
const NAMELESS: [&str; 2] = ["crates/models/src/", "crates/portolan/src/"];

/// Files of them that may, and why.
const ALLOWED: [(&str, &str); 4] = [
    ("crates/portolan/src/loader.rs", "opens the device that a user names"),
    ("crates/portolan/src/plan/memory.rs", "advises about an APU's memory"),
    ("crates/portolan/src/docs.rs", "writes the chart of ports, a column for each"),
    ("crates/portolan/src/tools/", "reports for people"),
];

/// Backends that a file names and may not.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    let allowed = ALLOWED.iter().any(|(allowed, _)| path.starts_with(allowed));
    if is_test || allowed || !NAMELESS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    // The host is a CPU whatever the device, and the engine may say so. Models may not.
    let host = |word: &str| word == "cpu" && path.starts_with("crates/portolan/");
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(lines(text)) {
        if line.code.trim() == "#[cfg(test)]" {
            break;
        }
        let named =
            words(&line.text).into_iter().find(|word| BACKENDS.contains(&word.as_str()) && !host(word));
        findings.extend(named.map(|word| format!("{path}:{number}: names a backend: {word}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_in_the_engine_is_found() {
        let names = "if kind == DeviceKind::Rocm {}";
        for (path, text, found) in [
            ("crates/portolan/src/engine/worker.rs", names, 1),
            ("crates/portolan/src/core.rs", "\nfn hip_step() {}", 1),
            ("crates/models/src/families/llama.rs", "\"cuda\"", 1),
            ("crates/portolan/src/core.rs", "Device::cpu()", 0),
            ("crates/models/src/lib.rs", "Device::cpu()", 1),
            ("crates/portolan/src/core.rs", "// CUDA does it too\nlet ship = 1;", 0),
            ("crates/portolan/src/core.rs", "#[cfg(test)]\nmod tests { use cuda; }", 0),
            ("crates/portolan/src/plan/tests.rs", names, 0),
            ("crates/portolan/src/loader.rs", names, 0),
            ("crates/kernels/src/chart.rs", names, 0),
        ] {
            assert_eq!(check(path, text).len(), found, "{path}: {text}");
        }
    }
}
