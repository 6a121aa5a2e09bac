//! Streams: a queue of work and a thread that does it.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::{
    codes::{Code, OPERATING_SYSTEM},
    fault,
    graph::Capture,
    work::Work,
};

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    closing: bool,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Counts streams; the default stream has 0.
    pub(crate) number: usize,
    /// Waits for the default stream, and is waited for by it.
    pub(crate) blocking: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The capture that it is part of.
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
}

impl Stream {
    /// Starts a stream's thread.
    pub(crate) fn start(number: usize, blocking: bool) -> Result<Arc<Self>, Code> {
        fault::install();
        let stream = Arc::new(Stream {
            number,
            blocking,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::new(None),
        });
        let worker = stream.clone();
        std::thread::Builder::new()
            .name(format!("hip-emu stream {number}"))
            .spawn(move || {
                fault::prepare_thread();
                worker.work();
            })
            .map_err(|_| OPERATING_SYSTEM)?;
        Ok(stream)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_changed<'q>(&self, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts work behind what is queued; returns its number.
    pub(crate) fn push(&self, work: Work) -> u64 {
        let mut queue = self.queue();
        queue.work.push_back(work);
        queue.submitted += 1;
        self.changed.notify_all();
        queue.submitted
    }

    /// The number of the last work that was queued.
    pub(crate) fn submitted(&self) -> u64 {
        self.queue().submitted
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.queue().completed >= number
    }

    /// Waits until work is done.
    pub(crate) fn wait(&self, number: u64) {
        let mut queue = self.queue();
        while queue.completed < number {
            queue = self.wait_changed(queue);
        }
    }

    /// Ends the thread once the queue is empty.
    pub(crate) fn close(&self) {
        self.queue().closing = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let work = loop {
                match queue.work.pop_front() {
                    Some(work) => break work,
                    None if queue.closing => return,
                    None => queue = self.wait_changed(queue),
                }
            };
            drop(queue);
            work.run();
            // What the work holds goes before anybody learns that it is done.
            drop(work);
            self.queue().completed += 1;
            self.changed.notify_all();
        }
    }
}
