//! What the benchmarks measure: a row for every op and variant of the chart, with its bytes and operations.
//!
//! The benchmarks themselves are in `benches/`; a bare `cargo bench` runs every row on the devices that are there,
//! `cargo bench -- matmul/avx2` those whose name has that in it.
#![forbid(unsafe_code)]

mod cases;

pub use cases::{Bench, benches};

use std::{fs::File, io, os::unix::fs::FileExt, sync::Mutex};

use portolan_device::{Device, cpu::CpuOptions};
use portolan_kernels::{
    Cost, GpuPrograms, KernelError, Launch, OpKind, StepShape, Variant, activation_dtype, chart,
    conformance::{
        Recording, Target,
        place::{Placer, weight_specs},
        run_variant,
    },
    cpu::Ceiling,
};
use portolan_weights::Layout;

/// The devices that are there.
///
/// # Errors
/// When even the CPU cannot be used.
pub fn devices() -> Result<Vec<Device>, KernelError> {
    let gpus = [Device::cuda(0), Device::rocm(0)].into_iter().flatten();
    Ok(std::iter::once(Device::cpu(&CpuOptions::default())?).chain(gpus).collect())
}

/// One line of the results: a variant at one use.
pub struct Row<'a> {
    /// `cpu/matmul/avx2-int8/affine4-g32-f16 rows=1 2048x2048 rows8`.
    pub name: String,
    device: &'a Device,
    variant: &'static Variant,
    bench: &'a Bench,
    layout: Layout,
}

/// Every variant of a device's slots at every use that it takes.
pub fn rows<'a>(device: &'a Device, benches: &'a [Bench]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for op in OpKind::ALL {
        for variant in chart::slot(op, device.caps().kind()) {
            for bench in benches.iter().filter(|b| b.case.op.kind() == op) {
                rows.extend(row(device, variant, bench));
            }
        }
    }
    rows
}

/// A variant at one use, in the best layout that it takes; none where it takes none.
fn row<'a>(device: &'a Device, variant: &'static Variant, bench: &'a Bench) -> Option<Row<'a>> {
    let case = &bench.case;
    // A plain kernel's speed at many rows says nothing that it does not say at few.
    let most = if variant.name.starts_with("plain") { variant.rows.1.min(16) } else { variant.rows.1 };
    if case.rows() < variant.rows.0 || case.rows() > most {
        return None;
    }
    let is_matmul = matches!(case.op.kind(), OpKind::Matmul | OpKind::GateUp);
    let usual = cases::ROWS.iter().any(|rows| (variant.rows.0..=most).contains(rows));
    if is_matmul && usual && !cases::ROWS.contains(&case.rows()) {
        return None;
    }
    let mut layouts = vec![Layout::Planes];
    if let Some(w) = case.weights.iter().find(|w| w.is_matrix()) {
        layouts = chart::layouts(w.encoding, &w.shape, device.caps());
    }
    let layout = layouts.into_iter().find(|&layout| {
        let weights = weight_specs(case, layout);
        (variant.takes)(&case.spec(&weights, activation_dtype(device.caps().kind())), device.caps()).is_ok()
    })?;
    let packed = match layout {
        Layout::Packed(name) => format!(" {name}"),
        _ => String::new(),
    };
    let name = format!("{}/{}/{}/{}{packed}", device.id(), case.op.kind(), variant.name, case.name);
    Some(Row { name, device, variant, bench, layout })
}

/// Runs that a GPU is given at once, at least.
const RECORDED: usize = 64;

/// A row in memory, ready to run.
pub struct Ready<'a> {
    launches: Vec<Launch>,
    next: usize,
    /// On a GPU all of the launches, which are run together.
    recording: Option<Recording>,
    shape: StepShape,
    device: &'a Device,
    variant: &'static Variant,
    placer: Placer,
    programs: GpuPrograms,
}

impl<'a> Row<'a> {
    /// What one run must move and compute.
    pub fn cost(&self) -> Cost {
        self.bench.case.cost(activation_dtype(self.device.caps().kind()), self.bench.context)
    }

    /// Places the row's case, its weights and cache as often as it takes to fill the last cache twice, so that each
    /// run finds them in memory. On a GPU the runs are recorded.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn ready(&self) -> Result<Ready<'a>, KernelError> {
        let placer = Placer::new(self.device, activation_dtype(self.device.caps().kind()))?;
        let placed = placer.place(&self.bench.filled(), self.layout)?;
        let mut launches = vec![placed.launch];
        if self.bench.reads_memory() {
            let bytes = memory_of(&launches[0]).max(1);
            for _ in 0..2 * last_cache() / bytes {
                let copy = placer.copy(&launches[0])?;
                launches.push(copy);
            }
        }
        let (device, variant, shape) = (self.device, self.variant, self.bench.case.shape);
        let programs = GpuPrograms::new(device);
        let mut ready =
            Ready { launches, next: 0, recording: None, shape, device, variant, placer, programs };
        if device.team().is_none() {
            let launches = std::mem::take(&mut ready.launches);
            let runs = launches.len() * RECORDED.div_ceil(launches.len());
            ready.placer.stream().synchronize()?;
            let on = (device, &ready.programs);
            ready.recording = Some(Recording::new(variant, launches, runs, shape, on)?);
        }
        Ok(ready)
    }
}

fn target<'t>(device: &'t Device, placer: &'t Placer, programs: &'t GpuPrograms) -> Target<'t> {
    Target { device, team: device.team().map(AsRef::as_ref), stream: placer.stream(), programs }
}

/// Bytes of weights and cache: what a copy takes.
fn memory_of(launch: &Launch) -> usize {
    let planes = launch.weights.iter().flat_map(|w| &w.planes);
    let cache = launch.cache.iter().flat_map(|c| [&c.k, &c.v]);
    planes.chain(cache).map(|slice| slice.len()).sum()
}

impl Ready<'_> {
    /// The runs that one [`Ready::run`] is.
    pub fn runs(&self) -> usize {
        self.recording.as_ref().map_or(1, Recording::runs)
    }

    /// Runs the next copy, or what is recorded.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self) -> Result<(), KernelError> {
        if let Some(recording) = &self.recording {
            return recording.run();
        }
        let next = (self.next + 1) % self.launches.len();
        let launch = &mut self.launches[std::mem::replace(&mut self.next, next)];
        run_variant(self.variant, launch, self.shape, &target(self.device, &self.placer, &self.programs))
    }

    /// Waits for what was run.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(&self) -> Result<(), KernelError> {
        match &self.recording {
            Some(recording) => recording.wait(),
            None => Ok(self.placer.stream().synchronize()?),
        }
    }
}

/// A rate as a share of what was measured to be possible; nothing for a device whose ceiling is not known.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Of the bytes a second that can be read from memory, in percent.
    pub read: f64,
    /// Of the f32 operations a second, in percent. Products of bytes can be more than that.
    pub ops: f64,
}

impl Share {
    /// Of one run that took `seconds`.
    pub fn of(cost: Cost, seconds: f64, ceiling: &Ceiling) -> Self {
        Share {
            read: 100.0 * cost.bytes as f64 / seconds / ceiling.read,
            ops: 100.0 * cost.ops as f64 / seconds / ceiling.f32_ops,
        }
    }
}

/// Reads pieces of files, each from its offset on, on so many threads and with nothing else: what a load is held against.
///
/// # Errors
/// The first error of a thread.
pub fn read_pieces(pieces: Vec<(&File, u64, &mut [u8])>, threads: usize) -> io::Result<()> {
    let queue = Mutex::new(pieces.into_iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    std::thread::scope(|scope| {
        let read = || -> io::Result<()> {
            while let Some((file, at, piece)) = next() {
                file.read_exact_at(piece, at)?;
            }
            Ok(())
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        handles.into_iter().try_for_each(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })
}

/// Bytes of the processor's last cache, as Linux tells; 32 MiB where it does not.
pub fn last_cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        parse_size(text.trim())
    };
    (0..8).filter_map(size).max().unwrap_or(32 << 20)
}

/// `32768K`, `32M`.
fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [("32768K", Some(32 << 20)), ("32M", Some(32 << 20)), ("", None), ("K", None)]
        {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    /// Whether a device has the instructions of a variant.
    fn is_for(device: &Device, variant: &Variant) -> bool {
        !variant.name.starts_with("avx512vnni") || device.caps().has_feature("avx512vnni")
    }

    #[test]
    fn shares() {
        let ceiling = Ceiling { read: 20e9, f32_ops: 200e9 };
        let share = Share::of(Cost { bytes: 1_000_000, ops: 4_000_000 }, 1e-4, &ceiling);
        assert!((share.read - 50.0).abs() < 1e-9 && (share.ops - 20.0).abs() < 1e-9);
    }

    #[test]
    fn every_variant_has_a_row() {
        let benches = benches();
        for device in devices().unwrap() {
            let rows = rows(&device, &benches);
            for op in OpKind::ALL {
                for variant in chart::slot(op, device.caps().kind()).iter().filter(|v| is_for(&device, v)) {
                    let start = format!("{}/{op}/{}/", device.id(), variant.name);
                    assert!(rows.iter().any(|r| r.name.starts_with(&start)), "{start}");
                }
            }
            let mut names: Vec<_> = rows.iter().map(|r| &r.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), rows.len(), "names differ");
        }
    }

    #[test]
    fn a_row_runs_over_more_than_twice_the_last_cache() {
        let benches = benches();
        let device = &devices().unwrap()[0];
        let rows = rows(device, &benches);
        let row = rows.iter().find(|r| r.name.contains("/attention/plain")).unwrap();
        let mut ready = row.ready().unwrap();
        let total: usize = ready.launches.iter().map(memory_of).sum();
        assert!(total > 2 * last_cache() && total <= 2 * last_cache() + memory_of(&ready.launches[0]));
        for _ in 0..3 {
            ready.run().unwrap();
        }
    }

    /// On the GPUs that are there; HIP's stand-in is one too.
    #[test]
    fn a_gpu_runs_many_at_once() {
        let benches = benches();
        for device in devices().unwrap().iter().filter(|d| d.team().is_none()) {
            for name in ["/add/", "/matmul/gemv1/affine4-g64"] {
                let rows = rows(device, &benches);
                let mut ready = rows.iter().find(|r| r.name.contains(name)).unwrap().ready().unwrap();
                assert!(ready.runs() >= RECORDED && ready.launches.is_empty(), "{name}");
                ready.run().unwrap();
                ready.wait().unwrap();
            }
        }
    }
}
