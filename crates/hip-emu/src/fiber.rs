//! Fibers: a thread of a block has a stack of its own, and gives way to others by itself. x86-64 alone.

use std::{arch::naked_asm, io};

/// Stacks of a block's threads, each with a page below it that faults.
#[derive(Debug)]
pub(crate) struct Stacks {
    base: *mut u8,
    slot: usize,
    count: usize,
}

/// Stack tops that were a power of two apart would all share one set of the cache.
const STAGGER: usize = 320;
const PAGE: usize = 4096;

impl Stacks {
    /// `count` stacks of `bytes` bytes at the least.
    pub(crate) fn new(count: usize, bytes: usize) -> io::Result<Self> {
        let slot = bytes.next_multiple_of(PAGE) + 2 * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), slot * count, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stacks = Stacks { base: base.cast(), slot, count };
        for i in 0..count {
            // SAFETY: the lowest page of a slot of the mapping above.
            unsafe { libc::mprotect(stacks.base.add(i * slot).cast(), PAGE, libc::PROT_NONE) };
        }
        Ok(stacks)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The top of a stack, a multiple of 16.
    fn top(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.count);
        let stagger = (index * STAGGER) % PAGE / 16 * 16;
        // SAFETY: within the slot of that number.
        unsafe { self.base.add((index + 1) * self.slot - stagger) }
    }

    /// Whether an address is in the page below one of the stacks.
    pub(crate) fn is_guard(&self, address: usize) -> bool {
        let offset = address.wrapping_sub(self.base as usize);
        offset < self.slot * self.count && offset % self.slot < PAGE
    }

    /// A fiber on a stack that begins in `main(argument)`, which never returns: what to switch to.
    pub(crate) fn prepare(
        &self,
        index: usize,
        main: extern "C" fn(*mut u8) -> !,
        argument: *mut u8,
    ) -> *mut u8 {
        // In the order in which `switch` takes them: r15, r14, r13, r12, rbx, rbp, the address to return to.
        let begin = begin as *const () as usize;
        let words = [0, 0, 0, main as *const () as usize, argument as usize, 0, begin, 0];
        // SAFETY: the topmost words of a stack that nobody uses.
        unsafe {
            let at = self.top(index).cast::<[usize; 8]>().sub(1);
            at.write(words);
            at.cast()
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no fiber is left on it when its owner goes.
        unsafe { libc::munmap(self.base.cast(), self.slot * self.count) };
    }
}

/// Saves the running fiber's registers on its stack and its stack pointer in `*save`, and goes on at `to`.
///
/// # Safety
/// `to` was saved by a switch or made by [`Stacks::prepare`], and is switched to once.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(save: *mut *mut u8, to: *mut u8) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Goes on at the stack pointer it finds, as the second half of [`switch`]: where a signal handler returns to, to
/// leave a fiber that faulted.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn resume() {
    naked_asm!("pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp", "ret")
}

/// The first code of a fiber: its function in r12, the argument in rbx.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!("and rsp, -16", "mov rdi, rbx", "call r12", "ud2")
}
