//! Signals that would end the program where an error should.

use std::sync::{Arc, atomic::AtomicBool};

/// A file that grows beyond the limit of `ulimit -f` (SIGXFSZ) is an error of the write, as a full disk is: with the
/// file in the message, exit code 1, and nothing half-written under a final name.
///
/// The signal is blocked, which takes no `unsafe`, as a handler would; the write fails all the same. Threads that are
/// made later inherit this, so it comes first; programs that are started (pip) do not. A pipe whose reader has gone
/// (SIGPIPE) is an error already, since Rust ignores that signal.
#[cfg(unix)]
pub(crate) fn file_limits_are_errors() {
    use nix::sys::signal::{SigSet, Signal};
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    if let Err(error) = set.thread_block() {
        tracing::warn!(
            "SIGXFSZ cannot be blocked ({error}): a write beyond `ulimit -f` will end the program"
        );
    }
}

#[cfg(not(unix))]
pub(crate) fn file_limits_are_errors() {}

/// SIGTERM sets `stop`, while something goes on that clears up after itself; a second one ends the program.
///
/// It is blocked, and a thread waits for it, which takes no `unsafe`. A thread that was there before would still be ended
/// by it, and the program with it, so this comes before what starts threads. (SIGHUP is not taken: it may be ignored, as
/// under `nohup`, and a blocked one arrives all the same.)
#[cfg(unix)]
pub(crate) fn stop_on_termination(stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    use std::sync::atomic::Ordering;

    use anyhow::Context;
    use nix::sys::signal::{SigSet, Signal};

    let set: SigSet = [Signal::SIGTERM].into_iter().collect();
    set.thread_block().context("blocking SIGTERM")?;
    let wait = move || {
        let mut again = false;
        while let Ok(signal) = set.wait() {
            if again {
                std::process::exit(128 + signal as i32);
            }
            again = true;
            stop.store(true, Ordering::SeqCst);
        }
    };
    std::thread::Builder::new().name("portolan-signals".into()).spawn(wait).context("waiting for SIGTERM")?;
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn stop_on_termination(_stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    Ok(())
}
