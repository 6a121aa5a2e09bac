//! Runs a grid: blocks one after another, the threads of a block as fibers.
//!
//! A wave runs until all its lanes wait or are done, then the next. Lanes that meet at an exchange go on together. Where
//! some lanes of a wave are elsewhere, those at one place go on without the others once nobody else in the wave can
//! run, as the hardware does on divergent branches.

mod failure;
mod order;
mod wait;

use std::ffi::c_void;

pub(crate) use failure::{Cause, Failure};

use crate::{
    device_abi::{Context, KernelTable},
    fiber::{Stacks, switch},
    settings::Order,
    shadow::{Shadow, Shared},
};

/// Threads that a block may have.
pub(crate) const MOST_THREADS: usize = 1024;
const MOST_LANES: usize = 64;
/// Stacks come by so many.
const STACKS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// At an exchange between lanes.
    Exchange,
    Barrier,
    Done,
}

#[derive(Debug)]
struct Fiber {
    /// Where to go on; null before the first run.
    sp: *mut u8,
    stack: usize,
    thread: [u32; 3],
    wave: usize,
    lane: u32,
    site: *const c_void,
    state: State,
}

#[derive(Debug)]
struct Wave {
    first: usize,
    len: usize,
    live: usize,
    arrived: usize,
    given: [u64; MOST_LANES],
    /// What the lanes of the last exchange gave. It stays until they are all at the next one.
    seen: [u64; MOST_LANES],
    mask: u64,
    /// Counts exchanges.
    epoch: u64,
}

/// One launch's place to run. The first field is what device code points at.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Runner {
    context: Context,
    /// The scheduler's stack pointer while a fiber runs.
    pub(crate) scheduler: *mut u8,
    pub(crate) in_fiber: bool,
    pub(crate) fault: Option<Cause>,
    stacks: Stacks,
    stack_bytes: usize,
    fibers: Vec<Fiber>,
    waves: Vec<Wave>,
    order: Vec<usize>,
    running: usize,
    live: usize,
    at_barrier: usize,
    barrier_site: *const c_void,
    divergent: bool,
    call: Option<unsafe extern "C" fn(*const *mut c_void)>,
    args: *const *mut c_void,
    seed: u64,
    /// Counts blocks and their barriers.
    epoch: u64,
    shared: Shared,
    shadow: Shadow,
}

/// The grid and the block of a launch, with the memory that its blocks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) lanes: u32,
    pub(crate) order: Order,
    pub(crate) seed: u64,
    pub(crate) shared: (*mut u8, usize),
    /// Start, bytes in use, bytes up to the page that faults.
    pub(crate) dynamic: (*mut u8, usize, usize),
}

/// Fresh shared memory holds it: a NaN in every floating type.
const POISON: u8 = 0xff;
/// Behind dynamic shared memory, up to the page that faults.
const CANARY: u8 = 0xc5;

impl Runner {
    pub(crate) fn new(stack_bytes: usize) -> std::io::Result<Box<Self>> {
        Ok(Box::new(Runner {
            context: Context {
                thread: [0; 3],
                block: [0; 3],
                block_dim: [0; 3],
                grid_dim: [0; 3],
                lane: 0,
                lanes: 32,
                barrier: wait::barrier,
                exchange: wait::exchange,
                fail: wait::fail,
                access: wait::access,
            },
            scheduler: std::ptr::null_mut(),
            in_fiber: false,
            fault: None,
            stacks: Stacks::new(STACKS, stack_bytes)?,
            stack_bytes,
            fibers: Vec::new(),
            waves: Vec::new(),
            order: Vec::new(),
            running: 0,
            live: 0,
            at_barrier: 0,
            barrier_site: std::ptr::null(),
            divergent: false,
            call: None,
            args: std::ptr::null(),
            seed: 0,
            epoch: 0,
            shared: Shared::default(),
            shadow: Shadow::default(),
        }))
    }

    pub(crate) fn context(&mut self) -> *mut Context {
        &raw mut self.context
    }

    pub(crate) fn is_stack_guard(&self, address: usize) -> bool {
        self.stacks.is_guard(address)
    }

    /// Runs all blocks.
    ///
    /// # Safety
    /// The kernel and its module stay loaded; `args` are as many as its parameters and as long; the module's context
    /// points at this runner; the memory of `grid` is the module's.
    pub(crate) unsafe fn run(
        &mut self,
        kernel: &KernelTable,
        args: *const *mut c_void,
        grid: &Grid,
    ) -> Result<(), Failure> {
        let threads = grid.block.iter().map(|&n| n as usize).product::<usize>();
        if threads > self.stacks.count() {
            let count = threads.next_multiple_of(STACKS);
            self.stacks = Stacks::new(count, self.stack_bytes).map_err(|e| {
                self.failure(Cause::Stopped(format!("no-stacks: for {count} threads: {e}")), false)
            })?;
        }
        self.call = Some(kernel.call);
        self.args = args;
        self.context.grid_dim = grid.grid;
        self.context.block_dim = grid.block;
        self.context.lanes = grid.lanes;
        self.seed = grid.seed;
        self.shared = Shared {
            fixed: (grid.shared.0 as usize, grid.shared.1),
            dynamic: (grid.dynamic.0 as usize, grid.dynamic.1),
        };
        for z in 0..grid.grid[2] {
            for y in 0..grid.grid[1] {
                for x in 0..grid.grid[0] {
                    self.context.block = [x, y, z];
                    self.run_block(grid)?;
                }
            }
        }
        Ok(())
    }

    fn run_block(&mut self, grid: &Grid) -> Result<(), Failure> {
        let slack = grid.dynamic.2 - grid.dynamic.1;
        // SAFETY: the module's shared memory (the caller of `run`).
        unsafe {
            grid.shared.0.write_bytes(POISON, grid.shared.1);
            grid.dynamic.0.write_bytes(POISON, grid.dynamic.1);
            grid.dynamic.0.add(grid.dynamic.1).write_bytes(CANARY, slack);
        }
        self.set_up(grid);
        let mut stack = 0;
        let mut spare = None;
        while self.live > 0 {
            let mut progress = false;
            let mut k = 0;
            while k < self.order.len() {
                let wave = self.fibers[self.order[k]].wave;
                let end = k + self.waves[wave].len;
                progress |= self.run_wave(wave, k..end, &mut stack, &mut spare)?;
                k = end;
            }
            if !progress && self.live > 0 {
                let at_exchange = self.fibers.iter().filter(|f| f.state == State::Exchange).count();
                return Err(self.failure(Cause::Deadlock { at_barrier: self.at_barrier, at_exchange }, false));
            }
        }
        // SAFETY: as above.
        let canaries = unsafe { std::slice::from_raw_parts(grid.dynamic.0.add(grid.dynamic.1), slack) };
        match canaries.iter().rposition(|&byte| byte != CANARY) {
            Some(last) => Err(self.failure(Cause::DynamicOverrun { bytes: last + 1 }, false)),
            None => Ok(()),
        }
    }

    fn set_up(&mut self, grid: &Grid) {
        let [bx, by, bz] = grid.block;
        let lanes = grid.lanes as usize;
        self.fibers.clear();
        for z in 0..bz {
            for y in 0..by {
                for x in 0..bx {
                    let i = self.fibers.len();
                    self.fibers.push(Fiber {
                        sp: std::ptr::null_mut(),
                        stack: 0,
                        thread: [x, y, z],
                        wave: i / lanes,
                        lane: (i % lanes) as u32,
                        site: std::ptr::null(),
                        state: State::Ready,
                    });
                }
            }
        }
        let threads = self.fibers.len();
        let empty = |first: usize| {
            let len = lanes.min(threads - first);
            Wave { first, len, live: len, arrived: 0, given: [0; 64], seen: [0; 64], mask: 0, epoch: 0 }
        };
        self.waves.clear();
        self.waves.extend((0..threads).step_by(lanes).map(empty));
        self.live = threads;
        self.epoch += 1;
        self.at_barrier = 0;
        self.divergent = false;
        self.order_threads(grid.order);
    }

    /// Runs a wave until none of its lanes can go on. Whether any did.
    fn run_wave(
        &mut self,
        wave: usize,
        places: std::ops::Range<usize>,
        next_stack: &mut usize,
        spare: &mut Option<usize>,
    ) -> Result<bool, Failure> {
        let mut progress = false;
        loop {
            let mut ran = false;
            for place in places.clone() {
                let i = self.order[place];
                if self.fibers[i].state != State::Ready {
                    continue;
                }
                ran = true;
                if self.fibers[i].sp.is_null() {
                    // A stack whose thread has ended serves the next: a kernel without barriers needs but one.
                    let stack = spare.take().unwrap_or_else(|| {
                        *next_stack += 1;
                        *next_stack - 1
                    });
                    self.fibers[i].stack = stack;
                    let this: *mut Runner = self;
                    self.fibers[i].sp = self.stacks.prepare(stack, wait::main, this.cast());
                }
                self.enter(i);
                if let Some(cause) = self.fault.take() {
                    return Err(self.failure(cause, true));
                }
                if self.fibers[i].state == State::Done {
                    *spare = Some(self.fibers[i].stack);
                }
                if self.divergent {
                    return Err(self.failure(Cause::DivergentBarrier, true));
                }
            }
            progress |= ran;
            if !ran && !self.release_some(wave) {
                return Ok(progress);
            }
        }
    }

    /// Switches to a thread until it waits or ends.
    fn enter(&mut self, i: usize) {
        self.running = i;
        self.context.thread = self.fibers[i].thread;
        self.context.lane = self.fibers[i].lane;
        let to = self.fibers[i].sp;
        self.in_fiber = true;
        // SAFETY: `to` was prepared or saved, and its fiber is ready.
        unsafe { switch(&raw mut self.scheduler, to) };
        self.in_fiber = false;
    }

    /// Back to the scheduler, from a fiber.
    fn leave(&mut self) {
        let (save, to) = (&raw mut self.fibers[self.running].sp, self.scheduler);
        // SAFETY: the scheduler saved it when it entered this fiber.
        unsafe { switch(save, to) };
    }

    /// Where no lane of a wave can run: lets those go on that wait at the place of the lowest one.
    fn release_some(&mut self, wave: usize) -> bool {
        let range = self.waves[wave].first..self.waves[wave].first + self.waves[wave].len;
        let Some(lowest) = range.clone().find(|&i| self.fibers[i].state == State::Exchange) else {
            return false;
        };
        self.release(wave, self.fibers[lowest].site);
        true
    }

    /// Lets the lanes of a wave go on that wait at a place, and shows them what they gave.
    fn release(&mut self, wave: usize, site: *const c_void) {
        let wave = &mut self.waves[wave];
        wave.mask = 0;
        wave.epoch += 1;
        for (lane, fiber) in self.fibers[wave.first..wave.first + wave.len].iter_mut().enumerate() {
            if fiber.state == State::Exchange && fiber.site == site {
                fiber.state = State::Ready;
                wave.seen[lane] = wave.given[lane];
                wave.mask |= 1 << lane;
                wave.arrived -= 1;
            }
        }
    }

    fn failure(&self, cause: Cause, in_thread: bool) -> Failure {
        Failure { cause, block: self.context.block, thread: in_thread.then_some(self.context.thread) }
    }
}
