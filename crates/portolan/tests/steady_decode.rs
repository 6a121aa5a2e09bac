//! What a step of decoding takes from the heap: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use portolan::{Core, LoadOptions, Plan, SeqStep, Want};
use portolan_device::{Device, cpu::CpuOptions};
use portolan_testkit::oracle;

/// Counts every allocation of every thread, so this file has one test.
#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

fn decode(core: &mut Core, seq: portolan::SeqId, steps: usize) {
    for _ in 0..steps {
        let logits = core.logits(0);
        let next = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        core.step(&[SeqStep { seq, tokens: &[next], want: Want::Last }]).unwrap();
    }
}

#[test]
fn a_steady_step_takes_nothing_from_the_heap() {
    let profiler = dhat::Profiler::builder().testing().build();
    let blocks = || dhat::HeapStats::get().total_blocks;
    for (name, exact) in [
        ("mlx/llama-affine-4b-g64", false),
        ("mlx/llama-affine-4b-g64", true),
        ("mlx/llama-mxfp8-8b-g32", false),
        ("tiny/llama", false),
        ("mlx/qwen3-affine-8b-g64", false),
    ] {
        let Some(path) = oracle(name) else { continue };
        // With more threads, one that was late to a kernel may meet it here for the first time, and take its scratch.
        let device = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
        let mut options = LoadOptions::default();
        (options.exact, options.context) = (exact, Some(1024));
        let plan = Plan::new(&path, &device, &options).unwrap();
        let mut core = Core::load(&plan, &mut |_, _| ()).unwrap();
        let seq = core.create();
        core.step(&[SeqStep { seq, tokens: &[1, 2, 3, 4, 5], want: Want::Last }]).unwrap();
        decode(&mut core, seq, 255);
        let before = blocks();
        decode(&mut core, seq, 50);
        assert_eq!(blocks() - before, 0, "{name}, exact: {exact}");
        // The lists of a sequence's tokens and pages, and the scores of a thread that meets longer texts, double now and then.
        let before = blocks();
        decode(&mut core, seq, 650);
        assert!(blocks() - before <= 8, "{name}, exact: {exact}: {} in 650 steps", blocks() - before);
    }
    // The count counts.
    let before = blocks();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(blocks() - before, 1);
    drop(profiler);
}
