//! `portolan generate` and `portolan convert`, ended from outside in the middle of their work: nothing is left behind.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs::{self, File},
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::Duration,
};

use portolan::device::Device;
use portolan_testkit::{skipped, tiny};
use serde_json::{Map, json};

const HIDDEN: usize = 2048;
const MLP: usize = 8192;
const LAYERS: usize = 6;
const VOCAB: usize = 512;

/// A model of 700 MB that takes no room on the disk: all of its numbers are zero, and its file is one hole.
fn large_model(folder: &Path) {
    tiny::copy_with_text("llama", folder);
    tiny::edit_config(folder, |config| {
        for (key, value) in [
            ("hidden_size", HIDDEN),
            ("intermediate_size", MLP),
            ("num_hidden_layers", LAYERS),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 4),
            ("head_dim", 128),
        ] {
            config.insert(key.to_owned(), value.into());
        }
    });
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", vec![2048, HIDDEN]),
            ("self_attn.k_proj", vec![512, HIDDEN]),
            ("self_attn.v_proj", vec![512, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, 2048]),
            ("mlp.gate_proj", vec![MLP, HIDDEN]),
            ("mlp.up_proj", vec![MLP, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MLP]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut header = Map::new();
    let mut offset = 0;
    for (name, shape) in tensors {
        let end = offset + 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let header = json!(header).to_string();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + offset) as u64).unwrap();
}

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Home(tempfile::tempdir().unwrap());
        fs::create_dir(home.path("model")).unwrap();
        large_model(&home.path("model"));
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, device: &str) -> Command {
        let mut command = self.portolan();
        command.args(["generate", "-p", "hello", "-n", "2", "--ignore-eos", "-c", "64", "--device", device]);
        command.arg("-m").arg(self.path("model"));
        command
    }

    /// Everything it may write lies in this folder.
    fn portolan(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
        command.current_dir(self.0.path());
        for (name, folder) in [
            ("PORTOLAN_MODELS_DIR", "models"),
            ("PORTOLAN_CACHE_DIR", "kernels"),
            ("XDG_CACHE_HOME", "cache"),
            ("TMPDIR", ""),
        ] {
            command.env(name, self.path(folder));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn text(&self, device: &str) -> String {
        let Output { status, stdout, stderr } = self.command(device).output().unwrap();
        assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// Every file below this folder, in order.
    fn files(&self) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![self.0.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }
}

/// Bytes that a process has read so far, from files and caches alike; none when it is gone.
fn bytes_read(child: &Child) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", child.id())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

/// Runs until `now`, sends the signal, and says how it ended.
#[track_caller]
fn interrupt(child: &mut Child, signal: &str, now: impl Fn(&Child) -> bool) -> ExitStatus {
    while !now(child) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was to be interrupted");
        thread::sleep(Duration::from_millis(1));
    }
    let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    child.wait().unwrap()
}

/// Whether whoever started the tests has SIGINT ignored, as a shell does for what runs in its background.
fn interrupts_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << 1) != 0)
}

#[test]
fn ended_in_the_middle_of_a_load() {
    let home = Home::new();
    let mut devices = vec!["cpu"];
    match Device::cuda(0) {
        Ok(_) => devices.push("cuda"),
        Err(error) => skipped(&error.to_string()),
    }
    for device in devices {
        if device == "cuda" {
            // With nothing compiled yet it is caught at the first kernel that it keeps.
            let first = home.path("kernels");
            let mut child = home.command(device).spawn().unwrap();
            assert_eq!(interrupt(&mut child, "KILL", |_| first.exists()).signal(), Some(9));
            let whole = |path: &Path| path.extension().is_some_and(|e| e == "bin");
            let temporary =
                |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            let kept: Vec<_> = home.files().into_iter().filter(|path| path.starts_with(&first)).collect();
            assert!(kept.iter().all(|path| whole(path) || temporary(path)), "{kept:?}");
        }
        let expected = home.text(device);
        let files = home.files();
        for (signal, number) in [("KILL", 9), ("INT", 2), ("TERM", 15)] {
            if signal == "INT" && interrupts_are_ignored() {
                skipped("SIGINT is ignored here");
                continue;
            }
            let mut child = home.command(device).spawn().unwrap();
            // A tenth of the weights.
            let ended =
                interrupt(&mut child, signal, |child| bytes_read(child).is_some_and(|n| n > 70_000_000));
            assert_eq!(ended.signal(), Some(number), "{device}");
            assert_eq!(home.files(), files, "{device}, {signal}: something is left behind");
        }
        assert_eq!(home.text(device), expected, "{device}");
        assert_eq!(home.files(), files, "{device}");
    }
}

#[test]
fn ended_in_the_middle_of_a_conversion() {
    let home = Home::new();
    let files = home.files();
    let began = |child: &Child| bytes_read(child).is_some_and(|n| n > 70_000_000);
    let mut command = home.portolan();
    command.arg("convert").args(["model", "made"].map(|name| home.path(name))).args(["--bits", "4"]);
    let mut child = command.spawn().unwrap();
    assert_eq!(interrupt(&mut child, "TERM", began).code(), Some(1));
    let Output { stderr, .. } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("interrupted"), "{stderr}");
    assert_eq!(home.files(), files, "something is left behind");
}
