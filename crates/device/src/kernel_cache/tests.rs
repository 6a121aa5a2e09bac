use super::*;
use std::{convert::Infallible, process::Command};

fn source<'a>(text: &'a str, defines: &'a [(&'a str, String)]) -> KernelSource<'a> {
    KernelSource { file: "a.cu", text, headers: &[("h", "x")], entry: "a", defines }
}

#[test]
fn whatever_decides_the_code_decides_the_name() {
    let options = ["--std=c++17".to_owned()];
    let (a, b) = ([("A", "1".to_owned())], [("A", "2".to_owned())]);
    let first = key("nvrtc 12.9", &options, &source("text", &a));
    assert_eq!(first, key("nvrtc 12.9", &options, &source("text", &a)));
    for other in [
        key("nvrtc 13.0", &options, &source("text", &a)),
        key("nvrtc 12.9", &[], &source("text", &a)),
        key("nvrtc 12.9", &options, &source("text2", &a)),
        key("nvrtc 12.9", &options, &source("text", &b)),
        key("nvrtc 12.9", &options, &source("text", &[])),
        key("nvrtc 12.9", &options, &KernelSource { headers: &[("h", "y")], ..source("text", &a) }),
        key("nvrtc 12.9", &options, &KernelSource { headers: &[("i", "x")], ..source("text", &a) }),
        key("nvrtc 12.9", &options, &KernelSource { entry: "b", ..source("text", &a) }),
        key("nvrtc 12.9", &options, &source("text", &[("B", "1".to_owned())])),
    ] {
        assert_ne!(first, other);
    }
}

/// As long as a real kernel, and of another content for each name.
fn code(key: &str) -> Vec<u8> {
    key.bytes().cycle().take(40_000).collect()
}

fn cache(folder: &Path) -> KernelCache {
    KernelCache { folder: Some(folder.to_owned()) }
}

/// Asks for a kernel; says whether it was compiled for that.
#[track_caller]
fn ask(cache: &KernelCache, key: &str) -> bool {
    let mut compiled = false;
    let found = cache.get_or_compile(key, || {
        compiled = true;
        Ok::<_, Infallible>(code(key))
    });
    assert!(found == Ok(code(key)), "{key}: other code");
    compiled
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_damaged_file_is_compiled_again() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kernels").join("sm_90a");
    let cache = cache(&folder);
    assert!(ask(&cache, "k") && !ask(&cache, "k"), "the second time it is there");
    let file = folder.join("k.bin");
    let whole = fs::read(&file).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let code_len = code("k").len();
    let mut damaged: Vec<Vec<u8>> =
        [0, 1, SEAL_BYTES - 1, SEAL_BYTES, code_len, whole.len() - 1].map(|len| whole[..len].to_vec()).into();
    damaged.extend([0, code_len / 2, code_len - 1, code_len, whole.len() - 1].map(flipped));
    damaged.push([whole.as_slice(), &[0]].concat());
    damaged.push(vec![0; whole.len()]);
    for (i, bytes) in damaged.iter().enumerate() {
        fs::write(&file, bytes).unwrap();
        assert!(ask(&cache, "k"), "damage {i} was loaded");
        assert!(!ask(&cache, "k"), "damage {i} was not mended");
        assert!(fs::read(&file).unwrap() == whole, "damage {i}");
    }
    // Another kernel's whole file, under this name.
    ask(&cache, "other");
    fs::copy(folder.join("other.bin"), &file).unwrap();
    assert!(ask(&cache, "k"), "another kernel was loaded");
    assert_eq!(names(&folder), ["k.bin", "other.bin"]);
}

#[test]
fn a_compiler_that_fails_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let cache = cache(home.path());
    assert_eq!(cache.get_or_compile("k", || Err("no")), Err("no"));
    assert!(names(home.path()).is_empty() && ask(&cache, "k"));
}

/// Where nothing can be kept, everything is compiled each time, and that is no error.
#[test]
fn a_folder_that_cannot_be_written() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "a file, where a folder should be").unwrap();
    for folder in [file.join("below"), file.clone(), PathBuf::from("/proc/none"), PathBuf::from("\0")] {
        let cache = cache(&folder);
        assert!(ask(&cache, "k") && ask(&cache, "k"), "{folder:?}");
    }
    let nowhere = KernelCache { folder: None };
    assert!(ask(&nowhere, "k") && ask(&nowhere, "k"));
    // A folder in the place of the file: it cannot be renamed over, and the temporary file goes.
    let folder = home.path().join("folder");
    fs::create_dir_all(folder.join("k.bin").join("x")).unwrap();
    let cache = cache(&folder);
    assert!(ask(&cache, "k") && ask(&cache, "k"));
    assert_eq!(names(&folder), ["k.bin"]);
    assert_eq!(names(home.path()), ["file", "folder"]);
}

/// Set for the processes that this test starts of itself: the folder that they share.
const SHARED_FOLDER: &str = "KERNEL_CACHE_TEST_FOLDER";

/// Whoever asks while others write and files are damaged gets the right code.
#[test]
fn threads_and_processes_write_one_name() {
    let name = "kernel_cache::tests::threads_and_processes_write_one_name";
    let given = std::env::var_os(SHARED_FOLDER).map(PathBuf::from);
    let home = tempfile::tempdir().unwrap();
    let folder = given.clone().unwrap_or_else(|| home.path().to_owned());
    let children: Vec<_> = (0..if given.is_some() { 0 } else { 3 })
        .map(|_| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args([name, "--exact"]).env(SHARED_FOLDER, &folder);
            child.stdout(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let folder = &folder;
            scope.spawn(move || {
                let cache = cache(folder);
                for round in 0..40 {
                    let key = ["a", "b"][(round + thread) % 2];
                    ask(&cache, key);
                    if round % 10 == thread {
                        // A writer that was cut off: what stands there now is no kernel.
                        let _ = fs::write(folder.join(format!("{key}.bin")), "cut");
                    }
                }
            });
        }
    });
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    if given.is_none() {
        let cache = cache(&folder);
        ask(&cache, "a");
        ask(&cache, "b");
        assert!(!ask(&cache, "a") && !ask(&cache, "b"));
        assert_eq!(names(&folder), ["a.bin", "b.bin"], "temporary files are left");
    }
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let left = home.path().join(".k.123.0");
    fs::write(&left, "half a ker").unwrap();
    fs::write(home.path().join("k.bin"), "kept").unwrap();
    sweep(home.path(), STALE);
    assert_eq!(names(home.path()), [".k.123.0", "k.bin"], "somebody may be writing it");
    sweep(home.path(), Duration::ZERO);
    assert_eq!(names(home.path()), ["k.bin"]);
    sweep(&home.path().join("nowhere"), Duration::ZERO);
}
