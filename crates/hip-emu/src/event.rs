//! Events.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use crate::{clocks::Clock, graph::Capture, stream::Stream};

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) timing: bool,
    recorded: Mutex<Recorded>,
}

/// What an event was last recorded behind.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    Never,
    Work {
        stream: Arc<Stream>,
        number: u64,
        clock: Clock,
        stamp: Option<Arc<OnceLock<Instant>>>,
    },
    /// So many pieces of a capture's work.
    Captured(Arc<Capture>, Arc<Stream>),
}

impl Event {
    pub(crate) fn new(timing: bool) -> Self {
        Event { timing, recorded: Mutex::new(Recorded::Never) }
    }

    pub(crate) fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
