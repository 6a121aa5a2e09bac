//! The tree keeps the rules, and broken trees are seen.

use super::*;
use crate::tree::{root, sample};

#[test]
fn the_tree_keeps_its_layers() {
    assert_eq!(check(&root()).unwrap(), Vec::<String>::new());
}

const FORBID: &str = "//! x\n#![forbid(unsafe_code)]\n";

/// A workspace of these crates: folder, name, lines of dependencies, the text of src/lib.rs.
fn workspace(crates: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
    let mut files =
        vec![("Cargo.toml".to_owned(), "[workspace]\nmembers = [\"c/*\"]\nresolver = \"3\"\n".to_owned())];
    for (folder, name, dependencies, lib) in crates {
        let head = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        files.push((format!("c/{folder}/Cargo.toml"), format!("{head}{dependencies}\n")));
        files.push((format!("c/{folder}/src/lib.rs"), (*lib).to_owned()));
    }
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    sample(&files)
}

/// Exactly this is found.
#[track_caller]
fn check_found(crates: &[(&str, &str, &str, &str)], want: &[&str]) {
    let dir = workspace(crates);
    assert_eq!(check(dir.path()).unwrap(), want);
}

/// `from` depends on `to` in the section `kind`.
#[track_caller]
fn check_edge(from: &str, kind: &str, to: &str, want: &[&str]) {
    let edge = format!("[{kind}]\n{to} = {{ path = \"../to\" }}\n");
    let root = |name: &str| if UNSAFE.contains(&name) { "" } else { FORBID };
    check_found(&[("from", from, &edge, root(from)), ("to", to, "", root(to))], want);
}

#[test]
fn a_crate_depends_only_on_lower_layers() {
    let not_below = |kind: &str, to: &str| {
        format!("portolan-weights: its {kind} dependency on {to} breaks the layers: its layer is not below")
    };
    check_edge("portolan-weights", "dependencies", "portolan-device", &[]);
    check_edge(
        "portolan-weights",
        "dependencies",
        "portolan-kernels",
        &[&not_below("normal", "portolan-kernels")],
    );
    check_edge("portolan-weights", "build-dependencies", "portolan", &[&not_below("build", "portolan")]);
    check_edge("portolan-weights", "dev-dependencies", "portolan", &[&not_below("dev", "portolan")]);
}

#[test]
fn text_and_cli_are_narrower() {
    let no = |from: &str, to: &str| {
        format!("{from}: its normal dependency on {to} breaks the layers: this crate may not depend on it")
    };
    check_edge(
        "portolan-text",
        "dependencies",
        "portolan-weights",
        &[&no("portolan-text", "portolan-weights")],
    );
    check_edge("portolan-text", "dev-dependencies", "portolan-weights", &[]);
    check_edge("portolan-cli", "dependencies", "portolan", &[]);
    check_edge("portolan-cli", "dependencies", "portolan-text", &[&no("portolan-cli", "portolan-text")]);
}

#[test]
fn test_crates_are_for_tests_and_tools_for_nobody() {
    check_edge("portolan-kernels", "dev-dependencies", "portolan-testkit", &[]);
    check_edge("portolan-device", "dev-dependencies", "hip-emu", &[]);
    check_edge("xtask", "dependencies", "portolan-testkit", &[]);
    let want = "portolan-kernels: its normal dependency on portolan-testkit breaks the layers: only tests may depend on it";
    check_edge("portolan-kernels", "dependencies", "portolan-testkit", &[want]);
    let want = "portolan-cli: its dev dependency on xtask breaks the layers: nothing may depend on a tool";
    check_edge("portolan-cli", "dev-dependencies", "xtask", &[want]);
}

#[test]
fn a_new_crate_must_take_a_place() {
    let want = "portolan-new: not in the table of layers (xtask/src/layers.rs)";
    check_found(&[("n", "portolan-new", "", FORBID)], &[want]);
}

#[test]
fn unsafe_code_stands_where_it_may() {
    let lib = format!("{FORBID}// unsafe\nconst S: &str = \"unsafe\";\n");
    check_found(&[("m", "portolan-models", "", &lib)], &[]);
    let want = ["c/m/src/lib.rs:3: unsafe code in portolan-models"];
    check_found(&[("m", "portolan-models", "", &format!("{FORBID}fn f() {{ unsafe {{}} }}\n"))], &want);
    let want = ["c/m/src/lib.rs: #![forbid(unsafe_code)] is missing"];
    check_found(&[("m", "portolan-models", "", "// #![forbid(unsafe_code)]\n")], &want);
}

#[test]
fn models_name_no_backend() {
    let lib = format!("{FORBID}// CUDA and the CPU agree\nfn relationship() {{}}\n");
    check_found(&[("m", "portolan-models", "", &lib)], &[]);
    for (code, word) in
        [("struct CpuThing;", "cpu"), ("fn f() -> &'static str { \"cuda\" }", "cuda"), ("mod hip;", "hip")]
    {
        let want = format!("c/m/src/lib.rs:3: portolan-models names a backend: {word}");
        check_found(&[("m", "portolan-models", "", &format!("{FORBID}{code}\n"))], &[&want]);
    }
    check_found(&[("k", "portolan-kernels", "", "mod cuda;\n")], &[]);
}

#[track_caller]
fn check_safety(lib: &str, bare: &[usize]) {
    let want: Vec<_> =
        bare.iter().map(|n| format!("c/d/src/lib.rs:{n}: unsafe without a SAFETY comment")).collect();
    let want: Vec<_> = want.iter().map(String::as_str).collect();
    check_found(&[("d", "portolan-device", "", lib)], &want);
}

#[test]
fn every_unsafe_block_says_why() {
    check_safety("// SAFETY: x\nunsafe { f() };\n", &[]);
    check_safety("// SAFETY: x\n// more\n#[inline]\nunsafe impl Send for X {}\n", &[]);
    check_safety("// SAFETY: x\nlet y =\n    unsafe { f() };\n", &[]);
    check_safety("let y = unsafe { f() }; // SAFETY: x\n", &[]);
    check_safety("unsafe fn f() {}\nfn g(f: unsafe fn()) {}\n#![deny(unsafe_op_in_unsafe_fn)]\n", &[]);
    check_safety("unsafe { f() };\n", &[1]);
    check_safety("// SAFETY: x\nf();\nunsafe { g() };\n", &[3]);
    check_safety("// SAFETY: x\n\nunsafe { g() };\n", &[3]);
    check_safety("let x = 1;\nunsafe impl Send for X {}\nlet s = \"SAFETY:\"; unsafe { f() };\n", &[2, 3]);
}
