//! No launch outside the chart: the places that launch are pinned.

use std::collections::BTreeMap;

use super::Source;
use crate::rust_source::lines;

/// What a launch of a kernel, or of a graph of kernels, is called by: beginnings of names, and calls.
const CALLS: [&str; 8] = [
    ".launch(",
    "::launch(",
    "launch_kernel",
    "cuLaunchKernel",
    "cuGraphLaunch",
    "hipModuleLaunchKernel",
    "hipLaunchKernel",
    "hipGraphLaunch",
];

/// Where they stand: file, call, how often, and what for.
#[rustfmt::skip]
pub(super) const SITES: &[(&str, &str, usize, &str)] = &[
    ("crates/device/src/cuda/stream.rs", "cuLaunchKernel", 1, "CUDA's stream"),
    ("crates/device/src/cuda/stream.rs", "::launch(", 1, "CUDA's stream, a graph"),
    ("crates/device/src/rocm/sys.rs", "hipModuleLaunchKernel", 1, "the table of HIP's functions"),
    ("crates/device/src/rocm/sys.rs", "hipGraphLaunch", 1, "the table of HIP's functions"),
    ("crates/device/src/rocm/stream.rs", "hipModuleLaunchKernel", 1, "ROCm's stream"),
    ("crates/device/src/rocm/stream.rs", "hipGraphLaunch", 1, "ROCm's stream, a graph"),
    ("crates/device/src/stream.rs", ".launch(", 2, "a device's stream: a kernel, a graph"),
    ("crates/kernels/src/gpu/prepare.rs", "launch_kernel", 1, "the one launch of a port that the chart chose"),
    ("crates/kernels/src/exec.rs", ".launch(", 1, "a captured program"),
    ("crates/kernels/src/conformance/recording.rs", ".launch(", 1, "captured runs of one variant, for benchmarks"),
];

/// Launches that are not in the list, and lines of the list that no launch fits.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    check_against(sources, SITES)
}

fn check_against(sources: &[Source], sites: &[(&str, &str, usize, &str)]) -> Vec<String> {
    let mut found = BTreeMap::new();
    for (path, text) in sources {
        for (number, line) in shipped(path, text) {
            for call in CALLS.into_iter().filter(|call| calls(&line, call)) {
                found.entry((path.as_str(), call)).or_insert_with(Vec::new).push(number);
            }
        }
    }
    let mut findings = Vec::new();
    for ((path, call), places) in &found {
        let pinned = sites.iter().find(|site| (site.0, site.1) == (*path, *call)).map_or(0, |site| site.2);
        for number in places.iter().skip(pinned) {
            findings.push(format!(
                "{path}:{number}: `{call}` launches outside the chart; a place that may is pinned in \
                 xtask/src/verify_rocm/dispatch/launches.rs"
            ));
        }
    }
    for (path, call, count, what) in sites {
        let there = found.get(&(*path, *call)).map_or(0, Vec::len);
        if there < *count {
            findings.push(format!(
                "{path}: `{call}` is pinned {count} times ({what}), and is there {there} times"
            ));
        }
    }
    findings
}

/// Whether a line calls it; where a function is declared it does not.
fn calls(line: &str, call: &str) -> bool {
    let named = call.ends_with('(');
    let parts: Vec<_> = line.split(call).collect();
    parts.split_last().is_some_and(|(_, before)| {
        before.iter().any(|before| {
            let begins = named || !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            begins && !before.trim_end().ends_with("fn")
        })
    })
}

/// The lines of code that are compiled for users, with their numbers.
fn shipped(path: &str, text: &str) -> Vec<(usize, String)> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name == "tests.rs" || path.contains("/tests/") || path.contains("/src/fake/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    let lines = lines(text);
    for (number, line) in (1..).zip(&lines) {
        let next = lines.get(number).map(|line| line.code.trim()).unwrap_or_default();
        // By custom the tests of a file are its last module.
        if line.code.trim() == "#[cfg(test)]" && next.starts_with("mod tests {") {
            break;
        }
        found.push((number, line.code.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, pinned: usize, says: Option<&str>) {
        let sites = [("crates/a/src/b.rs", ".launch(", pinned, "a reason")];
        let found = check_against(&[(path.to_owned(), text.to_owned())], &sites[..usize::from(pinned > 0)]);
        assert_eq!(found.len(), usize::from(says.is_some()), "{found:?}");
        assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
    }

    #[test]
    fn a_launch_outside_is_found_and_one_that_vanished_too() {
        const B: &str = "crates/a/src/b.rs";
        check_text(B, "x.launch(y)", 1, None);
        check_text(
            B,
            "\nx.launch(y);\nx.launch(z);",
            1,
            Some("b.rs:3: `.launch(` launches outside the chart"),
        );
        check_text(B, "x.start(y)", 1, Some("is pinned 1 times (a reason), and is there 0 times"));
        check_text(B, "unsafe { stream.launch_kernel(k, c, a) }", 0, Some("launch_kernel"));
        check_text(B, "(hip.hipModuleLaunchKernel)(f)", 0, Some("hipModuleLaunchKernel"));
        check_text(B, "f(\"x.launch(y)\"); // x.launch(y)", 0, None);
        check_text(B, "sys::cuLaunchKernelEx(a)", 0, Some("cuLaunchKernel"));
        check_text(B, "pub unsafe fn launch_kernel(&self) {}", 0, None);
        check_text(B, "#[cfg(test)]\nmod tests {\n x.launch(y) }", 0, None);
        check_text("crates/a/src/b/tests.rs", "x.launch(y)", 0, None);
    }
}
