//! Captures and graphs. A graph keeps its work in the order in which it was captured, which is one that its edges
//! allow, and does it on the stream that it is launched on.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::thread::ThreadId;

use crate::{
    codes::{Code, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNSUPPORTED},
    state::STREAMS,
    stream::Stream,
    work::Work,
};

/// How strict a capture is about calls that are not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) mode: Mode,
    pub(crate) thread: ThreadId,
    /// The number of the stream that it began on.
    pub(crate) origin: usize,
    invalid: AtomicBool,
    work: Mutex<Captured>,
}

#[derive(Debug, Default)]
struct Captured {
    work: Vec<Work>,
    /// Numbers of streams whose work the origin has not waited for.
    unjoined: Vec<usize>,
}

/// Captured work.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) work: Vec<Work>,
}

impl Capture {
    pub(crate) fn new(mode: Mode, origin: usize) -> Self {
        let thread = std::thread::current().id();
        Capture { mode, thread, origin, invalid: AtomicBool::new(false), work: Mutex::default() }
    }

    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece of work.
    pub(crate) fn push(&self, stream: &Stream, work: Work) -> Result<u64, Code> {
        self.valid()?;
        let mut captured = self.captured();
        captured.work.push(work);
        if stream.number != self.origin && !captured.unjoined.contains(&stream.number) {
            captured.unjoined.push(stream.number);
        }
        Ok(captured.work.len() as u64)
    }

    /// The origin waits for a stream's work.
    pub(crate) fn joined(&self, stream: &Stream) {
        self.captured().unjoined.retain(|&number| number != stream.number);
    }

    /// A stream takes part from now on.
    pub(crate) fn fork(&self, stream: &Stream) {
        let mut captured = self.captured();
        if stream.number != self.origin && !captured.unjoined.contains(&stream.number) {
            captured.unjoined.push(stream.number);
        }
    }

    pub(crate) fn valid(&self) -> Result<(), Code> {
        if self.invalid.load(Ordering::Acquire) { Err(STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    /// Nothing comes of it.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// The graph.
    pub(crate) fn end(&self) -> Result<Graph, Code> {
        self.valid()?;
        let captured = self.captured();
        if !captured.unjoined.is_empty() {
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        Ok(Graph { work: captured.work.clone() })
    }
}

/// The capture that a stream is part of.
pub(crate) fn capture_of(stream: &Stream) -> Option<Arc<Capture>> {
    stream.capture.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Refuses what may not be done on a stream that captures, which spoils the capture.
pub(crate) fn not_capturing(stream: &Stream) -> Result<(), Code> {
    match capture_of(stream) {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Refuses a call that no capture of this thread, nor a global one, allows, which spoils the capture.
pub(crate) fn no_unsafe_call() -> Result<(), Code> {
    let me = std::thread::current().id();
    let stands = STREAMS.all().iter().filter_map(|s| capture_of(s)).find(|capture| match capture.mode {
        Mode::Global => true,
        Mode::ThreadLocal => capture.thread == me,
        Mode::Relaxed => false,
    });
    match stands {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}
