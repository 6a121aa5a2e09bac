//! What only a GPU has: activations of 16 bits, weights that come through staging, lazily or not, captured steps.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use portolan::{
    CacheType, Core, LoadOptions, Plan,
    device::Device,
    tools::logits::{Logits, logits},
    weights::LoadMode,
};
use portolan_testkit::{Tensors, max_abs_diff, oracle, skipped};

const MODELS: &[&str] = &[
    "tiny/llama",
    "tiny/llama_sharded",
    "tiny/llama_tied",
    "tiny/mistral",
    "tiny/qwen2",
    "tiny/qwen3",
    "tiny/smollm3",
    "mlx/llama-affine-4b-g64",
    "mlx/llama-mxfp4-4b-g32",
    "mlx/qwen3-affine-8b-g64",
];

fn on_each_gpu(check: impl Fn(&Device)) {
    for device in [Device::cuda(0), Device::rocm(0)] {
        match device {
            Ok(device) => check(&device),
            Err(error) => skipped(&error.to_string()),
        }
    }
}

/// `PORTOLAN_TEST_FEW=2` leaves out all but so many, for a device where a kernel takes long.
fn models() -> impl Iterator<Item = (&'static str, PathBuf)> {
    let few = std::env::var("PORTOLAN_TEST_FEW").ok().and_then(|text| text.parse::<usize>().ok());
    let last = few.map_or(0, |few| MODELS.len().saturating_sub(few));
    MODELS[last..].iter().filter_map(|name| Some((*name, oracle(name)?)))
}

fn core(device: &Device, path: &Path, change: impl FnOnce(&mut LoadOptions)) -> Core {
    let mut options = LoadOptions::default();
    options.max_logits = 64;
    change(&mut options);
    let plan = Plan::new(path, device, &options).unwrap();
    Core::load(&plan, &mut |_, _| ()).unwrap()
}

fn run(core: &mut Core, ids: &[u32]) -> Logits {
    logits(core, ids, 24, 16).unwrap()
}

/// Logits of these models reach 12. Rounding to 11 or 8 bits at each op moves them by less than this; a wrong port moves
/// them by units.
#[test]
fn activations_of_16_bits_are_near_the_reference() {
    on_each_gpu(|device| {
        for (name, path) in models() {
            let reference = Tensors::open(path.join("reference.safetensors"));
            let (ids, expected) = (reference.ids("input_ids"), reference.f32("logits"));
            for (activation, cache, allowed) in [
                (CacheType::F16, CacheType::F16, 0.06),
                (CacheType::BF16, CacheType::F16, 0.5),
                (CacheType::BF16, CacheType::BF16, 0.8),
            ] {
                let mut core = core(device, &path, |o| {
                    o.activation = Some(activation);
                    o.cache = Some(cache);
                });
                for chunk in [64, 1, 7] {
                    let found = logits(&mut core, &ids, 0, chunk).unwrap();
                    let error = max_abs_diff(&found.logits, &expected);
                    // MLX has no window in Mistral, and this list has none of its Mistrals.
                    assert!(
                        error <= allowed,
                        "{name}, {activation:?}, cache {cache:?}, chunk {chunk}: {error}"
                    );
                }
            }
        }
    });
}

#[test]
fn eager_and_lazy_give_the_same_bits_and_upload_when_they_should() {
    on_each_gpu(|device| {
        for (name, path) in models() {
            let ids = Tensors::open(path.join("reference.safetensors")).ids("input_ids");
            let mut eager = core(device, &path, |_| ());
            let before = eager.transfers();
            assert!(
                before.bytes > 0
                    && (before.pinned_tensors > 0) != device.caps().integrated
                    && (before.direct_tensors > 0) == device.caps().integrated,
                "{name}: {before:?}"
            );
            let expected = run(&mut eager, &ids);
            assert_eq!(eager.transfers().since(&before).bytes, 0, "{name}: eager uploads in a step");
            assert_eq!(before.cross_stream_waits, 0);

            let mut lazy = core(device, &path, |o| o.load = LoadMode::Lazy);
            assert_eq!(lazy.transfers().bytes, 0, "{name}: lazy has weights before a step");
            let found = run(&mut lazy, &ids);
            assert_eq!(lazy.transfers().bytes, before.bytes, "{name}: lazy uploads each weight once");
            assert!(found == expected, "{name}: eager and lazy differ");
        }
    });
}

/// A step of decoding is captured the first time and replayed after; both give the bits of the steps before.
#[test]
fn captured_steps_agree_with_those_that_are_not() {
    on_each_gpu(|device| {
        for (name, path) in models() {
            let ids = Tensors::open(path.join("reference.safetensors")).ids("input_ids");
            // One row at a time that wants logits is captured; the same rows without are not.
            let mut core = core(device, &path, |_| ());
            let captured = logits(&mut core, &ids, 0, 1).unwrap();
            let seq = core.create();
            for (i, id) in ids.iter().enumerate() {
                let want = if i + 1 == ids.len() { portolan::Want::Last } else { portolan::Want::None };
                core.step(&[portolan::SeqStep { seq, tokens: &[*id], want }]).unwrap();
            }
            let last = &captured.logits[(ids.len() - 1) * captured.vocab..];
            assert!(core.logits(0) == last, "{name}: a captured step differs");
        }
    });
}
