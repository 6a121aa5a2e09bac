//! Loading to an AMD GPU as a user sees it, on hip-emu: a ring of slots that goes round, and memory that one pool lacks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use portolan_testkit::{fixture::Safetensors, skipped, tiny};
use serde_json::Value;

const HIDDEN: usize = 512;
const MLP: usize = 2048;
const LAYERS: usize = 3;
const VOCAB: usize = 512;
const MIB: u64 = 1 << 20;

/// The emulator: what `PORTOLAN_HIP_LIBRARY` names, or what cargo built with the tests of the whole tree.
fn emulator() -> Option<PathBuf> {
    let named = std::env::var_os("PORTOLAN_HIP_LIBRARY").map(PathBuf::from);
    // Beside the programs if it was built by itself, among the libraries if tests were.
    let programs = Path::new(env!("CARGO_BIN_EXE_portolan"));
    let built = ["deps/libamdhip64_emu.so", "libamdhip64_emu.so"].map(|name| programs.with_file_name(name));
    let built = built.into_iter().find(|path| path.is_file()).unwrap_or_default();
    let found = named.unwrap_or(built);
    let is_emulator = found.file_name().is_some_and(|name| name.to_string_lossy().contains("emu"));
    if !is_emulator || !found.is_file() {
        skipped("no hip-emu: `cargo build -p hip-emu` makes it");
        return None;
    }
    Some(found)
}

/// Numbers of a model, small ones, the same each time.
fn random_bf16(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        // Within 0.06 of 0.
        let value = (state >> 8) as f32 / (1 << 24) as f32 * 0.12 - 0.06;
        ((value.to_bits() >> 16) as u16).to_le_bytes()
    };
    std::iter::repeat_with(next).take(count).flatten().collect()
}

/// A model of 25 MB with a voice.
fn model(folder: &Path) {
    tiny::copy_with_text("llama", folder);
    tiny::edit_config(folder, |config| {
        for (key, value) in [
            ("hidden_size", HIDDEN),
            ("intermediate_size", MLP),
            ("num_hidden_layers", LAYERS),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 2),
            ("head_dim", 64),
        ] {
            config.insert(key.to_owned(), value.into());
        }
    });
    let mut file = Safetensors::new();
    let mut seed = 0;
    let mut add = |name: String, shape: &[usize]| {
        seed += 1;
        let count = shape.iter().product();
        let one = 0x3f80u16.to_le_bytes();
        let bytes = if shape.len() == 1 { one.repeat(count) } else { random_bf16(count, seed) };
        file = std::mem::take(&mut file).tensor(&name, "BF16", shape, &bytes);
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN]);
    add("lm_head.weight".into(), &[VOCAB, HIDDEN]);
    add("model.norm.weight".into(), &[HIDDEN]);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", &[512, HIDDEN][..]),
            ("self_attn.k_proj", &[128, HIDDEN]),
            ("self_attn.v_proj", &[128, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, 512]),
            ("mlp.gate_proj", &[MLP, HIDDEN]),
            ("mlp.up_proj", &[MLP, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, MLP]),
            ("input_layernorm", &[HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), shape);
        }
    }
    file.write(folder.join("model.safetensors"));
}

struct Home {
    folder: tempfile::TempDir,
    emulator: PathBuf,
}

/// What a run gave.
#[derive(Debug)]
struct Ran {
    status: Option<i32>,
    /// Ids and their log probabilities.
    answer: Value,
    stderr: String,
    /// What the emulator objected to.
    report: String,
}

impl Home {
    fn new() -> Option<Self> {
        let home = Home { folder: tempfile::tempdir().unwrap(), emulator: emulator()? };
        model(home.folder.path());
        Some(home)
    }

    fn run(&self, device: &str, args: &[&str], settings: &[(&str, &str)]) -> Ran {
        let report = self.folder.path().join("report");
        let _ = fs::remove_file(&report);
        let binary = Path::new(env!("CARGO_BIN_EXE_portolan"));
        // Compiled kernels are found again by their whole text.
        let kernels = binary.parent().and_then(Path::parent).unwrap().join("hip-emu-kernels");
        let mut command = Command::new(binary);
        command.args(["generate", "-p", "hello there", "--no-chat-template", "-n", "3", "--ignore-eos"]);
        command.args(["-v", "--json", "--logprobs", "4", "--profile", "-c", "64", "--exact"]);
        command.args(["--device", device, "-m"]).arg(self.folder.path()).args(args);
        command
            .env("PORTOLAN_HIP_LIBRARY", &self.emulator)
            .env("PORTOLAN_HIPRTC_LIBRARY", &self.emulator)
            .env("PORTOLAN_CACHE_DIR", kernels)
            .env("HIP_EMU_LEAKS", "1")
            .env("HIP_EMU_REPORT", &report)
            .envs(settings.iter().copied());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let answer = serde_json::from_slice::<Value>(&stdout).unwrap_or_default();
        Ran {
            status: status.code(),
            answer: serde_json::json!([answer["tokens"], answer["logprobs"]]),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            report: fs::read_to_string(&report).unwrap_or_default(),
        }
    }
}

/// The numbers in the line of a profile that begins so.
#[track_caller]
fn numbers(said: &str, line: &str) -> Vec<u64> {
    let rest = said.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("no {line}: {said}"));
    rest.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// A card of its own, that can pin so little that each slot of the ring is used several times, and slow copies.
const NARROW: [(&str, &str); 3] =
    [("HIP_EMU_DEVICE", "gfx942"), ("HIP_EMU_HOST_POOL_BYTES", "7340032"), ("HIP_EMU_DELAY_US", "3000")];

#[test]
fn four_arms_over_a_ring_that_goes_round_give_the_same_bytes() {
    let Some(home) = Home::new() else { return };
    let cpu = home.run("cpu", &[], &[]);
    assert_eq!(cpu.status, Some(0), "{}", cpu.stderr);
    let mut first: Option<Value> = None;
    for load in ["eager", "lazy"] {
        for pinned in ["1", "0"] {
            let mut settings = NARROW.to_vec();
            settings.extend([("PORTOLAN_PINNED_LOAD", pinned), ("HIP_EMU_CHECK", "full")]);
            let ran = home.run("rocm", &["--load", load], &settings);
            let what = format!("{load}, pinned {pinned}");
            assert_eq!((ran.status, ran.report.as_str()), (Some(0), ""), "{what}: {}", ran.stderr);
            assert_eq!(ran.answer[0], cpu.answer[0], "{what}: other tokens than the CPU's");
            // To the last bit of each log probability.
            assert_eq!(&ran.answer, first.get_or_insert(ran.answer.clone()), "{what}");
            let [_, _, _, copies, bytes] =
                numbers(&ran.stderr, if load == "eager" { "load: uploads" } else { "prefill: uploads" })[..]
            else {
                panic!("{what}: {}", ran.stderr)
            };
            assert!(bytes > 20 * MIB, "{what}: {bytes} bytes");
            if pinned == "1" && load == "eager" {
                // Four slots at most, so that each is filled again and again.
                assert!(copies >= 8, "{copies} copies");
            }
        }
    }
}

/// A wait that is left out (error 0 says that it went well): a slot is filled again while its copy is under way.
#[test]
fn a_missing_event_is_seen() {
    let Some(home) = Home::new() else { return };
    for call in ["hipEventSynchronize", "hipEventRecord"] {
        let faults: Vec<_> = (1..=40).map(|nth| format!("{call}:{nth}:0")).collect();
        let faults = faults.join(",");
        let mut settings = NARROW.to_vec();
        settings.extend([("HIP_EMU_FAIL", faults.as_str()), ("HIP_EMU_CHECK", "full")]);
        let ran = home.run("rocm", &[], &settings);
        assert!(ran.report.contains("in-flight"), "{call}: {ran:?}");
    }
}

/// As 80 GiB of weights on a machine whose device pool is 62 GiB, at a thousandth of it.
#[test]
fn an_apu_takes_what_its_own_pool_lacks_from_the_host() {
    let Some(home) = Home::new() else { return };
    let cpu = home.run("cpu", &[], &[]);
    let apu = ("HIP_EMU_DEVICE", "gfx1151");
    let pool = (18 * MIB).to_string();
    let small = ("HIP_EMU_POOL_BYTES", pool.as_str());
    let ran = home.run("rocm", &[], &[apu, small]);
    assert_eq!((ran.status, ran.report.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert_eq!(ran.answer[0], cpu.answer[0]);
    assert!(ran.stderr.contains("host memory that the GPU reaches directly"), "{}", ran.stderr);
    // The device's pool is the wrong place for them, and that is known before a byte is read.
    let ran = home.run("rocm", &[], &[apu, small, ("PORTOLAN_ROCM_FORCE_DEVICE_MEM", "1")]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("Without PORTOLAN_ROCM_FORCE_DEVICE_MEM") && !ran.stderr.contains("load: "),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.report, "");
}
