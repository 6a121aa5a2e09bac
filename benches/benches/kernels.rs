//! Every op and variant of the chart, with bytes and operations a second, on the CPU also as shares of what it was measured
//! to do at most, before the first of them.
#![allow(clippy::print_stdout)]

use std::{
    cell::{Cell, OnceCell},
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portolan_benches::{Share, benches, devices, rows};
use portolan_kernels::cpu::ceiling;

fn kernels(criterion: &mut Criterion) {
    let benches = benches();
    let devices = devices().unwrap_or_else(|e| panic!("no device: {e}"));
    for device in &devices {
        // As a test the rows only have to run.
        let ceiling =
            device.team().filter(|_| std::env::args().any(|arg| arg == "--bench")).map(|team| ceiling(team));
        if let Some(c) = ceiling {
            println!(
                "{}: reads {:.1} GB/s, f32 {:.1} Gop/s at most",
                device.id(),
                c.read / 1e9,
                c.f32_ops / 1e9
            );
        }
        for row in rows(device, &benches) {
            let mut group = criterion.benchmark_group("kernels");
            let (bytes, elements) = (row.cost().bytes, row.cost().ops);
            group.throughput(Throughput::ElementsAndBytes { elements, bytes });
            // Placed at the first call, so that a row which the filter leaves out costs nothing.
            let mut ready = OnceCell::new();
            let best = Cell::new(f64::INFINITY);
            group.bench_function(&row.name, |bencher| {
                ready.get_or_init(|| row.ready().unwrap_or_else(|e| panic!("{}: {e}", row.name)));
                if let Some(ready) = ready.get_mut() {
                    // A GPU's runs are enqueued, many at once, and waited for together.
                    bencher.iter_custom(|runs| {
                        let fail = |e| panic!("{}: {e}", row.name);
                        let times = runs.div_ceil(ready.runs() as u64);
                        ready.wait().unwrap_or_else(fail);
                        let started = Instant::now();
                        (0..times).for_each(|_| ready.run().unwrap_or_else(fail));
                        ready.wait().unwrap_or_else(fail);
                        let each = started.elapsed().as_secs_f64() / (times * ready.runs() as u64) as f64;
                        best.set(best.get().min(each));
                        Duration::from_secs_f64(each * runs as f64)
                    });
                }
            });
            group.finish();
            if let Some(ceiling) = ceiling.filter(|_| best.get().is_finite()) {
                let share = Share::of(row.cost(), best.get(), &ceiling);
                println!("{:50} at best {:.1} % of reading, {:.1} % of f32", "", share.read, share.ops);
            }
        }
    }
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = kernels
}
criterion_main!(all);
