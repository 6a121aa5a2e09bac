//! A kernel's fault becomes an error: the handler leaves the fiber and goes on in the scheduler.

use std::{cell::Cell, ffi::c_void, sync::OnceLock};

use crate::{
    block::{Cause, Runner},
    fiber,
};

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

thread_local! {
    /// The runner of this thread, while it runs a grid.
    static RUNNING: Cell<*mut Runner> = const { Cell::new(std::ptr::null_mut()) };
}

/// What was done about the signals before.
static BEFORE: OnceLock<[libc::sigaction; 4]> = OnceLock::new();

/// Bytes of the stack that the handler runs on: a fiber's may be at its end.
const HANDLER_STACK: usize = 64 << 10;

/// Catches the signals of this process from now on.
pub(crate) fn install() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: zeros are a value of both; the handler keeps to what a handler may do while it serves a kernel.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signal, &action, &mut before);
                before
            }
        })
    });
}

/// Gives the handler a stack on this thread, for the thread's life.
pub(crate) fn prepare_thread() {
    let stack = Box::leak(vec![0u8; HANDLER_STACK].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: HANDLER_STACK };
    // SAFETY: memory that is never freed.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
}

/// Marks the runner of this thread while `f` runs.
pub(crate) fn watch<R>(runner: *mut Runner, f: impl FnOnce() -> R) -> R {
    RUNNING.set(runner);
    let result = f();
    RUNNING.set(std::ptr::null_mut());
    result
}

unsafe extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let runner = RUNNING.get();
    // SAFETY: while it is marked, the runner lives, and its scheduler waits for the fiber that this signal stopped.
    // The system passes whole structs.
    unsafe {
        if !runner.is_null() && (*runner).in_fiber {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let place = registers[libc::REG_RIP as usize] as usize;
            let address = (*info).si_addr() as usize;
            let mut code = [0u8; 8];
            // Of a jump to nowhere there is no instruction to read.
            if place != address || signal == libc::SIGILL {
                std::ptr::copy_nonoverlapping(place as *const u8, code.as_mut_ptr(), 8);
            }
            (*runner).fault = Some(Cause::Signal { number: signal, address, code });
            registers[libc::REG_RSP as usize] = (*runner).scheduler as i64;
            registers[libc::REG_RIP as usize] = fiber::resume as *const () as i64;
            return;
        }
        crate::state::host_fault((*info).si_addr() as usize);
        pass_on(signal, info, context);
    }
}

/// Does what would have been done without this library.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = SIGNALS.iter().position(|&s| s == signal).unwrap_or(0);
    let before = BEFORE.get().map(|all| all[index]);
    // SAFETY: the action that stood before, called as its flags say; or the default, under which the instruction is
    // tried again and ends the process.
    unsafe {
        match before {
            Some(before) if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let f: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(before.sa_sigaction);
                    f(signal, info, context);
                } else {
                    let f: unsafe extern "C" fn(i32) = std::mem::transmute(before.sa_sigaction);
                    f(signal);
                }
            }
            _ => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}
