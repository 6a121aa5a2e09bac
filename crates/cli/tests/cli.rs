//! The program as a user runs it: what it prints where, and how it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

use portolan::{kernels::OpKind, tools::logits::Logits};
use portolan_testkit::{Tensors, assert_close, skipped, tiny};
use serde_json::Value;

/// A model that speaks, and a cache folder of its own.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Home(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.model()).unwrap();
        tiny::copy_with_text("llama", &home.model());
        home
    }

    fn model(&self) -> PathBuf {
        self.path("tiny-llama")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command `portolan WORDS...`, in which `MODEL` stands for the model.
    fn command(&self, words: &str) -> Command {
        let model = self.model();
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        let words = words.split_whitespace();
        command.args(words.map(|w| if w == "MODEL" { model.as_os_str() } else { w.as_ref() }));
        command.env("PORTOLAN_MODELS_DIR", self.path("cache/models")).env("PORTOLAN_THREADS", "1");
        for name in ["PORTOLAN_MEMORY_GUARD", "PORTOLAN_DEBUG_KERNELS", "HF_ENDPOINT", "HF_TOKEN"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Standard output of a command that must end well and say nothing else.
    #[track_caller]
    fn good(&self, words: &str) -> String {
        well(words, &self.run(words))
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.good(words)).unwrap()
    }

    #[track_caller]
    fn piped(&self, words: &str, input: &str) -> Output {
        let mut child = self.command(words).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// A command that must end with code 1, an error on stderr that says all of `parts`, and nothing on stdout.
    #[track_caller]
    fn bad(&self, words: &str, parts: &[&str]) {
        let output = self.run(words);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}: {errors}");
        assert!(output.stdout.is_empty(), "{words}: it prints {:?}", String::from_utf8_lossy(&output.stdout));
        assert!(errors.contains("error: ") && !errors.contains("panicked"), "{words}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{words}: '{errors}' does not say '{part}'");
        }
    }
}

#[track_caller]
fn well(words: &str, output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {} {errors}", output.status);
    assert_eq!(errors, "", "{words}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn every_command_has_help_with_an_example() {
    let home = Home::new();
    let all = home.good("--help");
    for command in [
        "run",
        "generate",
        "logits",
        "trace",
        "compare-traces",
        "pull",
        "inspect",
        "convert",
        "ports",
        "bench",
    ] {
        assert!(all.contains(command), "{command} is not in the list");
        let help = home.good(&format!("{command} --help"));
        assert!(
            help.contains("Example:") && help.contains(&format!("portolan {command}")),
            "{command}: {help}"
        );
    }
    assert!(home.good("--version").starts_with("portolan "));
}

#[test]
fn logits_go_into_a_file() {
    let home = Home::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/tiny/llama/reference.safetensors");
    let reference = Tensors::open(data);
    let ids = reference.ids("input_ids");
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    std::fs::write(home.path("ids.txt"), list.join("\n")).unwrap();
    let out = home.path("out.safetensors");
    for (ids_flag, chunk) in [(home.path("ids.txt").display().to_string(), "512"), (list.join(","), "7")] {
        let words = format!(
            "logits -m MODEL --ids {ids_flag} --greedy 16 --chunk {chunk} --exact -o {}",
            out.display()
        );
        assert_eq!(home.good(&words), "");
        let found = Tensors::open(&out);
        assert_eq!(found.shape("logits"), [ids.len(), 512]);
        assert_eq!(found.shape("greedy_logits"), [16, 512]);
        assert_close(&found.f32("logits"), &reference.f32("logits"), 3e-4, "logits");
        assert_eq!(found.ids("input_ids"), ids);
        assert_eq!(found.ids("greedy_ids"), reference.ids("greedy_ids"));
        std::fs::remove_file(&out).unwrap();
    }
    assert_eq!(std::fs::read_dir(home.0.path()).unwrap().count(), 2, "it leaves nothing else behind");
    // The library writes the same file.
    let mut logits = Logits::default();
    (logits.input_ids, logits.logits, logits.vocab) = (vec![1], vec![0.5, 1.5], 2);
    logits.save(&out).unwrap();
    assert!(!Tensors::open(&out).has("greedy_ids"));
}

/// `ulimit -f` is told as an error of the write; by default its signal ends a program.
#[cfg(unix)]
#[test]
fn a_limit_on_files_is_an_error_and_leaves_nothing() {
    let home = Home::new();
    let out = home.path("out.safetensors");
    let words = format!("logits -m MODEL --ids 3,5,7 -o {}", out.display());
    let command = home.command(&words);
    // Two blocks of 512 or of 1024 bytes, as the shell has them; the logits take 6 KiB.
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -f 2 && exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let output = limited.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{} {errors}", output.status);
    assert!(errors.contains("File too large") && errors.contains("out.safetensors"), "{errors}");
    assert_eq!(std::fs::read_dir(home.0.path()).unwrap().count(), 1, "it leaves nothing behind");
    home.good(&words);
}

#[test]
fn a_model_is_converted() {
    let home = Home::new();
    let made = home.path("made");
    let words = format!("convert MODEL {} --bits 4 --group-size 32 --keep lm_head=8", made.display());
    let plan = home.good(&format!("{words} --dry-run"));
    for part in
        ["Llama", "layers.*.self_attn.q_proj", "affine4-g32-bf16", "quantized", "affine8-g32-bf16", "kept"]
    {
        assert!(plan.contains(part), "'{part}' is not in the plan:\n{plan}");
    }
    for line in ["tensors ", "parameters ", "bits each", "disk ", "free", "memory "] {
        assert!(plan.contains(line), "'{line}' is not in the plan:\n{plan}");
    }
    assert!(!made.exists(), "a dry run writes nothing");
    let all = home.good(&words);
    assert_eq!(all, format!("{plan}written: {}\n", made.display()));
    assert_eq!(std::fs::read_dir(home.0.path()).unwrap().count(), 2, "it leaves nothing else behind");
    // It is a model like any other, text and all.
    let report = home.json(&format!("inspect {} --json", made.display()));
    assert_eq!(report["format"], "Mlx");
    assert!(report["tokenizer_error"].is_null(), "{report}");
    home.good(&format!("generate -m {} -p hello -n 4 --ignore-eos", made.display()));
    // A second time there is something in the way.
    home.bad(&words, &[made.to_str().unwrap(), "not empty", "choose another folder"]);
    let elsewhere = home.path("elsewhere");
    let bad = |flags: &str, parts: &[&str]| {
        home.bad(&format!("convert MODEL {} {flags}", elsewhere.display()), parts)
    };
    bad("--bits 7", &["bits is 7", "2, 3, 4, 5, 6 or 8"]);
    bad("--group-size 48", &["group size is 48", "32, 64 or 128"]);
    bad("--mode mxfp4 --bits 8", &["mode mxfp4"]);
    bad("--keep experts=8", &["experts", "no such matrix"]);
    // Whether a folder can be made shows when it is, after the plan.
    let nowhere = home.run("convert MODEL /proc/made");
    let errors = String::from_utf8(nowhere.stderr).unwrap();
    assert_eq!(nowhere.status.code(), Some(1), "{errors}");
    assert!(errors.contains("error: /proc/made: no folder can be made in /proc"), "{errors}");
    home.bad(&format!("convert MODEL {}/made", home.model().display()), &["within the source"]);
    for flags in ["--mode int4", "--keep lm_head", "--keep lm_head=7", "--shard-size 5XB", "--shard-size 0"] {
        let output = home.run(&format!("convert MODEL {} {flags}", elsewhere.display()));
        assert_eq!(output.status.code(), Some(2), "{flags}");
    }
    assert!(!elsewhere.exists());
}

#[test]
fn piped_output_is_the_text_alone() {
    let home = Home::new();
    let words = "generate -m MODEL -p hello -n 24 --ignore-eos";
    let text = home.good(words);
    let json = home.json(&format!("{words} --json --logprobs 2"));
    assert_eq!(format!("{}\n", json["text"].as_str().unwrap().trim_end_matches('\n')), text);
    assert_eq!(json["finish_reason"], "max_tokens");
    assert_eq!(json["generated_tokens"], 24);
    assert_eq!(json["tokens"].as_array().unwrap().len(), 24);
    let logprobs = json["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 24);
    // Greedy: the chosen token is the likeliest.
    assert_eq!(logprobs[0]["id"], logprobs[0]["top"][0]["id"]);
    assert!(logprobs[0]["top"][1]["logprob"].as_f64() <= logprobs[0]["logprob"].as_f64());
    assert!(json["prompt_tokens"].as_u64() > Some(5), "the chat template is around the prompt");

    // The prompt from a pipe, without the template.
    let output = home.piped("generate -m MODEL -p - -n 8 --ignore-eos --no-chat-template --json", "hello");
    let json: Value = serde_json::from_str(&well("-p -", &output)).unwrap();
    assert!(json["prompt_tokens"].as_u64() <= Some(5), "{json}");

    // A seed gives its text again; a stop string is no part of it.
    let warm =
        format!("{words} --temp 1.5 --seed 3 --top-k 50 --top-p 0.9 --min-p 0.01 --repeat-penalty 1.1");
    assert_eq!(home.good(&warm), home.good(&warm));
    let first = text.chars().find(|c| c.is_ascii_alphanumeric()).unwrap();
    let stopped = home.json(&format!("{words} --json --stop {first}"));
    assert_eq!(stopped["finish_reason"], "stop_string");
    assert!(!stopped["text"].as_str().unwrap().contains(first));

    // Statistics go to stderr.
    let profile = home.run(&format!("{words} --profile"));
    assert_eq!(String::from_utf8(profile.stdout).unwrap(), text);
    let lines = String::from_utf8(profile.stderr).unwrap();
    for part in ["resident weights", "prefill", "decode", "tok/s", "max_tokens"] {
        assert!(lines.contains(part), "{lines}");
    }
}

#[test]
fn errors_say_what_and_end_with_1() {
    let home = Home::new();
    home.bad("generate -m ./nowhere -p x", &["./nowhere"]);
    home.bad("inspect ./nowhere.gguf", &["nowhere.gguf"]);
    home.bad("logits -m MODEL --ids 1,x -o out", &["'x'", "--ids"]);
    home.bad("logits -m MODEL --ids 1,512 -o out", &["512"]);
    home.bad("logits -m MODEL --ids 1 --chunk 0 -o out", &["--chunk"]);
    home.bad("logits -m MODEL --ids 1 -o /no/such/folder/out", &["/no/such/folder/out", "cannot be written"]);
    home.bad("generate -m MODEL -p x --top-p 7", &["top_p", "7"]);
    home.bad("generate -m MODEL -p x --device cuda", &["cuda", "--device cpu"]);
    home.bad("generate -m MODEL -p x -c 4", &["context is full", "--context"]);
    home.bad("bench -m MODEL -p 18446744073709551615", &["context"]);
    home.bad("bench -m MODEL -r 0 -p 4 -n 0", &["repetitions"]);
    std::fs::write(home.model().join("config.json"), "{").unwrap();
    home.bad("inspect MODEL", &["config.json", "not valid JSON"]);
    // What cannot be parsed is clap's affair: code 2, and nothing on stdout.
    let output = home.run("generate --no-such-flag");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

#[test]
fn the_memory_guard_refuses_and_can_be_switched_off() {
    let home = Home::new();
    let plan = home.json("inspect MODEL --json");
    assert_eq!(plan["memory"]["fits"], true);
    let available = plan["memory"]["pools"][0]["available"].as_u64().unwrap();
    // Twice what there is: 384 bytes a position in f16. Pages that nobody touches cost nothing.
    let context = (available / 192).min(1 << 30);
    if context * 384 <= available {
        return skipped("this machine has room for the longest context there is");
    }
    let words = format!("logits -m MODEL --ids 1,2,3 -c {context} -o {}", home.path("out").display());
    home.bad(&words, &["needs", "can be had", "PORTOLAN_MEMORY_GUARD=0", "cache"]);
    let inspect = home.run(&format!("inspect MODEL --json -c {context}"));
    let inspect: Value = serde_json::from_slice(&inspect.stdout).unwrap();
    assert_eq!(inspect["memory"]["fits"], false);
    let output = home.command(&words).env("PORTOLAN_MEMORY_GUARD", "0").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("does not fit"), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    // Whether the system then lends so much is its own affair.
    assert!(output.status.success() || errors.contains("out of memory"), "{errors}");
    let output = home.command(&words).env("PORTOLAN_MEMORY_GUARD", "perhaps").output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("PORTOLAN_MEMORY_GUARD=perhaps"));
}

#[test]
fn inspect_and_ports_print_json() {
    let home = Home::new();
    let report = home.json("inspect MODEL --json");
    assert_eq!(report["family"], "Llama");
    assert_eq!(report["parameters"], 176_576);
    assert_eq!(report["sizes"]["kv_heads"], 2);
    assert_eq!(report["chat_templates"][0], "default");
    let items = report["memory"]["items"].as_array().unwrap();
    assert!(items.iter().all(|i| i["bytes"].is_u64()) && items.len() >= 4, "{items:?}");
    let text = home.good("inspect MODEL");
    for part in ["family", "Llama", "0.2 M", "self_attn.q_proj", "bf16", "memory plan", "cache (512 tokens)"]
    {
        assert!(text.contains(part), "'{text}' does not say '{part}'");
    }
    let ports = home.json("ports --json");
    let listed: Vec<&str> = ports.as_array().unwrap().iter().map(|p| p["op"].as_str().unwrap()).collect();
    let table = home.good("ports");
    for op in OpKind::ALL {
        assert!(listed.contains(&op.name()), "{op} is not in the JSON");
        assert!(table.lines().any(|line| line.starts_with(op.name())), "{op} is not in the table");
    }
}

#[test]
fn bench_prints_a_table_csv_and_json() {
    let home = Home::new();
    let words = "bench -m MODEL -p 8 -n 4 -d 0,16 -r 2";
    let table = home.good(words);
    let tests = ["pp8", "tg4", "pp8@d16", "tg4@d16"];
    for test in tests {
        assert!(table.lines().any(|l| l.split_whitespace().next() == Some(test)), "{test}: {table}");
    }
    let csv = home.good(&format!("{words} --csv"));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "model,test,run,tokens,seconds,tokens_per_second");
    assert_eq!(lines.len(), 1 + 2 * tests.len(), "{csv}");
    assert!(lines[1..].iter().all(|l| l.split(',').count() == 6), "{csv}");

    let json = home.json(&format!("{words} --json --by-op --temp 0.8"));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["test"].as_str().unwrap()).collect::<Vec<_>>(), tests);
    assert!(
        rows.iter().all(|r| r["median"].as_f64() > Some(0.0) && r["seconds"].as_array().unwrap().len() == 2)
    );
    for leg in ["pp", "tg"] {
        let ops = json["by_op"][leg]["ops"].as_array().unwrap();
        assert!(ops.iter().any(|o| o["op"].as_str().unwrap().starts_with("matmul/")), "{leg}: {ops:?}");
        let sum: f64 = ops.iter().map(|o| o["share"].as_f64().unwrap()).sum();
        assert!(sum > 0.0 && sum <= 1.0, "{leg}: {sum}");
    }
    let by_op = home.good("bench -m MODEL -p 8 -n 4 -r 1 --by-op");
    for part in ["prefill", "decode", "attention/", "between the ops"] {
        assert!(by_op.contains(part), "{by_op}");
    }
    // A table has no place in CSV.
    let csv = home.run("bench -m MODEL -p 8 -n 4 -r 1 --by-op --csv");
    assert_eq!(String::from_utf8(csv.stdout).unwrap().lines().count(), 3);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let home = Home::new();
    let endless = "generate -m MODEL -p hello --ignore-eos";
    for words in [endless, "ports --json", "inspect MODEL --json", "run MODEL hello -n 200"] {
        let mut child = home.command(words).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{words}: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
    }
}

#[test]
fn run_answers_a_word_a_pipe_and_nobody() {
    let home = Home::new();
    let answer = home.good("run MODEL hello -n 12");
    assert!(answer.len() > 1 && answer.ends_with('\n'), "{answer:?}");
    // What comes through a pipe is one prompt.
    let piped = home.piped("run MODEL -n 12", "hello\n");
    assert_eq!(well("a pipe", &piped), answer);
    assert_eq!(home.good("run MODEL -n 12"), "", "no prompt and no terminal");
    let system = home.good("run MODEL hello -n 12 --system brief");
    assert_ne!(system, answer);
    let profile = home.run("run MODEL hello -n 12 --profile");
    assert_eq!(String::from_utf8(profile.stdout).unwrap(), answer);
    assert!(String::from_utf8(profile.stderr).unwrap().contains("tok/s"));
}

/// A conversation on a terminal, which util-linux's `script` gives it.
struct Conversation {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    text: String,
    prompts: usize,
}

impl Conversation {
    /// None where there is no `script`.
    fn start(home: &Home, flags: &str) -> Option<Self> {
        // `exec`: a shell that waits would take the Ctrl-C for itself as well, and end with 130 whatever we answer.
        let line = format!("exec {} run {} {flags}", env!("CARGO_BIN_EXE_portolan"), home.model().display());
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("PORTOLAN_MODELS_DIR", home.path("cache/models"));
        command.env("TERM", "xterm").env("PORTOLAN_THREADS", "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, child.stdout.take()?);
        Some(Conversation { child, input, output, text: String::new(), prompts: 0 })
    }

    /// Reads on until `done`.
    #[track_caller]
    fn read_until(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        while !done(&self.text) {
            let mut bytes = [0; 4096];
            let n = self.output.read(&mut bytes).unwrap();
            assert!(n > 0, "it ended before {what}: {}", self.text);
            self.text += &String::from_utf8_lossy(&bytes[..n]);
        }
    }

    /// Types a line at the next prompt, as a person does: what comes before the prompt is there may be lost.
    #[track_caller]
    fn say(&mut self, line: &str) {
        self.prompts += 1;
        let prompts = self.prompts;
        self.read_until(&format!("prompt {prompts}"), |t| t.matches("\u{1b}[K> ").count() >= prompts);
        writeln!(self.input, "{line}").unwrap();
    }

    /// Everything that was written, once it has ended.
    fn end(mut self) -> String {
        // With some versions of `script` the terminal's end is an error.
        let _ = self.output.read_to_string(&mut self.text);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status} {}", self.text);
        self.text
    }
}

#[test]
fn a_conversation_on_a_terminal() {
    let home = Home::new();
    let Some(mut conversation) = Conversation::start(&home, "-n 6") else {
        return skipped("no terminal: there is no `script` here");
    };
    for line in ["/help", "hello", "/reset", "/nonsense", "/exit"] {
        conversation.say(line);
    }
    let text = conversation.end();
    for part in
        ["Type a message", "Ctrl-C stops an answer", "tok/s", "is forgotten", "unknown command /nonsense"]
    {
        assert!(text.contains(part), "'{text}' does not say '{part}'");
    }
    let history = std::fs::read_to_string(home.path("cache/history")).unwrap();
    assert!(history.contains("hello") && history.contains("/reset"), "{history}");
}

/// The answer would fill a context of many thousand tokens; it is stopped long before, and the conversation goes on.
#[test]
fn ctrl_c_stops_an_answer() {
    let home = Home::new();
    let Some(mut conversation) = Conversation::start(&home, "-n 60000 --context 65536") else {
        return skipped("no terminal: there is no `script` here");
    };
    conversation.say("hello");
    let before = conversation.text.len();
    conversation.read_until("the answer was under way", |t| t.len() > before + 4000);
    assert!(!conversation.text[before..].contains("tok/s"), "the answer ended by itself");
    conversation.input.write_all(b"\x03").unwrap();
    conversation.say("/exit");
    let text = conversation.end();
    assert!(text.contains("tok/s") && !text.contains("text 60000 tokens"), "it was not stopped");
}
