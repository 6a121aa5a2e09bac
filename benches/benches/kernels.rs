//! Every op and variant of the chart, with bytes and operations a second.

use std::{
    cell::OnceCell,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portolan_benches::{benches, devices, rows};

fn kernels(criterion: &mut Criterion) {
    let benches = benches();
    let devices = devices().unwrap_or_else(|e| panic!("no device: {e}"));
    for device in &devices {
        for row in rows(device, &benches) {
            let mut group = criterion.benchmark_group("kernels");
            let (bytes, elements) = (row.cost().bytes, row.cost().ops);
            group.throughput(Throughput::ElementsAndBytes { elements, bytes });
            // Placed at the first call, so that a row which the filter leaves out costs nothing.
            let mut ready = OnceCell::new();
            group.bench_function(&row.name, |bencher| {
                ready.get_or_init(|| row.ready().unwrap_or_else(|e| panic!("{}: {e}", row.name)));
                if let Some(ready) = ready.get_mut() {
                    // A GPU's runs are enqueued, and waited for together.
                    bencher.iter_custom(|runs| {
                        let fail = |e| panic!("{}: {e}", row.name);
                        ready.wait().unwrap_or_else(fail);
                        let started = Instant::now();
                        (0..runs).for_each(|_| ready.run().unwrap_or_else(fail));
                        ready.wait().unwrap_or_else(fail);
                        started.elapsed()
                    });
                }
            });
            group.finish();
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
