//! What the program says to flags, variables and texts that make no sense: in a moment, before a model is looked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use portolan_testkit::{skipped, tiny};

/// `portolan WORDS...` in a folder of its own, with a cache that is not there. There is no model either: who says so
/// looked for one first.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Desk(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.args(words).current_dir(self.path()).env("PORTOLAN_MODELS_DIR", self.path().join("models"));
        command.env("PORTOLAN_THREADS", "1").env_remove("HF_ENDPOINT").env_remove("HF_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Code 1, all of `parts` on stderr, nothing on stdout, and not a word of the model, which is not there.
    #[track_caller]
    fn bad(&self, words: &str, parts: &[&str]) {
        let words: Vec<&str> = words.split(' ').collect();
        check(&self.command(&words).output().unwrap(), 1, parts);
    }

    /// Likewise for what cannot be parsed at all.
    #[track_caller]
    fn unparsed(&self, words: &str, parts: &[&str]) {
        let words: Vec<&str> = words.split(' ').collect();
        check(&self.command(&words).output().unwrap(), 2, parts);
    }
}

#[track_caller]
fn check(output: &Output, code: i32, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(output.stdout.is_empty(), "it prints {:?}", String::from_utf8_lossy(&output.stdout));
    assert!(errors.contains("error: ") && !errors.contains("panicked"), "{errors}");
    assert!(!errors.contains("./nowhere"), "it looked for the model first: {errors}");
    for part in parts {
        assert!(errors.contains(part), "'{errors}' does not say '{part}'");
    }
}

#[test]
fn sampling_is_refused_before_a_model_is_looked_for() {
    let desk = Desk::new();
    for command in ["generate -m ./nowhere -p x", "run ./nowhere x", "bench -m ./nowhere"] {
        let check = |flags: &str, parts: &[&str]| desk.bad(&format!("{command} {flags}"), parts);
        for bad in ["-1", "nan", "inf", "-inf", "1e-30", "-1e-30", "1e99"] {
            check(&format!("--temp={bad}"), &["temperature is ", "expected 0"]);
        }
        for bad in ["0", "-1", "1.1", "nan", "inf"] {
            check(&format!("--top-p={bad}"), &["top_p is ", "expected more than 0 and at most 1"]);
        }
        for bad in ["-1", "1.1", "nan", "-inf"] {
            check(&format!("--min-p={bad}"), &["min_p is ", "expected 0 to 1"]);
        }
        for bad in ["0", "-1", "nan", "inf"] {
            check(&format!("--repeat-penalty={bad}"), &["repeat_penalty is ", "expected more than 0"]);
        }
        for flag in ["frequency", "presence"] {
            check(&format!("--{flag}-penalty nan"), &[&format!("{flag}_penalty is NaN"), "a finite number"]);
        }
    }
    desk.bad("generate -m ./nowhere -p x -n 0", &["max_tokens is 0, expected at least 1"]);
    desk.bad("run ./nowhere x -n 0", &["max_tokens is 0, expected at least 1"]);
    let stop =
        |stop: &str| desk.command(&["generate", "-m", "./nowhere", "-p", "x", "--stop", stop]).output();
    check(&stop("").unwrap(), 1, &["stop string 0 is empty"]);
    check(&stop(&"y".repeat(100_000)).unwrap(), 1, &["stop string 0 has 100000 bytes", "shorten it"]);
    let mut many = desk.command(&["generate", "-m", "./nowhere", "-p", "x"]);
    many.args((0..10_000).map(|i| format!("--stop={i}")));
    check(&many.output().unwrap(), 1, &["10000 stop strings", "at most 1024"]);
}

#[test]
fn numbers_that_are_none_are_named_with_their_flag() {
    let desk = Desk::new();
    let whole = "expected a whole number from 0 to 18446744073709551615";
    for bad in ["-1", "1.5", "x", "1e3", "18446744073709551616", "0x10"] {
        for flag in ["--top-k", "--max-tokens", "--context", "--cache-tokens", "--threads", "--logprobs"] {
            desk.unparsed(&format!("generate -m ./nowhere -p x --json {flag} {bad}"), &[bad, flag, whole]);
        }
        desk.unparsed(&format!("logits -m ./nowhere --ids 1 -o o --greedy {bad}"), &[bad, "--greedy", whole]);
        desk.unparsed(&format!("trace -m ./nowhere --ids 1 -o o --width {bad}"), &[bad, "--width", whole]);
        desk.unparsed(&format!("bench -m ./nowhere -d 0,{bad}"), &[bad, "--depth", whole]);
    }
    desk.unparsed("generate -m ./nowhere -p x --seed -1", &["-1", "--seed"]);
    desk.unparsed("generate -m ./nowhere -p x --temp warm", &["warm", "--temp"]);
    desk.unparsed("generate -m ./nowhere -p x --logprobs 1", &["--json"]);
    desk.unparsed("generate -m ./nowhere -p x --device tpu", &["tpu", "--device"]);
    desk.unparsed("generate -m ./nowhere -p x --cache-type q4", &["q4", "--cache-type"]);
    desk.unparsed("compare-traces a b --error -1", &["-1", "--error"]);
}

#[test]
fn sizes_are_refused_before_a_model_is_looked_for() {
    let desk = Desk::new();
    let trillion = "1099511627776";
    for command in [
        "generate -m ./nowhere -p x",
        "run ./nowhere x",
        "bench -m ./nowhere -d 1 -p 1 -n 1",
        "inspect ./nowhere",
        "ports --warm ./nowhere",
        "logits -m ./nowhere --ids 1 -o o",
        "trace -m ./nowhere --ids 1 -o o",
    ] {
        let check = |flags: &str, parts: &[&str]| desk.bad(&format!("{command} {flags}"), parts);
        check(&format!("--context {trillion}"), &["context is 1099511627776", "expected at most 1073741824"]);
        check(&format!("--cache-tokens {trillion}"), &["cache tokens is 1099511627776", "expected at most"]);
        check("--threads 10000", &["threads is 10000", "expected at most 1024"]);
        if !command.starts_with("bench") {
            check("--context 0", &["context is 0, expected at least 1"]);
        }
    }
    desk.bad("trace -m ./nowhere --ids 1 -o o --width 0", &["width is 0"]);
    desk.bad("trace -m ./nowhere --ids 1 -o o --positions 0", &["positions is 0"]);
    desk.bad("logits -m ./nowhere --ids 1 -o o --chunk 0", &["--chunk is 0"]);
    desk.bad("bench -m ./nowhere -r 0", &["repetitions is 0"]);
    desk.bad("bench -m ./nowhere -p 0 -n 0,0", &["nothing to measure", "--prompt", "--generate"]);
}

#[test]
fn llama_cpp_16197_variables_that_cannot_be_read_are_told_at_the_start() {
    let desk = Desk::new();
    for (name, value) in [
        ("PORTOLAN_GRAPHS", "perhaps"),
        ("PORTOLAN_MEMORY_GUARD", "2"),
        ("PORTOLAN_PORT_MATMUL", "closed"),
        ("PORTOLAN_THREADS", "-1"),
        ("PORTOLAN_THREADS", "many"),
        ("PORTOLAN_PINNED_LOAD", "="),
        // Nothing but a test reads this one.
        ("PORTOLAN_TEST_SAMPLE", "x"),
    ] {
        for words in
            [&["ports"][..], &["pull", "./nowhere"], &["inspect", "./nowhere"], &["run", "./nowhere", "x"]]
        {
            let output = desk.command(words).env(name, value).output().unwrap();
            check(&output, 1, &[&format!("{name}={value} cannot be read: expected ")]);
        }
    }
    // A name that nothing reads is a warning, once.
    for name in ["PORTOLAN_THREAD", "PORTOLAN_PORT_MATMULL"] {
        let output = desk.command(&["ports"]).env(name, "0").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.matches(&format!("{name} is set, but")).count(), 1, "{errors}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let odd = std::ffi::OsStr::from_bytes(b"1\xff");
        let output = desk.command(&["ports"]).env("PORTOLAN_GRAPHS", odd).output().unwrap();
        check(&output, 1, &["PORTOLAN_GRAPHS=1\u{FFFD} cannot be read: expected UTF-8 text"]);
    }
}

#[test]
fn prompts_that_are_no_text_are_refused_before_a_model_is_looked_for() {
    let desk = Desk::new();
    for words in [&["generate", "-m", "./nowhere.gguf", "-p", "-"][..], &["run", "./nowhere.gguf"]] {
        let mut child = desk.command(words).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"caf\xe9 noir").unwrap();
        let output = child.wait_with_output().unwrap();
        check(&output, 1, &["the prompt from standard input is not UTF-8 text: byte 0xe9 at offset 3"]);
    }
    #[cfg(unix)]
    {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let mut command = desk.command(&["generate", "-m", "./nowhere", "-p"]);
        let output = command.arg(OsStr::from_bytes(b"\xff")).output().unwrap();
        check(&output, 2, &["UTF-8"]);
    }
}

#[test]
fn ids_that_are_a_folder_or_no_ids() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path().join("folder")).unwrap();
    std::fs::write(desk.path().join("empty"), " \n").unwrap();
    std::fs::write(desk.path().join("odd"), b"1,\xff").unwrap();
    std::fs::write(desk.path().join("words"), "1, two").unwrap();
    for command in ["logits", "trace"] {
        // A trace reads its ids once the plan is there, for the text of a corpus needs a tokenizer.
        let model = desk.path().join("model");
        if !model.exists() {
            std::fs::create_dir(&model).unwrap();
            tiny::copy_with_text("llama", &model);
        }
        let check = |ids: &str, parts: &[&str]| {
            desk.bad(&format!("{command} -m {} -o out --ids {ids}", model.display()), parts);
        };
        check("folder", &["--ids: folder is a folder", "a file that holds them"]);
        check("empty", &["--ids holds no token id: empty is empty"]);
        check("odd", &["odd is not UTF-8 text: byte 0xff at offset 2"]);
        check("words", &["'two' in words is no token id"]);
        check("gone.txt", &["'gone.txt' of --ids is no token id, nor a file of them"]);
        check("4294967296", &["4294967296"]);
    }
}

/// Hours of work are not done for a file that cannot be written.
#[test]
fn outputs_that_cannot_be_written_are_refused_before_the_wait() {
    let desk = Desk::new();
    let model = answering(&desk);
    std::fs::create_dir(desk.path().join("folder")).unwrap();
    for command in ["logits", "trace"] {
        let check = |output: &str, parts: &[&str]| {
            desk.bad(&format!("{command} -m {model} --ids 1,2,3 -o {output}"), parts);
        };
        check("folder", &["folder: cannot be written: it is a folder", "-o"]);
        check("gone/out", &["gone/out: cannot be written: there is no folder gone"]);
        check(&format!("{model}/model.safetensors"), &["is a file of the model itself", "-o"]);
    }
}

/// A model that answers, for what can be seen only when it does.
fn answering(desk: &Desk) -> String {
    let model = desk.path().join("model");
    std::fs::create_dir(&model).unwrap();
    tiny::copy_with_text("llama", &model);
    model.display().to_string()
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_told() {
    if !Path::new("/dev/full").exists() {
        return skipped("no /dev/full");
    }
    let desk = Desk::new();
    let model = answering(&desk);
    for words in [
        &["ports"][..],
        &["inspect", &model],
        &["generate", "-m", &model, "-p", "x", "-n", "4"],
        &["run", &model, "x", "-n", "4"],
        &["generate", "-m", &model, "-p", "x", "-n", "4", "--json"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = desk.command(words).stdout(full).output().unwrap();
        check(&output, 1, &["writing to standard output", "No space left on device"]);
    }
}

#[test]
fn prompts_at_their_ends() {
    let desk = Desk::new();
    let model = answering(&desk);
    let piped = |words: &[&str], text: &[u8]| {
        let mut child = desk.command(words).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A program that has heard enough may hang up.
        let _ = input.write_all(text);
        drop(input);
        child.wait_with_output().unwrap()
    };
    let raw = ["generate", "-m", &model, "-p", "-", "-n", "2", "--no-chat-template"];
    let chat = &raw[..raw.len() - 1];
    check(&piped(&raw, b""), 1, &["the prompt has no tokens", "give a text"]);
    // Special tokens of a user's are text, and so is a NUL.
    for text in [&b"<|im_end|>"[..], b"\0", b"a\0b", "\u{FEFF}é🦙".as_bytes()] {
        for words in [&raw[..], chat] {
            let output = piped(words, text);
            assert!(output.status.success(), "{text:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let long = vec![b'x'; 100_000];
    for words in [&raw[..], chat] {
        check(
            &piped(words, &long),
            1,
            &["tokens or more, and the context has 512", "Shorten the prompt", "--context"],
        );
    }
}

/// A runtime that is missing, or none at all: an error in words for who asked for it, and nothing for who did not.
#[test]
fn pegainfer_263_a_broken_gpu_runtime_is_told_and_the_cpu_works() {
    let desk = Desk::new();
    let model = answering(&desk);
    let none = desk.path().join("libamdhip64.so");
    std::fs::write(&none, "not a library").unwrap();
    let gone = desk.path().join("gone.so");
    for library in [none, gone] {
        let run = |device: &str| {
            let words = ["generate", "-m", &model, "-p", "x", "-n", "2", "--device", device];
            desk.command(&words).env("PORTOLAN_HIP_LIBRARY", &library).output().unwrap()
        };
        check(&run("rocm"), 1, &["rocm cannot be used", "--device cpu"]);
        for device in ["auto", "cpu"] {
            let output = run(device);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(!output.stdout.is_empty());
        }
    }
}
