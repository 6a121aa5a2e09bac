//! Load, generate, load another model, unload: on each device, and everything is given back.
//!
//! On a stand-in for HIP that counts (`cargo xtask verify-rocm --only ownership`), what is left at the end of this process
//! is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod devices;

use std::path::Path;

use devices::devices;
use portolan::{
    Engine, GenerateOptions, LoadOptions, Plan, Prompt, device::Device, loader::NoProgress, weights::LoadMode,
};
use portolan_testkit::oracle;

fn engine(device: &Device, path: &Path, load: LoadMode) -> Engine {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.context = Some(96);
    options.load = load;
    Engine::from_plan(Plan::new(path, device, &options).unwrap(), &mut NoProgress).unwrap()
}

fn text(engine: &Engine) -> Vec<u32> {
    let mut options = GenerateOptions::tokens(6);
    options.ignore_eos = true;
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i * 37 % 509).collect();
    let mut generation = engine.generate(Prompt::Tokens(&prompt), &options).unwrap();
    generation.try_for_each(|piece| piece.map(drop)).unwrap();
    generation.tokens().to_vec()
}

#[test]
fn hipfire_2b_models_come_and_go() {
    let paths = ["tiny/llama", "mlx/qwen3-affine-8b-g64"].map(oracle);
    let [Some(first), Some(second)] = paths else { return };
    let cpu = devices().remove(0);
    let expected = [&first, &second].map(|path| text(&engine(&cpu, path, LoadMode::Eager)));
    for device in devices() {
        let loaded = engine(&device, &first, LoadMode::Eager);
        assert_eq!(text(&loaded), expected[0]);
        // Both at once, then the second alone.
        let other = engine(&device, &second, LoadMode::Lazy);
        assert_eq!(text(&other), expected[1]);
        assert_eq!(text(&loaded), expected[0]);
        drop(loaded);
        assert_eq!(text(&other), expected[1]);
        drop(other);
        // A generation that nobody reads to its end.
        let again = engine(&device, &first, LoadMode::Lazy);
        let abandoned = again.generate(Prompt::Tokens(&[3, 4, 5]), &GenerateOptions::tokens(50)).unwrap();
        drop(abandoned);
        assert_eq!(text(&again), expected[0]);
    }
}
