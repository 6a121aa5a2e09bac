//! A fixed team of threads that runs one job at a time, cut into chunks.
//!
//! The chunks are numbered by the caller, so what is computed does not depend on the number of threads: only
//! who computes it does. Threads spin for a short while between jobs, because the next kernel of a step comes
//! within microseconds, and then sleep.
//!
//! A job is open or closed. A thread that wakes late finds it closed and goes back to waiting, so nobody ever
//! waits for a sleeper to wake up just to learn that there is nothing left to do.

use std::{
    cell::UnsafeCell,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long an idle thread spins before it sleeps: longer than the gap between two kernels of a step,
/// shorter than what a person or a battery would notice.
const SPIN: Duration = Duration::from_micros(100);

/// Set in `gate` when no thread may enter the job. The other bits count the threads inside.
const CLOSED: u32 = 1 << 31;

type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);

struct Shared {
    /// Changes with every job, so that a thread takes part in a job once.
    epoch: AtomicU64,
    gate: AtomicU32,
    /// The job; written only while the gate is closed and nobody is inside.
    job: UnsafeCell<Option<Job<'static>>>,
    chunks: AtomicUsize,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is the only field that is not `Sync`. It is written by the one caller that holds `Team::turn`,
// while the gate is closed with nobody inside, and read only by threads that entered through the open gate:
// the gate's release and acquire order the two.
unsafe impl Sync for Shared {}
// SAFETY: as above; a job is `Sync`, so it may be used from other threads.
unsafe impl Send for Shared {}

/// A fixed team of threads. The calling thread is one of them.
pub struct Team {
    shared: Arc<Shared>,
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of `threads`, the caller included: `threads - 1` are started.
    pub fn new(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            gate: AtomicU32::new(CLOSED),
            job: UnsafeCell::new(None),
            chunks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut team = Team { shared, turn: Mutex::new(()), workers: Vec::new() };
        for i in 1..threads {
            let shared = team.shared.clone();
            let thread = std::thread::Builder::new().name(format!("portolan-cpu-{i}"));
            // On failure `team` drops, which stops and joins the threads that did start.
            team.workers.push(thread.spawn(move || work(&shared))?);
        }
        Ok(team)
    }

    /// Threads of the team, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)`, ..., `f(chunks - 1)`, each once, on the threads of the team, and returns when all are done.
    ///
    /// # Panics
    /// When `f` panics, after every thread has left the job.
    pub fn run(&self, chunks: usize, f: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || chunks <= 1 {
            (0..chunks).for_each(f);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let job: Job<'_> = &f;
        // SAFETY: only the lifetime changes. The gate is closed again, with nobody inside, before `f` is dropped.
        let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: the gate is closed with nobody inside, and `turn` makes this the only writer.
        unsafe { *shared.job.get() = Some(job) }
        shared.chunks.store(chunks, Relaxed);
        shared.next.store(0, Relaxed);
        shared.epoch.fetch_add(1, Relaxed);
        // Sequentially consistent with a sleeper's own check, so that one of the two sees the other.
        shared.gate.store(0, SeqCst);
        if shared.sleepers.load(SeqCst) > 0 {
            let _guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| take_chunks(shared, job)));
        if mine.is_err() {
            // The others stop at their next chunk.
            shared.next.store(usize::MAX / 2, Relaxed);
        }
        shared.gate.fetch_or(CLOSED, AcqRel);
        let mut turns = 0u32;
        while shared.gate.load(Acquire) != CLOSED {
            relax(&mut turns);
        }
        // SAFETY: the gate is closed with nobody inside.
        unsafe { *shared.job.get() = None }
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Relaxed), "a kernel panicked on a thread of the CPU team");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        {
            let _guard = self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team({} threads)", self.threads())
    }
}

fn take_chunks(shared: &Shared, job: Job<'_>) {
    let chunks = shared.chunks.load(Relaxed);
    loop {
        let chunk = shared.next.fetch_add(1, Relaxed);
        if chunk >= chunks {
            return;
        }
        job(chunk);
    }
}

/// Spins, and gives the processor away every so often, since on a busy machine the thread that is waited for
/// may need this very core.
fn relax(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(512) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

fn work(shared: &Shared) {
    let mut seen = 0;
    loop {
        if !wait_for_job(shared, seen) {
            return;
        }
        // Enter only through an open gate.
        let gate = shared.gate.load(Acquire);
        if gate & CLOSED != 0 || shared.gate.compare_exchange(gate, gate + 1, AcqRel, Relaxed).is_err() {
            continue;
        }
        seen = shared.epoch.load(Relaxed);
        // SAFETY: inside the open gate the job is set and stays valid until this thread leaves.
        if let Some(job) = unsafe { *shared.job.get() }
            && catch_unwind(AssertUnwindSafe(|| take_chunks(shared, job))).is_err()
        {
            shared.panicked.store(true, Relaxed);
            shared.next.store(usize::MAX / 2, Relaxed);
        }
        shared.gate.fetch_sub(1, AcqRel);
    }
}

/// Returns true when there is an open job that this thread has not seen, false when the team ends.
fn wait_for_job(shared: &Shared, seen: u64) -> bool {
    let ready = || shared.gate.load(SeqCst) & CLOSED == 0 && shared.epoch.load(Relaxed) != seen;
    let start = Instant::now();
    let mut turns = 0;
    loop {
        if shared.stop.load(Relaxed) {
            return false;
        }
        if ready() {
            return true;
        }
        relax(&mut turns);
        if turns.is_multiple_of(64) && start.elapsed() > SPIN {
            break;
        }
    }
    let mut guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
    shared.sleepers.fetch_add(1, SeqCst);
    while !shared.stop.load(SeqCst) && !ready() {
        guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
    shared.sleepers.fetch_sub(1, SeqCst);
    !shared.stop.load(SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_once() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads).unwrap();
            for chunks in [0, 1, 2, 7, 64, 1000] {
                let counts: Vec<_> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                team.run(chunks, |i| {
                    counts[i].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{threads} threads, {chunks} chunks");
            }
        }
    }

    #[test]
    fn many_short_jobs_with_sleeps_between() {
        let team = Team::new(4).unwrap();
        let total = AtomicUsize::new(0);
        for i in 0..3000 {
            team.run(5, |_| {
                total.fetch_add(1, Relaxed);
            });
            if i % 500 == 0 {
                std::thread::sleep(SPIN * 3);
            }
        }
        assert_eq!(total.load(Relaxed), 15000);
    }

    #[test]
    fn several_callers_take_turns() {
        let team = Team::new(3).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        team.run(7, |_| {
                            total.fetch_add(1, Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Relaxed), 4 * 200 * 7);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(4).unwrap();
        for bad in [0, 50, 99] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(100, |i| assert!(i != bad, "chunk {i}"));
            }));
            assert!(result.is_err());
            let total = AtomicUsize::new(0);
            team.run(100, |_| {
                total.fetch_add(1, Relaxed);
            });
            assert_eq!(total.load(Relaxed), 100);
        }
    }
}
