//! How fast weights get from a (cached) file to a device, beside a bare loop of reads and copies.
//!
//! `cargo bench --bench load` loads 16 tensors and prints a line for each arm: `four slots` is what a load does;
//! `pinned per tensor` pins memory for each tensor anew; `pageable` does without pinned memory; `bare` reads the file
//! and copies it with the same slots and readers, and knows nothing of tensors. Without a GPU: `in place`, what a load
//! does on the CPU, and `bare`, plain reads into the same memory. `PORTOLAN_BENCH_LOAD_MIB` sets a tensor's size.
#![allow(clippy::print_stdout)]

use std::{
    collections::VecDeque,
    error::Error,
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use portolan_benches::read_pieces;
use portolan_device::{
    Device, SlotPart, StagingOptions, StagingPool, Stream, Transfer, WeightArena, cpu::CpuOptions, env,
};
use portolan_weights::{Checkpoint, Expr, LoadOptions, LoadPlan, LoadRequest, Loader, plan_load};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TENSORS: usize = 16;
/// Best of so many.
const ROUNDS: usize = 3;
/// Elements a row, of 16 bits.
const K: usize = 4096;
const READERS: [usize; 2] = [1, 8];

/// The first GPU, if one opens.
fn gpu() -> Option<Device> {
    Device::cuda(0).or_else(|_| Device::rocm(0)).ok()
}

fn main() -> Result<()> {
    let gpu = gpu();
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let mib = match env::number("PORTOLAN_BENCH_LOAD_MIB")? {
        Some(mib) => mib.max(1),
        // As a test it only has to run.
        None if !is_bench => 1,
        None if gpu.is_some() => 128,
        None => 16,
    };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("load.safetensors");
    let data = write_checkpoint(&path, mib << 20)?;
    let checkpoint = Checkpoint::open(&path)?;
    let requests = (0..TENSORS).map(|i| {
        let name = format!("t{i}");
        LoadRequest { expr: Expr::source(&name), name, repack: None }
    });
    let plan = plan_load(&checkpoint, requests.collect())?;
    let device = match gpu {
        Some(device) => device,
        None => Device::cpu(&CpuOptions::default())?,
    };
    let on_gpu = device.team().is_none();
    let bench = Bench { stream: device.stream()?, device, checkpoint, plan, path: &path, data };
    println!("{}: {TENSORS} tensors of {mib} MiB, best of {ROUNDS}", bench.device.caps().name);
    println!(
        "{:<18} {:>7} {:>9} {:>10} {:>10} {:>10} {:>8}",
        "arm", "readers", "ms", "GB/s", "read GB/s", "copy GB/s", "of bare"
    );
    for readers in READERS {
        bench.bare(readers, on_gpu)?;
        let bare = bench.best(|| bench.bare(readers, on_gpu))?;
        bench.print("bare", readers, &bare, &bare);
        let arms: &[Arm] =
            if on_gpu { &[Arm::FourSlots, Arm::PerTensor, Arm::Pageable] } else { &[Arm::InPlace] };
        for &arm in arms {
            let time = bench.best(|| bench.load(arm, readers))?;
            bench.print(arm.name(), readers, &time, &bare);
        }
    }
    Ok(())
}

/// Writes the checkpoint and says where its data begin.
fn write_checkpoint(path: &Path, bytes: usize) -> Result<u64> {
    let entry = |i: usize| {
        let (begin, end, rows) = (i * bytes, (i + 1) * bytes, bytes / (2 * K));
        format!(r#""t{i}":{{"dtype":"BF16","shape":[{rows},{K}],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = format!("{{{}}}", (0..TENSORS).map(entry).collect::<Vec<_>>().join(","));
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let block: Vec<u8> = (0..1usize << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for _ in 0..TENSORS * bytes / block.len() {
        file.write_all(&block)?;
    }
    Ok(8 + header.len() as u64)
}

#[derive(Clone, Copy)]
enum Arm {
    InPlace,
    FourSlots,
    PerTensor,
    Pageable,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::InPlace => "in place",
            Arm::FourSlots => "four slots",
            Arm::PerTensor => "pinned per tensor",
            Arm::Pageable => "pageable",
        }
    }
}

/// What one load took: in all, and GB/s of its legs where they were measured.
#[derive(Clone, Copy)]
struct Took {
    wall: Duration,
    read: Option<f64>,
    copy: Option<f64>,
}

struct Bench<'a> {
    device: Device,
    stream: Stream,
    checkpoint: Checkpoint,
    plan: LoadPlan,
    path: &'a Path,
    data: u64,
}

impl Bench<'_> {
    fn best(&self, mut run: impl FnMut() -> Result<Took>) -> Result<Took> {
        let mut best = run()?;
        for _ in 1..ROUNDS {
            let next = run()?;
            best = if next.wall < best.wall { next } else { best };
        }
        Ok(best)
    }

    fn print(&self, arm: &str, readers: usize, took: &Took, bare: &Took) {
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
        let whole = self.plan.device_bytes as f64 / took.wall.as_secs_f64() / 1e9;
        let ratio = bare.wall.as_secs_f64() / took.wall.as_secs_f64();
        println!(
            "{arm:<18} {readers:>7} {:>9.1} {whole:>10.2} {:>10} {:>10} {ratio:>8.2}",
            took.wall.as_secs_f64() * 1e3,
            rate(took.read),
            rate(took.copy)
        );
    }

    /// A load by the library.
    fn load(&self, arm: Arm, readers: usize) -> Result<Took> {
        let mut staging = StagingOptions::default();
        match arm {
            Arm::Pageable => staging.pinned = false,
            Arm::PerTensor => {
                let largest = self.plan.tensors.iter().map(|t| t.device_bytes).max().unwrap_or(1);
                staging = StagingOptions { slot_bytes: largest as usize, slots: 1, pinned: true };
            }
            Arm::InPlace | Arm::FourSlots => {}
        }
        let options = LoadOptions { readers, staging: Some(staging), ..LoadOptions::default() };
        let mut loader = Loader::new(&self.checkpoint, &self.plan, &self.device, &options)?;
        let start = Instant::now();
        if let Arm::PerTensor = arm {
            for index in 0..self.plan.tensors.len() {
                loader.load_one(index, &self.stream)?;
                self.device.staging(&staging)?.release()?;
            }
        } else {
            loader.load_all(&self.stream, &mut |_, _| {})?;
        }
        let wall = start.elapsed();
        let stats = loader.stats();
        Ok(Took { wall, read: stats.read_gb_per_s(), copy: stats.copy_gb_per_s() })
    }

    /// The same bytes with nothing but reads and, on a GPU, copies.
    fn bare(&self, readers: usize, on_gpu: bool) -> Result<Took> {
        let file = File::open(self.path)?;
        let sizes: Vec<(&str, usize)> =
            self.plan.tensors.iter().map(|t| ("", t.device_bytes as usize)).collect();
        let mut arena = WeightArena::reserve(&self.device, &sizes, WeightArena::CHUNK_BYTES)?;
        if !on_gpu {
            let start = Instant::now();
            self.bare_reads(&file, &mut arena, readers)?;
            return Ok(Took { wall: start.elapsed(), read: None, copy: None });
        }
        let mut pool = self.device.staging(&StagingOptions::default().for_need(self.plan.device_bytes))?;
        pool.take_counters();
        let start = Instant::now();
        self.bare_copies(&file, &mut arena, &mut pool, readers)?;
        let (wall, counters) = (start.elapsed(), pool.take_counters());
        let copy = counters.bytes as f64 / counters.copying.as_secs_f64() / 1e9;
        Ok(Took { wall, read: None, copy: Some(copy) })
    }

    fn bare_reads(&self, file: &File, arena: &mut WeightArena, readers: usize) -> Result<()> {
        let mut at = self.data;
        let mut work = Vec::new();
        for range in arena.host_mut().unwrap_or_default() {
            for piece in range.chunks_mut(4 << 20) {
                let len = piece.len() as u64;
                work.push((file, at, piece));
                at += len;
            }
        }
        Ok(read_pieces(work, readers)?)
    }

    /// Two slots are read at a time, so that no reader waits for the slowest.
    fn bare_copies(
        &self,
        file: &File,
        arena: &mut WeightArena,
        pool: &mut StagingPool,
        readers: usize,
    ) -> Result<()> {
        let (jobs, queue) = mpsc::channel::<(usize, u64, SlotPart)>();
        let queue = Mutex::new(queue);
        let (sender, done) = mpsc::channel::<(usize, std::io::Result<()>)>();
        let mut left: VecDeque<(usize, usize)> = (0..self.plan.tensors.len()).map(|i| (i, 0)).collect();
        std::thread::scope(|scope| {
            let queue = &queue;
            for _ in 0..readers {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some((slot, at, mut part)) = queue.lock().ok().and_then(|q| q.recv().ok()) {
                        let result = file.read_exact_at(&mut part, at);
                        drop(part);
                        let _ = sender.send((slot, result));
                    }
                });
            }
            drop(sender);
            // Moved here, so that an error closes the queue and the readers end.
            let jobs = jobs;
            let mut open = VecDeque::new();
            let (mut at, mut number) = (self.data, 0);
            while !left.is_empty() || !open.is_empty() {
                let slot = if open.len() < 2 && !left.is_empty() { pool.acquire()? } else { None };
                if let Some(mut slot) = slot {
                    let (mut pieces, mut transfers) = (0, Vec::new());
                    while let Some((item, offset)) = left.pop_front() {
                        let size = self.plan.tensors[item].device_bytes as usize;
                        let (src, len) = (slot.len() - slot.room(), slot.room().min(size - offset));
                        if len == 0 {
                            left.push_front((item, offset));
                            break;
                        }
                        transfers.push(Transfer { src, item, offset, len });
                        if offset + len < size {
                            left.push_front((item, offset + len));
                        }
                        for begin in (0..len).step_by(4 << 20) {
                            let Some(part) = slot.carve((len - begin).min(4 << 20)) else { break };
                            let bytes = part.len() as u64;
                            jobs.send((number, at, part))?;
                            (at, pieces) = (at + bytes, pieces + 1);
                        }
                    }
                    open.push_back((number, slot, transfers, pieces));
                    number += 1;
                    continue;
                }
                while open.front().is_some_and(|oldest| oldest.3 > 0) {
                    let (slot, result) = done.recv()?;
                    result?;
                    if let Some(of) = open.iter_mut().find(|o| o.0 == slot) {
                        of.3 -= 1;
                    }
                }
                if let Some((_, slot, transfers, _)) = open.pop_front() {
                    pool.submit(slot, &self.stream, arena, &transfers)?;
                }
            }
            pool.drain()?;
            Ok(())
        })
    }
}
