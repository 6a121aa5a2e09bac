//! A launch: checked when it is asked for, run by a stream's thread.

use std::{
    cell::RefCell,
    ffi::c_void,
    sync::{Arc, PoisonError},
};

use crate::{
    block::{Cause, Failure, Grid, MOST_THREADS, Runner},
    codes::{
        ASSERT, Code, ILLEGAL_ADDRESS, INVALID_CONFIGURATION, INVALID_VALUE, LAUNCH_FAILURE,
        LAUNCH_OUT_OF_RESOURCES, UNKNOWN,
    },
    fault,
    module::Function,
    profile::SHARED_BYTES,
    report,
    settings::{Check, Settings},
    state::state,
    trap,
    work::checksum,
};

thread_local! {
    /// The stacks of this stream's fibers.
    static RUNNER: RefCell<Option<Box<Runner>>> = const { RefCell::new(None) };
}

const PAGE: usize = 4096;
/// Under full checks a launch must change something in the first so many bytes behind its pointers.
const WATCHED: usize = 1 << 20;

/// A launch with its arguments.
#[derive(Debug)]
pub(crate) struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: usize,
    /// The parameters one behind the other, each aligned as it wants.
    args: Vec<u128>,
    places: Vec<(usize, usize)>,
    pointers: Vec<usize>,
}

/// Where the arguments of a launch come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arguments {
    /// A pointer for each parameter.
    Each(*const *mut c_void),
    /// All in one buffer, with its length.
    Packed(*const u8, usize),
}

impl Launch {
    /// Checks a launch and copies its arguments.
    ///
    /// # Safety
    /// The arguments are as the kernel's parameters want them.
    pub(crate) unsafe fn new(
        function: Arc<Function>,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic: u32,
        arguments: Arguments,
    ) -> Result<Self, Code> {
        let name = &function.name;
        let refuse = |code, text: String| {
            report::violation(&format!("bad-launch: {name}: {text}"));
            Err(code)
        };
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if grid.contains(&0) || block.contains(&0) {
            return refuse(INVALID_CONFIGURATION, format!("an empty grid {grid:?} or block {block:?}"));
        }
        // The whole grid is counted in threads of 32 bits, by dimension.
        if (0..3).any(|i| u64::from(grid[i]) * u64::from(block[i]) > u64::from(u32::MAX)) {
            return refuse(
                INVALID_CONFIGURATION,
                format!("2^32 threads or more in one dimension of {grid:?}"),
            );
        }
        if threads > MOST_THREADS as u64 {
            let text = format!("{threads} threads a block, and the device takes {MOST_THREADS}");
            return refuse(INVALID_CONFIGURATION, text);
        }
        let most = u64::from(function.table().threads);
        if threads > most {
            return refuse(LAUNCH_FAILURE, format!("{threads} threads a block, and it is made for {most}"));
        }
        let fixed = function.module.shared_bytes();
        if fixed + dynamic as usize > SHARED_BYTES as usize {
            let text =
                format!("{fixed} bytes of static and {dynamic} of dynamic shared memory, of {SHARED_BYTES}");
            return refuse(LAUNCH_OUT_OF_RESOURCES, text);
        }
        let (places, len) = function.layout();
        let mut args = vec![0u128; len.div_ceil(16)];
        let target = args.as_mut_ptr().cast::<u8>();
        match arguments {
            Arguments::Each(each) => {
                for (i, &(at, size)) in places.iter().enumerate() {
                    // SAFETY: as many pointers as parameters (the caller's promise).
                    let source = if each.is_null() { std::ptr::null_mut() } else { unsafe { *each.add(i) } };
                    if source.is_null() {
                        return refuse(INVALID_VALUE, format!("no argument {i}"));
                    }
                    // SAFETY: as long as the parameter, and within the list.
                    unsafe { target.add(at).copy_from_nonoverlapping(source.cast(), size) };
                }
            }
            Arguments::Packed(source, given) => {
                if given < len || given > len.next_multiple_of(16) {
                    return refuse(INVALID_VALUE, format!("{given} bytes of arguments, and it takes {len}"));
                }
                // SAFETY: as long as the caller says.
                unsafe { target.copy_from_nonoverlapping(source, len) };
            }
        }
        let mut launch =
            Launch { function, grid, block, dynamic: dynamic as usize, args, places, pointers: Vec::new() };
        launch.pointers = launch.find_pointers(len);
        Ok(launch)
    }

    pub(crate) fn name(&self) -> &str {
        &self.function.name
    }

    /// Addresses of live buffers among the arguments.
    pub(crate) fn pointers(&self) -> &[usize] {
        &self.pointers
    }

    /// Every aligned word that is the address of a live buffer is taken for a pointer.
    fn find_pointers(&self, len: usize) -> Vec<usize> {
        // SAFETY: the list of arguments, whose bytes are all written.
        let bytes = unsafe { std::slice::from_raw_parts(self.args.as_ptr().cast::<u8>(), len) };
        let state = state();
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize);
        words.filter(|&word| state.memory.at(word).is_some()).collect()
    }

    /// Runs it. What goes wrong is reported, and later calls fail.
    pub(crate) fn run(&self, settings: &Settings) {
        let watched = if settings.check == Check::Full { self.watched() } else { Vec::new() };
        RUNNER.with(|slot| {
            let mut slot = slot.borrow_mut();
            if slot.is_none() {
                match Runner::new(settings.stack) {
                    Ok(runner) => *slot = Some(runner),
                    Err(error) => return report::lose(UNKNOWN, &format!("no stacks for fibers: {error}")),
                }
            }
            let Some(runner) = slot.as_mut() else { return };
            if let Err(failure) = self.run_on(runner, settings) {
                let (code, text) = self.explain(&failure, runner);
                report::lose(code, &text);
                // Threads that will never go on keep what they point at on their stacks: take fresh ones.
                *slot = None;
            }
        });
        if !watched.is_empty() && watched == self.watched() && report::lost().is_ok() {
            let text = format!("wrote-nothing: {} left all its buffers as they were", self.name());
            report::lose(UNKNOWN, &text);
        }
    }

    /// Checksums of what its pointers point at.
    fn watched(&self) -> Vec<u64> {
        let ranges: Vec<(usize, usize)> = {
            let state = state();
            let range = |&p: &usize| state.memory.at(p).map(|a| (p, (a.base + a.len - p).min(WATCHED)));
            self.pointers.iter().filter_map(range).collect()
        };
        ranges.into_iter().map(|(start, len)| checksum(start, len)).collect()
    }

    fn run_on(&self, runner: &mut Runner, settings: &Settings) -> Result<(), Failure> {
        let module = &self.function.module;
        let mut turn = module.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let table = module.table();
        let open = self.dynamic.next_multiple_of(PAGE);
        if *turn != Some(open) {
            let all = table.dynamic_bytes as usize;
            // SAFETY: whole pages of the module's own, which nobody else uses.
            unsafe {
                libc::mprotect(table.dynamic.cast(), open, libc::PROT_READ | libc::PROT_WRITE);
                libc::mprotect(table.dynamic.add(open).cast(), all - open, libc::PROT_NONE);
            }
            *turn = Some(open);
        }
        let grid = Grid {
            grid: self.grid,
            block: self.block,
            lanes: settings.profile.lanes,
            order: settings.order,
            seed: settings.seed,
            shared: (table.shared, module.shared_bytes()),
            dynamic: (table.dynamic, self.dynamic, open),
        };
        let base = self.args.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: within the list of arguments.
        let mut args: Vec<*mut c_void> =
            self.places.iter().map(|p| unsafe { base.add(p.0).cast() }).collect();
        args.push(std::ptr::null_mut());
        let kernel = self.function.table();
        // SAFETY: the module is open, and its turn is ours.
        unsafe { *table.context = runner.context() };
        let this: *mut Runner = runner;
        // SAFETY: the arguments are of the kernel's layout; the rest stands above.
        fault::watch(this, || unsafe { (*this).run(kernel, args.as_ptr(), &grid) })
    }

    /// The error that the program hears of, and the words for the report.
    fn explain(&self, failure: &Failure, runner: &Runner) -> (Code, String) {
        let (code, what) = match &failure.cause {
            Cause::Signal { number, address, code } => match *number {
                libc::SIGSEGV | libc::SIGBUS if runner.is_stack_guard(*address) => {
                    let text = "stack-overflow: a thread's stack is full (HIP_EMU_STACK_BYTES)";
                    (LAUNCH_FAILURE, text.to_owned())
                }
                libc::SIGSEGV | libc::SIGBUS => {
                    let table = self.function.module.table();
                    let offset = address.wrapping_sub(table.dynamic as usize);
                    match offset < table.dynamic_bytes as usize {
                        true => {
                            let dynamic = self.dynamic;
                            let text = format!(
                                "shared-overrun: it touches byte {offset} of {dynamic} bytes of dynamic shared memory"
                            );
                            (ILLEGAL_ADDRESS, text)
                        }
                        false => (ILLEGAL_ADDRESS, state().memory.explain(*address)),
                    }
                }
                _ => (LAUNCH_FAILURE, trap::explain(code).to_owned()),
            },
            Cause::Stopped(text) if text.starts_with("assert:") => (ASSERT, text.clone()),
            Cause::Stopped(text) => (LAUNCH_FAILURE, text.clone()),
            Cause::DivergentBarrier => {
                let text = "divergent-barrier: threads of one block wait at different barriers";
                (LAUNCH_FAILURE, text.to_owned())
            }
            Cause::Deadlock { at_barrier, at_exchange } => {
                let text = format!(
                    "deadlock: {at_barrier} threads wait at a barrier and {at_exchange} at an exchange"
                );
                (LAUNCH_FAILURE, text)
            }
            Cause::DynamicOverrun { bytes } => {
                let dynamic = self.dynamic;
                let text = format!(
                    "shared-overrun: up to {bytes} bytes behind {dynamic} bytes of dynamic shared memory are written"
                );
                (ILLEGAL_ADDRESS, text)
            }
        };
        let thread = failure.thread.map_or(String::new(), |t| format!(", thread {t:?}"));
        let place = format!("in the kernel {}, block {:?}{thread}", self.name(), failure.block);
        let (head, tail) = what.split_once('\n').unwrap_or((&what, ""));
        let lines = if tail.is_empty() { String::new() } else { format!("\n{tail}") };
        (code, format!("{head}; {place}{lines}"))
    }
}
