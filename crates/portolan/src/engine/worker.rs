//! The engine's thread: takes requests, runs steps, hands tokens out.

use std::sync::mpsc::{Receiver, TryRecvError};

use portolan_device::DeviceError;
use portolan_kernels::PAGE_TOKENS;

use super::{
    request::{Command, Request},
    schedule::{Job, Room, Step, schedule},
};
use crate::{Core, Error, SeqStep, Want};

pub(super) struct Worker {
    core: Core,
    commands: Receiver<Command>,
    /// In the order in which they came.
    requests: Vec<Request>,
    stopping: bool,
    /// The loss of the device. From then on every request is refused with it: nothing that is asked of the device can
    /// go well again, and what it may still do to its memory nobody knows.
    lost: Option<DeviceError>,
}

impl Worker {
    pub(super) fn new(core: Core, commands: Receiver<Command>) -> Self {
        Worker { core, commands, requests: Vec::new(), stopping: false, lost: None }
    }

    pub(super) fn run(mut self) {
        loop {
            self.take_commands();
            if self.stopping {
                for request in &self.requests {
                    request.fail(Error::Stopped { reason: "the engine was dropped".to_owned() });
                }
                return;
            }
            self.drop_cancelled();
            if !self.requests.is_empty() {
                self.step();
            }
        }
    }

    /// Takes what has come; sleeps when there is nothing to do.
    fn take_commands(&mut self) {
        loop {
            let command = if self.requests.is_empty() {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Run(request)) => self.accept(*request),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    /// Takes a request, or refuses it: one that the cache could not hold even alone would wait for ever.
    fn accept(&mut self, request: Request) {
        if let Some(lost) = &self.lost {
            request.fail(lost.clone().into());
            return;
        }
        let (_, _, total) = self.core.pages();
        let need = request.known() + 1;
        if need.div_ceil(PAGE_TOKENS) > total {
            request.fail(Error::NeverFits { need, have: total * PAGE_TOKENS });
            return;
        }
        self.requests.push(request);
    }

    fn drop_cancelled(&mut self) {
        let core = &mut self.core;
        self.requests.retain(|request| {
            if request.is_cancelled() {
                if let Some(seq) = request.seq {
                    core.remove(seq);
                }
                request.cancel();
            }
            !request.is_cancelled()
        });
    }

    fn step(&mut self) {
        let mut step = self.schedule();
        let mut preempted = false;
        while !step.preempt.is_empty() {
            preempted = true;
            for &index in &step.preempt {
                if let Some(seq) = self.requests[index].seq.take() {
                    self.core.remove(seq);
                }
            }
            // Pages that others share do not come free, so what there is now is asked of the cache, not reckoned.
            step = self.schedule();
        }
        // Nobody is admitted while somebody is put back: the two would swap places for ever.
        if preempted {
            step.admit.clear();
        }
        for &index in &step.admit {
            let request = &mut self.requests[index];
            let seq = self.core.create_with_prefix(&request.tokens(0, request.known()));
            let reused = self.core.len(seq).unwrap_or(0);
            request.admitted(seq, reused);
        }
        if step.run.is_empty() {
            if step.admit.is_empty() {
                self.stalled();
            }
            return;
        }
        let ended = self.run_step(&step.run);
        self.remove(ended);
    }

    fn schedule(&self) -> Step {
        let limits = self.core.limits();
        let (free, evictable, _) = self.core.pages();
        let jobs: Vec<Job> = self.requests.iter().map(|r| self.job(r)).collect();
        schedule(&jobs, Room { rows: limits.rows, seqs: limits.seqs, pages: free + evictable })
    }

    fn job(&self, request: &Request) -> Job {
        let known = request.known();
        let computed = request.seq.and_then(|seq| self.core.len(seq).ok());
        Job {
            known,
            computed: computed.unwrap_or(0),
            pages: computed.map_or(0, |len| len.div_ceil(PAGE_TOKENS)),
            running: computed.is_some(),
        }
    }

    /// Runs the rows of each request; returns the indices of those that ended.
    fn run_step(&mut self, run: &[(usize, usize)]) -> Vec<usize> {
        let rows: Vec<_> = run
            .iter()
            .filter_map(|&(index, rows)| {
                let request = &self.requests[index];
                let seq = request.seq?;
                let from = self.core.len(seq).ok()?;
                let want = if from + rows == request.known() { Want::Last } else { Want::None };
                Some((index, seq, request.tokens(from, rows), want))
            })
            .collect();
        let batch: Vec<SeqStep<'_>> =
            rows.iter().map(|(_, seq, tokens, want)| SeqStep { seq: *seq, tokens, want: *want }).collect();
        if let Err(error) = self.core.step(&batch) {
            if let Some(lost) = error.device_lost().cloned() {
                self.lose(lost);
                return Vec::new();
            }
            // The first hears the error itself, the others that it ended them.
            let mut failed: Vec<usize> = rows.iter().map(|(index, ..)| *index).collect();
            let reason = error.to_string();
            let mut error = Some(error);
            for &index in &failed {
                let other = || Error::Stopped { reason: reason.clone() };
                self.requests[index].fail(error.take().unwrap_or_else(other));
            }
            failed.sort_unstable();
            return failed;
        }
        let mut ended = Vec::new();
        let mut logits_row = 0;
        for (index, _, _, want) in &rows {
            if *want == Want::None {
                continue;
            }
            let request = &mut self.requests[*index];
            request.note_transfers(|| self.core.transfers());
            match request.advance(self.core.logits(logits_row)) {
                Ok(false) => {}
                Ok(true) => ended.push(*index),
                Err(error) => {
                    request.fail(error);
                    ended.push(*index);
                }
            }
            logits_row += 1;
        }
        ended.sort_unstable();
        ended
    }

    /// The device is gone: ends every request, those too that were not in the step.
    fn lose(&mut self, lost: DeviceError) {
        tracing::error!("{lost}");
        for request in self.requests.drain(..) {
            if let Some(seq) = request.seq {
                self.core.discard(seq);
            }
            request.fail(lost.clone().into());
        }
        self.core.clear_prefixes();
        self.lost = Some(lost);
    }

    /// Takes requests out; what they computed stays findable as a prefix.
    fn remove(&mut self, ended: Vec<usize>) {
        for index in ended.into_iter().rev() {
            let request = self.requests.remove(index);
            if let Some(seq) = request.seq {
                self.core.remove(seq);
            }
        }
    }

    /// Nothing can run and nothing can be admitted, though every request fits alone: a fault, and it is reported
    /// rather than waited out.
    fn stalled(&mut self) {
        for request in self.requests.drain(..) {
            if let Some(seq) = request.seq {
                self.core.discard(seq);
            }
            request.fail(Error::Internal { what: "the scheduler made no progress" });
        }
        self.core.clear_prefixes();
    }
}
