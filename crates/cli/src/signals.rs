//! Signals that would end the program where an error should.

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
