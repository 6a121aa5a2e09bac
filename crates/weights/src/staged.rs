//! Filling memory that the host does not see, through the staging ring of its device.
//!
//! This thread packs a slot and hands its pieces to the readers, packs the next one meanwhile, and enqueues a slot's
//! copies once its pieces are read. So while one slot is copied, another is read, and no reader waits for the slowest.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use portolan_device::{DeviceError, StagingPool, StagingSlot, Stream, Transfer, WeightArena};

use crate::{
    Checkpoint, PlannedTensor, Result, WeightError,
    file::WeightFile,
    fill::{perform, plane_offsets},
    pack::{Job, Packer, is_too_coarse},
    reading::{ReadStats, RowReader},
};

/// Slots that are read at a time.
const OPEN: usize = 2;

/// What a staged load reads from.
pub(crate) struct Staged<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) tensors: &'a [PlannedTensor],
    pub(crate) files: &'a [WeightFile],
    pub(crate) readers: usize,
}

/// A piece that was read, or not. No result at all: the reader panicked.
struct Done {
    slot: usize,
    bytes: u64,
    result: Option<Result<()>>,
}

/// A slot whose pieces are being read.
struct Open {
    number: usize,
    slot: StagingSlot,
    transfers: Vec<Transfer>,
    left: usize,
}

/// The device's side of a load, and what the caller is told.
struct Target<'a> {
    arena: &'a mut WeightArena,
    pool: &'a mut StagingPool,
    stream: &'a Stream,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl Target<'_> {
    fn advance(&mut self, bytes: u64) {
        if bytes > 0 {
            self.done += bytes;
            (self.progress)(self.done, self.total);
        }
    }

    /// A slot; every one of this load's has been submitted.
    fn slot(&mut self) -> Result<StagingSlot> {
        let device = self.stream.device();
        let reason = || "every slot of the staging ring is held by another load".to_owned();
        Ok(self.pool.acquire()?.ok_or_else(|| DeviceError::Failed {
            device,
            call: "acquire",
            reason: reason(),
        })?)
    }
}

impl Staged<'_> {
    /// Loads some tensors: what the readers did, and whether the bytes went through pinned memory. The last copies
    /// may be under way.
    pub(crate) fn run(
        &self,
        wanted: &[usize],
        arena: &mut WeightArena,
        pool: &mut StagingPool,
        stream: &Stream,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(ReadStats, bool)> {
        let bytes =
            |&i: &usize| self.tensors.get(i).map_or(0, |t| t.plane_bytes().iter().sum::<usize>() as u64);
        let total = wanted.iter().map(bytes).sum();
        let mut target = Target { arena, pool, stream, progress, done: 0, total };
        let floor = target.pool.floor();
        let coarse = |&i: &usize| self.tensors.get(i).is_some_and(|t| is_too_coarse(t, floor));
        let (whole, cut): (Vec<usize>, Vec<usize>) = wanted.iter().copied().partition(coarse);
        let mut stats = self.pieces(&cut, &mut target)?;
        for &index in &whole {
            stats.add(&self.whole(index, &mut target)?);
        }
        Ok((stats, target.pool.is_pinned()))
    }

    /// Reads pieces into slots, on several threads where there is enough to read.
    fn pieces(&self, wanted: &[usize], target: &mut Target<'_>) -> Result<ReadStats> {
        let mut packer = Packer::new(self.tensors, wanted, self.readers);
        let large = wanted.iter().filter_map(|&i| self.tensors.get(i)).map(|t| t.device_bytes).sum::<u64>();
        let threads = self.readers.min((large / (1 << 20)) as usize + 1);
        if threads <= 1 {
            let mut reader = RowReader::new(self.checkpoint, self.files);
            while !packer.is_done() {
                let mut slot = target.slot()?;
                let (jobs, transfers) = packer.pack(&mut slot);
                for mut job in jobs {
                    self.read(&mut reader, &mut job)?;
                    target.advance(job.bytes());
                }
                target.pool.submit(slot, target.stream, target.arena, &transfers)?;
            }
            return Ok(reader.stats);
        }
        let (jobs, queue) = channel::<(usize, Job)>();
        let (queue, stop) = (Mutex::new(queue), AtomicBool::new(false));
        let (sender, done) = channel();
        std::thread::scope(|scope| {
            let (queue, stop) = (&queue, &stop);
            let handles: Vec<_> = (0..threads)
                .map(|_| {
                    let sender = sender.clone();
                    scope.spawn(move || self.serve(queue, stop, &sender))
                })
                .collect();
            drop(sender);
            let result = self.feed(packer, target, &jobs, &done);
            stop.store(result.is_err(), Ordering::Relaxed);
            drop(jobs);
            let mut stats = ReadStats::default();
            for handle in handles {
                match handle.join() {
                    Ok(one) => stats.add(&one),
                    Err(panic) => resume_unwind(panic),
                }
            }
            result.map(|()| stats)
        })
    }

    /// A reader thread: pieces until the queue is closed.
    fn serve(
        &self,
        queue: &Mutex<Receiver<(usize, Job)>>,
        stop: &AtomicBool,
        done: &Sender<Done>,
    ) -> ReadStats {
        let mut reader = RowReader::new(self.checkpoint, self.files);
        loop {
            // Poisoned only if another reader panicked, which the scope passes on.
            let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
            let Some((slot, mut job)) = next else { return reader.stats };
            if stop.load(Ordering::Relaxed) {
                continue;
            }
            let bytes = job.bytes();
            let result = catch_unwind(AssertUnwindSafe(|| self.read(&mut reader, &mut job)));
            // The slot can be submitted only when nobody holds a part of it.
            drop(job);
            let (result, panic) = match result {
                Ok(result) => (Some(result), None),
                Err(panic) => (None, Some(panic)),
            };
            // Nobody listens after an error.
            let _ = done.send(Done { slot, bytes, result });
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }
    }

    /// Packs slots and enqueues their copies in order, with some of them being read at a time.
    fn feed(
        &self,
        mut packer: Packer<'_>,
        target: &mut Target<'_>,
        jobs: &Sender<(usize, Job)>,
        done: &Receiver<Done>,
    ) -> Result<()> {
        let mut open: VecDeque<Open> = VecDeque::new();
        let mut number = 0;
        while !packer.is_done() {
            let slot = if open.len() < OPEN { target.pool.acquire()? } else { None };
            let Some(mut slot) = slot else {
                if open.is_empty() {
                    return Err(self.stopped());
                }
                self.finish(&mut open, target, done)?;
                continue;
            };
            let (work, transfers) = packer.pack(&mut slot);
            open.push_back(Open { number, slot, transfers, left: work.len() });
            for job in work {
                jobs.send((number, job)).map_err(|_| self.stopped())?;
            }
            number += 1;
        }
        while !open.is_empty() {
            self.finish(&mut open, target, done)?;
        }
        Ok(())
    }

    /// Waits until the oldest open slot is read, and enqueues its copies.
    fn finish(
        &self,
        open: &mut VecDeque<Open>,
        target: &mut Target<'_>,
        done: &Receiver<Done>,
    ) -> Result<()> {
        while open.front().is_some_and(|oldest| oldest.left > 0) {
            let piece = done.recv().map_err(|_| self.stopped())?;
            piece.result.ok_or_else(|| self.stopped())??;
            target.advance(piece.bytes);
            if let Some(of) = open.iter_mut().find(|o| o.number == piece.slot) {
                of.left -= 1;
            }
        }
        if let Some(Open { slot, transfers, .. }) = open.pop_front() {
            target.pool.submit(slot, target.stream, target.arena, &transfers)?;
        }
        Ok(())
    }

    /// A tensor no part of which fits a slot on its own: it is made whole in ordinary memory first.
    fn whole(&self, index: usize, target: &mut Target<'_>) -> Result<ReadStats> {
        let Some(tensor) = self.tensors.get(index) else { return Ok(ReadStats::default()) };
        let mut reader = RowReader::new(self.checkpoint, self.files);
        let sizes = tensor.plane_bytes();
        let mut planes: Vec<Vec<u8>> = sizes.iter().map(|&n| vec![0; n]).collect();
        let mut out: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
        perform(&mut reader, tensor, 0, tensor.rows.rows(), &mut out)?;
        for (plane, start) in planes.iter().zip(plane_offsets(&sizes)) {
            let mut offset = start;
            let mut rest = plane.as_slice();
            while !rest.is_empty() {
                let mut slot = target.slot()?;
                let (head, tail) = rest.split_at(rest.len().min(slot.len()));
                if let Some(mut part) = slot.carve(head.len()) {
                    part.copy_from_slice(head);
                }
                let transfer = Transfer { src: 0, item: index, offset, len: head.len() };
                target.pool.submit(slot, target.stream, target.arena, &[transfer])?;
                target.advance(head.len() as u64);
                (offset, rest) = (offset + head.len(), tail);
            }
        }
        Ok(reader.stats)
    }

    fn read(&self, reader: &mut RowReader<'_>, job: &mut Job) -> Result<()> {
        let Some(tensor) = self.tensors.get(job.tensor) else { return Ok(()) };
        let mut out: Vec<&mut [u8]> = job.parts.iter_mut().map(|part| &mut **part).collect();
        if tensor.request.repack.is_some() {
            // A layout may leave gaps, which in fresh memory are zero.
            out.iter_mut().for_each(|plane| plane.fill(0));
        }
        perform(reader, tensor, job.first, job.rows, &mut out)
    }

    /// A reader panicked, or the ring gave no slot: neither has a cause that a user could change.
    fn stopped(&self) -> WeightError {
        let source = std::io::Error::other("the readers stopped");
        WeightError::Io { path: self.checkpoint.path.clone(), action: "go on reading", source }
    }
}
