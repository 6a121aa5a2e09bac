//! What a thread does while it runs: it begins, meets others, stops. Device code calls these through its context.

use std::ffi::{CStr, c_void};

use super::{Cause, Runner, State};
use crate::{device_abi::Context, shadow::Stamp};

/// The runner that a context is the first field of.
///
/// # Safety
/// The context is a runner's, which nobody else borrows: the scheduler waits while device code runs.
unsafe fn runner<'a>(context: *mut Context) -> &'a mut Runner {
    // SAFETY: the first field of a struct with C's layout has the struct's address.
    unsafe { &mut *context.cast::<Runner>() }
}

/// What a fiber runs.
pub(super) extern "C" fn main(argument: *mut u8) -> ! {
    let (call, args) = {
        // SAFETY: the argument is the runner that prepared the fiber.
        let runner = unsafe { runner(argument.cast()) };
        (runner.call, runner.args)
    };
    if let Some(call) = call {
        // SAFETY: the kernel's own function with its arguments (the caller of `run`).
        unsafe { call(args) };
    }
    // SAFETY: as above.
    let runner = unsafe { runner(argument.cast()) };
    let i = runner.running;
    runner.fibers[i].state = State::Done;
    runner.live -= 1;
    runner.waves[runner.fibers[i].wave].live -= 1;
    runner.open_barrier();
    loop {
        runner.leave();
    }
}

impl Runner {
    /// Lets all go on once every thread that lives is at the barrier.
    fn open_barrier(&mut self) {
        if self.live > 0 && self.at_barrier == self.live {
            for fiber in self.fibers.iter_mut().filter(|f| f.state == State::Barrier) {
                fiber.state = State::Ready;
            }
            self.at_barrier = 0;
            self.epoch += 1;
        }
    }
}

pub(super) unsafe extern "C" fn barrier(context: *mut Context, site: *const c_void) {
    // SAFETY: device code passes the context that the runner gave it.
    let runner = unsafe { runner(context) };
    if runner.at_barrier == 0 {
        runner.barrier_site = site;
    } else if runner.barrier_site != site {
        runner.divergent = true;
    }
    let i = runner.running;
    runner.fibers[i].state = State::Barrier;
    runner.at_barrier += 1;
    if !runner.divergent {
        runner.open_barrier();
    }
    if runner.fibers[i].state != State::Ready {
        runner.leave();
    }
}

pub(super) unsafe extern "C" fn exchange(
    context: *mut Context,
    value: u64,
    mask: *mut u64,
    site: *const c_void,
) -> *const u64 {
    // SAFETY: device code passes the context that the runner gave it.
    let runner = unsafe { runner(context) };
    let i = runner.running;
    let fiber = &mut runner.fibers[i];
    let index = fiber.wave;
    fiber.state = State::Exchange;
    fiber.site = site;
    let wave = &mut runner.waves[index];
    wave.given[fiber.lane as usize] = value;
    wave.arrived += 1;
    let all = wave.arrived == wave.live;
    let members = wave.first..wave.first + wave.len;
    if all && runner.fibers[members].iter().all(|f| f.state == State::Done || f.site == site) {
        runner.release(index, site);
    } else {
        runner.leave();
    }
    let wave = &runner.waves[index];
    // SAFETY: device code passes a place for the mask.
    unsafe { mask.write(wave.mask) };
    wave.seen.as_ptr()
}

pub(super) unsafe extern "C" fn fail(context: *mut Context, message: *const i8) -> ! {
    // SAFETY: device code passes the context that the runner gave it, and a string that ends with a zero.
    let (runner, message) = unsafe { (runner(context), CStr::from_ptr(message)) };
    runner.fault = Some(Cause::Stopped(message.to_string_lossy().into_owned()));
    loop {
        runner.leave();
    }
}

/// Device code that was compiled to watch shared memory is about to touch it.
pub(super) unsafe extern "C" fn access(context: *mut Context, address: *const c_void, size: u64, write: u32) {
    // SAFETY: device code passes the context that the runner gave it.
    let runner = unsafe { runner(context) };
    let Some(offset) = runner.shared.offset(address as usize) else { return };
    let fiber = &runner.fibers[runner.running];
    let wave = &runner.waves[fiber.wave];
    let me = Stamp::new(runner.epoch, wave.epoch, runner.running, fiber.wave);
    let found = runner.shadow.touch(offset, size as usize, write != 0, me);
    if let Some(conflict) = found {
        let other = runner.fibers.get(conflict.thread).map_or([0; 3], |f| f.thread);
        let word = |write: bool| if write { "writes" } else { "reads" };
        runner.fault = Some(Cause::Stopped(format!(
            "shared-race: it {} byte {} of shared memory, which thread {other:?} {} with no barrier between",
            word(write != 0),
            conflict.offset,
            word(conflict.write),
        )));
        loop {
            runner.leave();
        }
    }
}
