//! A GPU that is lost for real, under an engine. A process of its own: the loss is one for every handle in it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{path::Path, process::Command};

use portolan::{
    Engine, Error, GenerateOptions, LoadOptions, Plan, Prompt,
    device::{Device, DeviceError, MemoryKind, cpu::CpuOptions, fake::crash},
    loader::NoProgress,
};
use portolan_testkit::{oracle, skipped};

fn engine(path: &Path, device: &Device) -> Engine {
    let mut options = LoadOptions::default();
    options.exact = true;
    Engine::from_plan(Plan::new(path, device, &options).unwrap(), &mut NoProgress).unwrap()
}

fn text(engine: &Engine) -> Result<Vec<u32>, Error> {
    let mut options = GenerateOptions::tokens(8);
    options.ignore_eos = true;
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i * 37 % 509).collect();
    let mut generation = engine.generate(Prompt::Tokens(&prompt), &options)?;
    generation.try_for_each(|piece| piece.map(drop))?;
    Ok(generation.tokens().to_vec())
}

/// Set for the process that this test starts of itself when the GPU was lost to this one.
const AFTERWARDS: &str = "CRASH_TEST_AFTERWARDS";

#[test]
fn the_engine_says_so_and_others_go_on() {
    let name = "the_engine_says_so_and_others_go_on";
    check(name, Device::cuda);
}

#[test]
fn the_engine_says_so_of_an_amd_gpu_too() {
    check("the_engine_says_so_of_an_amd_gpu_too", Device::rocm);
}

fn check(name: &str, open: fn(usize) -> Result<Device, DeviceError>) {
    let device = match open(0) {
        Ok(device) => device,
        Err(error) => return skipped(&error.to_string()),
    };
    let Some(path) = oracle("tiny/llama") else { return };
    let cpu = engine(&path, &Device::cpu(&CpuOptions { threads: 1 }).unwrap());
    let gpu = engine(&path, &device);
    let on_cpu = text(&cpu).unwrap();
    assert_eq!(text(&gpu).unwrap().len(), on_cpu.len());
    if std::env::var_os(AFTERWARDS).is_some() {
        return;
    }

    let lost = crash(&device).unwrap_err();
    assert!(matches!(lost, DeviceError::Lost { .. }), "{lost:?}");
    for _ in 0..3 {
        let error = text(&gpu).unwrap_err();
        assert!(error.device_lost().is_some(), "{error:?}");
        assert_eq!(text(&cpu).unwrap(), on_cpu);
    }
    // The runtime takes no more work from this process: that is said in words, and another process is not concerned.
    drop((gpu, device));
    let work = |device: Device| device.alloc(64, MemoryKind::Device).map(drop);
    let again = open(0).and_then(work).unwrap_err();
    assert!(matches!(again, DeviceError::Lost { .. }), "{again:?}");
    assert_eq!(text(&cpu).unwrap(), on_cpu);
    let child =
        Command::new(std::env::current_exe().unwrap()).args([name, "--exact"]).env(AFTERWARDS, "1").output();
    let child = child.unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}
