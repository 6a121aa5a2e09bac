//! `portolan trace` and `portolan compare-traces` as a user runs them: above all, how they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use portolan_testkit::tiny;
use serde_json::Value;

/// `portolan WORDS...` in a folder.
fn run(folder: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(words.split_whitespace()).current_dir(folder);
    command.env("PORTOLAN_MODELS_DIR", folder.join("cache")).env("PORTOLAN_THREADS", "1");
    command.stdin(Stdio::null()).output().unwrap()
}

/// It ends with `code`, and says all of `parts` on stdout (0, 3, 4, 5) or stderr (1, 2).
#[track_caller]
fn check(folder: &Path, words: &str, code: i32, parts: &[&str]) -> String {
    let output = run(folder, words);
    let (text, errors) = (output.stdout, String::from_utf8(output.stderr).unwrap());
    let text = String::from_utf8(text).unwrap();
    assert_eq!(output.status.code(), Some(code), "{words}: {errors}{text}");
    let (said, silent) = if matches!(code, 1 | 2) { (&errors, &text) } else { (&text, &errors) };
    assert_eq!(silent, "", "{words}");
    for part in parts {
        assert!(said.contains(part), "{words}: '{said}' does not say '{part}'");
    }
    text
}

#[test]
fn traces_are_written_and_compared() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    for name in ["tiny", "other"] {
        std::fs::create_dir(folder.join(name)).unwrap();
        tiny::copy_with_text("llama", &folder.join(name));
    }
    // Another last norm: other logits.
    let file = tiny::edited_tensors(&folder.join("other"), |tensor| {
        if tensor.name == "model.norm.weight" {
            tensor.bytes.rotate_left(2);
        }
        true
    });
    file.write(folder.join("other/model.safetensors"));
    std::fs::write(folder.join("text.txt"), "The quick brown fox jumps over the lazy dog. ".repeat(8))
        .unwrap();
    let few = "--text text.txt --context-before 16 --positions 40";

    assert_eq!(check(folder, &format!("trace -m tiny {few} --exact -o a.trace"), 0, &[]), "");
    check(folder, &format!("trace -m tiny {few} --exact --full --chunk 5 -o b.trace"), 0, &[]);
    check(folder, &format!("trace -m tiny {few} --exact --width 8 -o wide.trace"), 0, &[]);
    check(folder, &format!("trace -m other {few} --exact -o other.trace"), 0, &[]);

    // The same, but on too few positions.
    let parts = [
        "INCONCLUSIVE",
        "positions       40",
        "decided at",
        "perplexity",
        "mean kl",
        "chunk           512 | 5",
    ];
    check(folder, "compare-traces a.trace b.trace", 4, &parts);
    check(folder, "compare-traces a.trace other.trace --other-checkpoint", 3, &["FAIL"]);
    check(
        folder,
        "compare-traces a.trace other.trace",
        5,
        &["MISMATCH", "checkpoint: tiny", "--other-checkpoint"],
    );
    check(folder, "compare-traces a.trace wide.trace", 5, &["width: 1 in the reference, 8 in the other"]);
    check(folder, "compare-traces a.trace wide.trace --other-width", 4, &["INCONCLUSIVE"]);

    let json = |words: &str, code| -> Value {
        serde_json::from_str(&check(folder, &format!("compare-traces {words} --json"), code, &[])).unwrap()
    };
    let found = json("a.trace b.trace", 4);
    assert_eq!((&found["verdict"], &found["disagreements"]), (&"inconclusive".into(), &0.into()));
    assert_eq!(found["kl"]["mean"], 0.0);
    assert_eq!(json("a.trace other.trace --other-checkpoint", 3)["verdict"], "fail");
    let found = json("a.trace other.trace", 5);
    assert_eq!(
        (&found["verdict"], &found["mismatches"][0]["what"]),
        (&"mismatch".into(), &"checkpoint".into())
    );

    // Ids in place of a text.
    let ids = "trace -m tiny --ids 5,6,7,8,9,10,11,12 --context-before 2 --exact -o ids.trace";
    check(folder, ids, 0, &[]);
    let found = check(folder, "compare-traces ids.trace ids.trace --json", 4, &[]);
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap()["positions"], 5);

    for (words, code, parts) in [
        (
            "trace -m tiny --text text.txt -o c.trace",
            1,
            &["context before is 512 where the context is 512"][..],
        ),
        ("trace -m tiny --ids 5,6 --context-before 2 -o c.trace", 1, &["4 tokens are needed, and it has 2"]),
        ("trace -m tiny --ids 5,6,600 --context-before 0 -o c.trace", 1, &["token id 600"]),
        ("trace -m tiny --ids 5,6 --context-before 0 --width 0 -o c.trace", 1, &["width is 0"]),
        ("trace -m tiny --ids 5,6 --context-before 0 -o tiny/model.safetensors", 1, &["the model itself"]),
        (
            "trace -m tiny --ids 5,6 --context-before 0 -o none/c.trace",
            1,
            &["none/c.trace", "cannot be written"],
        ),
        ("trace -m tiny --text none.txt -o c.trace", 1, &["none.txt"]),
        ("trace -m tiny -o c.trace", 2, &["--text"]),
        ("trace -m tiny --text text.txt --ids 5,6 -o c.trace", 2, &["cannot be used with"]),
        ("compare-traces a.trace none.trace", 1, &["none.trace", "cannot be read"]),
        ("compare-traces a.trace text.txt", 1, &["text.txt", "not a whole trace"]),
        ("compare-traces a.trace b.trace --error=-1", 2, &["not negative"]),
        ("compare-traces a.trace", 2, &["OTHER"]),
    ] {
        check(folder, words, code, parts);
    }
    assert!(!folder.join("c.trace").exists());
}
