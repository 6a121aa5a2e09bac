//! A program outside the tree builds on Portolan and runs, where neither CUDA nor ROCm is to be found.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use portolan_testkit::{Tensors, oracle};
use serde_json::Value;

/// The program: a model and token ids in, a greedy continuation out.
const MAIN: &str = r#"
use portolan::{Engine, GenerateOptions, LoadOptions, Prompt};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ids = args[2..].iter().map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
    let mut options = LoadOptions::default();
    options.exact = true;
    let engine = Engine::load(&args[0], &options)?;
    // A handle may go to another thread.
    let tokens = std::thread::spawn(move || -> Result<Vec<u32>, portolan::Error> {
        let mut answer = engine.generate(Prompt::Tokens(&ids), &GenerateOptions::tokens(args[1].parse().unwrap_or(1)))?;
        for piece in &mut answer {
            piece?;
        }
        Ok(answer.tokens().to_vec())
    });
    for id in tokens.join().map_err(|_| "the thread panicked")?? {
        println!("{id}");
    }
    Ok(())
}
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A crate in a folder of its own. The lock file is the tree's, so that no network is needed.
fn outside_crate() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nportolan = {{ path = {:?} }}\n\n[profile.dev]\ndebug = false\nincremental = false\n",
        root().join("crates/portolan")
    );
    fs::create_dir(dir.path().join("src")).unwrap();
    fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(dir.path().join("src/main.rs"), MAIN).unwrap();
    fs::copy(root().join("Cargo.lock"), dir.path().join("Cargo.lock")).unwrap();
    dir
}

/// The path of programs without the folders of GPU compilers, unless the C compiler stands there too.
fn path_without_gpu_compilers() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let has = |folder: &Path, names: &[&str]| names.iter().any(|name| folder.join(name).is_file());
    let kept = env::split_paths(&path)
        .filter(|folder| !has(folder, &["nvcc", "hipcc", "hipconfig"]) || has(folder, &["cc", "gcc"]));
    env::join_paths(kept).unwrap()
}

/// Cargo in the crate's folder. Its target folder stays from run to run, so only the first one is slow.
fn cargo(dir: &Path, args: &[&str]) -> Output {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("outside");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).arg("--offline").current_dir(dir).env("CARGO_TARGET_DIR", target);
    cargo.env("PATH", path_without_gpu_compilers());
    // What `cargo test` sets is not this crate's affair, nor is where a GPU's files are.
    let about_gpus =
        ["LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "ROCM_PATH", "HIP_PATH"].map(OsString::from);
    let of_test = env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name.starts_with("PORTOLAN_")
    });
    for name in about_gpus.into_iter().chain(of_test) {
        cargo.env_remove(name);
    }
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "cargo {args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Builds the crate and gives the path of its program.
fn build(dir: &Path) -> PathBuf {
    let output = cargo(dir, &["build", "--message-format=json"]);
    let messages = String::from_utf8(output.stdout).unwrap();
    let program =
        messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
            (message["target"]["name"] == "outside")
                .then(|| message["executable"].as_str().map(PathBuf::from))?
        });
    program.expect("cargo names the program that it built")
}

/// The packages that the crate is built from, by name, on this machine.
fn packages(dir: &Path) -> BTreeMap<String, Value> {
    let output = cargo(dir, &["tree", "--edges=normal,build", "--prefix=none", "--format={p}"]);
    let tree = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"portolan-kernels"), "{tree}");
    let output = cargo(dir, &["metadata", "--format-version=1", "--filter-platform", &host()]);
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = metadata["packages"].as_array().unwrap().iter();
    let named = all.filter_map(|package| Some((package["name"].as_str()?.to_owned(), package.clone())));
    named.filter(|(name, _)| names.contains(&name.as_str())).collect()
}

fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

/// A crate that links a GPU's library when it is built, rather than opening it when it runs.
fn links_a_gpu(package: &Value) -> bool {
    let links = package["links"].as_str().unwrap_or_default();
    ["cuda", "nvrtc", "nccl", "cublas", "hip", "amdhip", "rocm", "rccl"]
        .iter()
        .any(|gpu| links.starts_with(gpu))
}

#[test]
fn a_crate_outside_the_tree_runs_without_cuda_and_rocm() {
    let Some(model) = oracle("tiny/llama") else { return };
    let dir = outside_crate();
    let program = build(dir.path());

    let reference = Tensors::open(model.join("reference.safetensors"));
    let (prompt, greedy) = (reference.ids("input_ids"), reference.ids("greedy_ids"));
    let mut run = Command::new(&program);
    run.env_clear().current_dir(dir.path()).arg(&model).arg(greedy.len().to_string());
    let output = run.args(prompt.iter().map(u32::to_string)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let tokens: Vec<u32> = printed.lines().map(|line| line.parse().unwrap()).collect();
    // The smallest margin of these tokens is 0.07, the error allowed of `exact` 2.5e-4.
    assert_eq!(tokens, greedy);
    // The folder has another name in each run, and what is built from it would pile up.
    cargo(dir.path(), &["clean", "--package=outside"]);
}

#[test]
fn a_crate_outside_the_tree_links_no_gpu_library() {
    let dir = outside_crate();
    let packages = packages(dir.path());
    for (name, package) in &packages {
        assert!(name != "hip-runtime-sys", "a program must not build the bindings that tests compare with");
        assert!(!links_a_gpu(package), "{name} links {}", package["links"]);
        let ours = package["source"].is_null();
        let kinds =
            package["targets"].as_array().into_iter().flatten().map(|target| target["kind"].to_string());
        let scripts = kinds.filter(|kind| kind.contains("custom-build")).count();
        assert!(!ours || scripts == 0, "{name} has a build script");
    }
    assert!(links_a_gpu(&serde_json::json!({"links": "hip_runtime"})), "the check sees one that does");
}

/// The program in the README is the example `streaming`, which is compiled with the tests.
#[test]
fn the_readme_shows_the_streaming_example() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let example = fs::read_to_string(root().join("crates/portolan/examples/streaming.rs")).unwrap();
    let (_, program) = example.split_once("\n\n").unwrap();
    assert!(readme.contains(&format!("```rust,no_run\n{program}```")), "README.md differs from the example");
}
