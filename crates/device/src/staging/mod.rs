//! From files to a device: a ring of slots of pinned host memory, each with an event.
//!
//! A slot is taken with [`StagingPool::acquire`], filled by one thread or by several (each with a [`SlotPart`]), and
//! handed to a stream with [`StagingPool::submit`]. It comes back when its event says that its copies have run. Where
//! no memory can be pinned there is one slot of ordinary memory, whose upload is synchronous.

mod options;
mod slot;

use std::{
    collections::VecDeque,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

pub use options::StagingOptions;
use slot::{Gauge, SlotMemory};
pub use slot::{SlotPart, StagingSlot};

use crate::{
    Buffer, Device, DeviceError, DeviceId, Event, MemoryKind, Result, Slice, Stream, WeightArena,
    backend::Backend,
};

/// A copy from a slot to a tensor of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// First byte within the slot.
    pub src: usize,
    /// The tensor, counted as in [`WeightArena::reserve`].
    pub item: usize,
    /// First byte within the tensor.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// What a pool did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingCounters {
    /// Copies handed to a stream.
    pub copies: usize,
    /// Bytes of those.
    pub bytes: u64,
    /// Time that the caller waited for a slot's event.
    pub slot_wait: Duration,
    /// Time in handing copies and events to streams; on the pageable path the copies themselves.
    pub enqueue: Duration,
    /// Time from the first copy after [`StagingPool::take_counters`] to the end of all, where
    /// [`StagingPool::drain`] waited for it.
    pub copying: Duration,
    /// Bytes of the copies that `copying` is of.
    pub timed_bytes: u64,
    /// Most bytes pinned at a time, since the pool was made.
    pub pinned_peak: u64,
}

/// The ring of a device: slots of pinned host memory, each with an event.
///
/// A slot is taken with [`StagingPool::acquire`], filled, and handed to a stream with [`StagingPool::submit`]. It is
/// given out again only after its event says that its copies have run; until then the pool also keeps the copies'
/// destinations allocated. Dropping the pool waits for them.
pub struct StagingPool {
    device: DeviceId,
    backend: Arc<dyn Backend>,
    options: StagingOptions,
    /// Slots that are not out, the one that was submitted first in front.
    ring: VecDeque<StagingSlot>,
    gauge: Arc<Gauge>,
    /// What the next slot is tried at.
    next_len: usize,
    /// No more slots are tried: the last one was refused.
    closed: bool,
    pageable: bool,
    counters: StagingCounters,
    /// When the first copy began that nobody waited for yet, and the bytes since.
    window: Option<(Instant, u64)>,
}

impl Device {
    /// The staging ring of this device, alone for the caller while the guard lives: two loads to one device take
    /// turns. It is kept for later loads; asked for more than it was made for, it is made anew. A thread that holds
    /// it must not ask for it again, nor start or drop a load to the same device.
    ///
    /// # Errors
    /// When copies of an earlier load failed and only now are waited for.
    pub fn staging(&self, options: &StagingOptions) -> Result<MutexGuard<'_, StagingPool>> {
        // A thread that panicked while it held the ring left slots that know their own state.
        let mut pool = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        pool.configure(options)?;
        Ok(pool)
    }
}

impl StagingPool {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let options = StagingOptions::default();
        StagingPool {
            device: backend.caps().id,
            backend,
            options,
            ring: VecDeque::new(),
            gauge: Arc::default(),
            next_len: options.slot_len(),
            closed: false,
            pageable: !options.pinned,
            counters: StagingCounters::default(),
            window: None,
        }
    }

    fn configure(&mut self, options: &StagingOptions) -> Result<()> {
        let same = (options.pinned, options.slots) == (self.options.pinned, self.options.slots);
        if same && options.slot_bytes <= self.options.slot_bytes && self.gauge.slots() > 0 {
            return Ok(());
        }
        self.release()?;
        (self.options, self.next_len) = (*options, options.slot_len());
        (self.closed, self.pageable) = (false, !options.pinned);
        Ok(())
    }

    /// Waits for all copies and gives the slots' memory back.
    ///
    /// # Errors
    /// As [`StagingPool::drain`]; slots whose copies are still under way are kept.
    pub fn release(&mut self) -> Result<()> {
        self.drain()?;
        self.ring.clear();
        Ok(())
    }

    /// Whether slots are pinned, as far as is known: a refusal shows when a slot is acquired.
    pub fn is_pinned(&self) -> bool {
        !self.pageable
    }

    /// The smallest size that a slot of this ring may come to have.
    pub fn floor(&self) -> usize {
        self.options.floor()
    }

    /// Bytes pinned now.
    pub fn pinned_bytes(&self) -> u64 {
        self.gauge.pinned.load(Ordering::Relaxed)
    }

    /// A slot whose copies have run, to be filled from its start; none when every slot is out. Waits for the oldest
    /// copies where no slot is free and no more may be made.
    ///
    /// # Errors
    /// When that wait fails, and when an event or ordinary memory is refused. Pinned memory that is refused is not
    /// an error.
    pub fn acquire(&mut self) -> Result<Option<StagingSlot>> {
        let free = match self.ring.front() {
            Some(slot) => slot.is_free()?,
            None => false,
        };
        let most = if self.pageable { 1 } else { self.options.slots.max(1) };
        if !free
            && self.gauge.slots() < most
            && let Some(slot) = self.make()?
        {
            return Ok(Some(slot));
        }
        if let Some(slot) = self.ring.front_mut() {
            let start = Instant::now();
            let waited = slot.wait();
            self.counters.slot_wait += start.elapsed();
            waited?;
        }
        Ok(self.ring.pop_front())
    }

    /// One more slot, halved until it can be pinned; none where the ring has to do with what it has.
    fn make(&mut self) -> Result<Option<StagingSlot>> {
        let event = Event::new(self.backend.create_event()?);
        while !self.pageable && !self.closed {
            match self.pin(self.next_len) {
                Ok(buffer) => {
                    let memory = SlotMemory::pinned(buffer, self.gauge.clone())?;
                    return Ok(Some(StagingSlot::new(memory, event)));
                }
                Err(lost @ DeviceError::Lost { .. }) => return Err(lost),
                Err(_) if self.next_len / 2 >= self.options.floor() => {
                    self.next_len = (self.next_len / 2).next_multiple_of(256);
                }
                Err(_) if self.gauge.slots() > 0 => self.closed = true,
                Err(error) => {
                    tracing::warn!(
                        "{}: no memory can be pinned ({error}); weights go through pageable memory, which is \
                         slower. Raise the limit of locked memory, or set PORTOLAN_PINNED_LOAD=0",
                        self.device
                    );
                    self.pageable = true;
                }
            }
        }
        if self.closed {
            return Ok(None);
        }
        let memory = SlotMemory::pageable(self.device, self.options.slot_len(), self.gauge.clone())?;
        Ok(Some(StagingSlot::new(memory, event)))
    }

    fn pin(&self, len: usize) -> Result<Buffer> {
        let raw = self.backend.alloc(len, MemoryKind::Pinned)?;
        Ok(Buffer::new(self.backend.clone(), raw))
    }

    /// Puts a slot back that was not submitted.
    pub fn give_back(&mut self, slot: StagingSlot) {
        self.ring.push_front(slot);
    }

    /// Enqueues the copies of a filled slot on `stream`, records the slot's event after them, and takes the slot
    /// back. Ranges that follow one another on both sides go in one copy. Returns the number of copies.
    ///
    /// From a pageable slot the copies have left the slot when this returns.
    ///
    /// # Errors
    /// For ranges outside the slot or the arena, and for memory that the host sees (it is filled in place), before
    /// anything is enqueued; for a part of the slot that somebody still holds; and when the stream refuses a copy
    /// or the event: then this has waited for the copies before it.
    pub fn submit(
        &mut self,
        mut slot: StagingSlot,
        stream: &Stream,
        arena: &mut WeightArena,
        transfers: &[Transfer],
    ) -> Result<usize> {
        let failed = |reason: &str| DeviceError::Failed {
            device: self.device,
            call: "submit",
            reason: reason.to_owned(),
        };
        if stream.device() != self.device || arena.device() != self.device || !slot.is_of(&self.gauge) {
            return Err(failed("the slot, the stream and the arena are not of one device"));
        }
        if arena.host_visible() && !transfers.is_empty() {
            return Err(failed("the host sees the destination, which is to be filled in place"));
        }
        let copies = merged(arena, transfers)?;
        let start = Instant::now();
        let result = slot.enqueue(stream, &copies);
        self.counters.enqueue += start.elapsed();
        self.ring.push_back(slot);
        result?;
        self.counters.copies += copies.len();
        let bytes = copies.iter().map(|(_, dst)| dst.len() as u64).sum::<u64>();
        self.counters.bytes += bytes;
        self.window.get_or_insert((start, 0)).1 += bytes;
        Ok(copies.len())
    }

    /// Waits until all copies have run. Until then the pool keeps their destinations allocated.
    ///
    /// # Errors
    /// What the device says of them. All slots are waited for, whatever one of them says.
    pub fn drain(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut first = Ok(());
        for slot in &mut self.ring {
            let waited = slot.wait();
            first = first.and(waited);
        }
        self.counters.slot_wait += start.elapsed();
        if let Some((first_copy, bytes)) = self.window.take() {
            self.counters.copying += first_copy.elapsed();
            self.counters.timed_bytes += bytes;
        }
        // Of these nothing will ever be known; their memory is kept, and the ring goes on without them.
        self.ring.retain(|slot| !slot.is_unknown());
        first
    }

    /// What was done since this was last called. Copies that nobody has waited for by now are not timed.
    pub fn take_counters(&mut self) -> StagingCounters {
        self.window = None;
        let pinned_peak = self.gauge.peak.load(Ordering::Relaxed);
        StagingCounters { pinned_peak, ..std::mem::take(&mut self.counters) }
    }
}

/// The transfers as ranges of the arena's chunks, those that follow one another on both sides as one.
fn merged(arena: &WeightArena, transfers: &[Transfer]) -> Result<Vec<(usize, Slice)>> {
    let mut copies: Vec<(usize, Slice)> = Vec::with_capacity(transfers.len());
    for transfer in transfers.iter().filter(|t| t.len > 0) {
        let dst = arena.slice(transfer.item, transfer.offset, transfer.len)?;
        if let Some((src, last)) = copies.last_mut()
            && last.buffer().device_addr() == dst.buffer().device_addr()
            && last.offset() + last.len() == dst.offset()
            && *src + last.len() == transfer.src
        {
            *last = last.buffer().slice(last.offset(), last.len() + dst.len())?;
            continue;
        }
        copies.push((transfer.src, dst));
    }
    Ok(copies)
}

impl std::fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagingPool({} slots, {} bytes pinned)", self.gauge.slots(), self.pinned_bytes())
    }
}

#[cfg(test)]
mod tests;
