//! How fast a checkpoint becomes weights in the CPU's memory, beside plain reads of the same files.
//!
//! `cargo bench --bench load_checkpoint -- /absolute/PATH` runs the arms in turns, with the files in the page cache, and prints
//! for each arm the median of its rounds, and of the load's ratio to it:
//! * `load`: the weights' leg of a load: files open and memory taken, to weights in their kernels' layout;
//! * `read, all threads`: as many threads as a load has, into fresh memory, and no more;
//! * `read, one thread`: `std::fs::read`;
//! * `read over and over`: one thread into one buffer of 1 MiB, which is what `cat` does.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use portolan_benches::read_pieces;

use portolan::{
    Core, LoadOptions, Plan,
    device::{Device, WeightArena, cpu::CpuOptions},
    weights::Checkpoint,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 21;
const PIECE: usize = 4 << 20;

fn main() -> Result<()> {
    // What is no file may be meant for the other benchmarks.
    let Some(path) = std::env::args().skip(1).map(PathBuf::from).find(|path| path.exists()) else {
        println!("no checkpoint was named: cargo bench --bench load_checkpoint -- /absolute/PATH");
        return Ok(());
    };
    let bench = Bench::new(&path)?;
    let arms: [Arm; 4] = [
        ("load", Bench::load),
        ("read, all threads", Bench::read_all_threads),
        ("read, one thread", Bench::read_one_thread),
        ("read over and over", Bench::read_over),
    ];
    // The first round warms the page cache.
    bench.round(&arms)?;
    let rounds: Vec<Vec<f64>> = (0..ROUNDS).map(|_| bench.round(&arms)).collect::<Result<_>>()?;
    let mib = bench.bytes as f64 / f64::from(1 << 20);
    println!("{}: {mib:.1} MiB, {} threads, {ROUNDS} rounds in turns", path.display(), bench.threads);
    println!(
        "{:<20} {:>9} {:>9} {:>9} {:>8} {:>10}",
        "arm", "median ms", "least", "most", "GB/s", "load / arm"
    );
    for (index, (name, _)) in arms.iter().enumerate() {
        let (least, median, most) = spread(rounds.iter().map(|round| round[index]));
        let (_, ratio, _) = spread(rounds.iter().map(|round| round[0] / round[index]));
        let rate = bench.bytes as f64 / median / 1e6;
        println!("{name:<20} {median:>9.1} {least:>9.1} {most:>9.1} {rate:>8.2} {ratio:>10.2}");
    }
    let stats = Core::load(&bench.plan, &mut |_, _| ())?.transfers();
    let each = |time: Duration| time.as_secs_f64() * 1e3 / bench.threads as f64;
    println!(
        "a thread of one more load: {:.1} ms in reads, {:.1} ms in putting bytes into place",
        each(stats.read_time),
        each(stats.convert_time)
    );
    Ok(())
}

/// The least, the median and the most of an odd number of values.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

type Arm = (&'static str, fn(&Bench) -> Result<Duration>);

struct Bench {
    plan: Plan,
    device: Device,
    threads: usize,
    files: Vec<PathBuf>,
    bytes: u64,
}

impl Bench {
    fn new(path: &Path) -> Result<Self> {
        let device = Device::cpu(&CpuOptions::default())?;
        let mut options = LoadOptions::default();
        options.context = Some(512);
        let files = Checkpoint::open(path)?.files;
        let sizes = files.iter().map(|file| Ok(file.metadata()?.len()));
        let bytes = sizes.sum::<Result<u64>>()?;
        let threads = portolan::weights::LoadOptions::default().readers;
        Ok(Bench { plan: Plan::new(path, &device, &options)?, device, threads, files, bytes })
    }

    /// Every arm once; milliseconds.
    fn round(&self, arms: &[Arm]) -> Result<Vec<f64>> {
        arms.iter().map(|(_, arm)| Ok(arm(self)?.as_secs_f64() * 1e3)).collect()
    }

    fn load(&self) -> Result<Duration> {
        Ok(Core::load(&self.plan, &mut |_, _| ())?.transfers().wall)
    }

    fn read_all_threads(&self) -> Result<Duration> {
        let start = Instant::now();
        let sizes = [("", usize::try_from(self.bytes)?)];
        let mut arena = WeightArena::reserve(&self.device, &sizes, WeightArena::CHUNK_BYTES)?;
        let mut rest: &mut [u8] =
            arena.host_mut().and_then(|ranges| ranges.into_iter().next()).unwrap_or_default();
        let files = self.files.iter().map(File::open).collect::<std::io::Result<Vec<_>>>()?;
        let mut work = Vec::new();
        for file in &files {
            let (this, after) = rest.split_at_mut(usize::try_from(file.metadata()?.len())?);
            work.extend(
                this.chunks_mut(PIECE).enumerate().map(|(i, piece)| (file, (i * PIECE) as u64, piece)),
            );
            rest = after;
        }
        read_pieces(work, self.threads)?;
        Ok(start.elapsed())
    }

    fn read_one_thread(&self) -> Result<Duration> {
        let start = Instant::now();
        let read: Vec<Vec<u8>> = self.files.iter().map(std::fs::read).collect::<std::io::Result<_>>()?;
        let took = start.elapsed();
        std::hint::black_box(&read);
        Ok(took)
    }

    fn read_over(&self) -> Result<Duration> {
        let mut buffer = vec![0; 1 << 20];
        let start = Instant::now();
        for file in &self.files {
            let mut file = File::open(file)?;
            while file.read(&mut buffer)? > 0 {}
        }
        Ok(start.elapsed())
    }
}
