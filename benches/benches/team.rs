//! What the CPU's team of threads costs by itself: jobs whose chunks do nothing, one right after another, as kernels of a
//! step come. `--by-op` of `portolan bench` counts the kernels of a step; their number times this is the team's share.

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use portolan_device::{Device, cpu::CpuOptions};

/// Chunks of a job: what two threads share of a small matmul, of a larger one, and of an output head.
const CHUNKS: [usize; 3] = [2, 4, 16];

fn team(criterion: &mut Criterion) {
    let device = Device::cpu(&CpuOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let Some(team) = device.team() else { return };
    let mut group = criterion.benchmark_group("team");
    for chunks in CHUNKS {
        group.bench_function(BenchmarkId::new(format!("{} threads", team.threads()), chunks), |bencher| {
            bencher.iter(|| team.run(chunks, |chunk| _ = black_box(chunk)));
        });
    }
    group.finish();
}

criterion_group! {
    name = all;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    targets = team
}
criterion_main!(all);
