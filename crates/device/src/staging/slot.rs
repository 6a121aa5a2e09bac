//! One slot: its memory, its event, and who holds what while copies are under way.

use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{Buffer, DeviceError, DeviceId, Event, Result, Slice, Stream};

/// Slots and pinned bytes of a ring, counted where the memory is taken and given back.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    slots: AtomicUsize,
    pub(super) pinned: AtomicU64,
    pub(super) peak: AtomicU64,
}

impl Gauge {
    pub(super) fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }
}

/// The memory of a slot, shared by the slot and its parts.
pub(super) struct SlotMemory {
    host: NonNull<u8>,
    len: usize,
    /// The owner of `host`: pinned memory, or else the vector.
    pinned: Option<Buffer>,
    _pageable: Vec<u8>,
    device: DeviceId,
    gauge: Arc<Gauge>,
}

// SAFETY: `host` is the address of memory that this owns, and only a `SlotPart` or an exclusive slot goes through it.
unsafe impl Send for SlotMemory {}
// SAFETY: as above; shared access to this gives nobody access to the bytes.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    pub(super) fn pinned(buffer: Buffer, gauge: Arc<Gauge>) -> Result<Self> {
        let device = buffer.device();
        let host = buffer.host_ptr().ok_or(DeviceError::Failed {
            device,
            call: "pin",
            reason: "the host does not see the pinned memory".to_owned(),
        })?;
        let len = buffer.len();
        gauge.slots.fetch_add(1, Ordering::Relaxed);
        let now = gauge.pinned.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
        gauge.peak.fetch_max(now, Ordering::Relaxed);
        Ok(SlotMemory { host, len, pinned: Some(buffer), _pageable: Vec::new(), device, gauge })
    }

    pub(super) fn pageable(device: DeviceId, len: usize, gauge: Arc<Gauge>) -> Result<Self> {
        let mut bytes: Vec<u8> = Vec::new();
        let refused = DeviceError::OutOfMemory { device, pool: "host", asked: len, available: None };
        bytes.try_reserve_exact(len).map_err(|_| refused.clone())?;
        bytes.resize(len, 0);
        let host = NonNull::new(bytes.as_mut_ptr()).ok_or(refused)?;
        gauge.slots.fetch_add(1, Ordering::Relaxed);
        Ok(SlotMemory { host, len, pinned: None, _pageable: bytes, device, gauge })
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        self.gauge.slots.fetch_sub(1, Ordering::Relaxed);
        if self.pinned.is_some() {
            self.gauge.pinned.fetch_sub(self.len as u64, Ordering::Relaxed);
        }
    }
}

/// Whether copies from a slot may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// None are.
    Free,
    /// The event tells.
    Copying,
    /// Nothing tells: neither the event nor the stream answered. Its memory is never given back.
    Unknown,
}

/// A slot that is out of its ring, to be filled and submitted.
pub struct StagingSlot {
    memory: Arc<SlotMemory>,
    event: Event,
    state: State,
    /// The destinations of the copies under way, which must not be freed meanwhile.
    held: Vec<Buffer>,
    used: usize,
}

impl StagingSlot {
    pub(super) fn new(memory: SlotMemory, event: Event) -> Self {
        StagingSlot { memory: Arc::new(memory), event, state: State::Free, held: Vec::new(), used: 0 }
    }

    pub(super) fn is_of(&self, gauge: &Arc<Gauge>) -> bool {
        Arc::ptr_eq(&self.memory.gauge, gauge)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether nothing was carved yet.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes that can still be carved.
    pub fn room(&self) -> usize {
        self.len() - self.used
    }

    /// Whether it is of pinned memory.
    pub fn is_pinned(&self) -> bool {
        self.memory.pinned.is_some()
    }

    /// Skips to the next multiple of `align` and says where that is. At the end of the slot it stays.
    pub fn align(&mut self, align: usize) -> usize {
        self.used = self.used.next_multiple_of(align.max(1)).min(self.len());
        self.used
    }

    /// The next `len` bytes, to be filled by whoever gets them, on any thread; none where they do not fit. What they
    /// hold is left over from earlier copies.
    pub fn carve(&mut self, len: usize) -> Option<SlotPart> {
        let offset = self.used;
        self.used = offset.checked_add(len).filter(|&end| end <= self.len())?;
        Some(SlotPart { memory: self.memory.clone(), offset, len })
    }

    /// Whether its copies have run.
    pub(super) fn is_free(&self) -> Result<bool> {
        match self.state {
            State::Free => Ok(true),
            State::Copying => self.event.is_complete(),
            State::Unknown => Ok(false),
        }
    }

    /// Whether nothing tells about its copies.
    pub(super) fn is_unknown(&self) -> bool {
        self.state == State::Unknown
    }

    /// Waits for its copies; then it can be filled again.
    pub(super) fn wait(&mut self) -> Result<()> {
        match self.state {
            State::Free => {}
            State::Copying => self.event.synchronize()?,
            State::Unknown => {
                return Err(self.failed("nothing tells whether the copies of a staging slot have run"));
            }
        }
        self.state = State::Free;
        self.held.clear();
        self.alone()?;
        self.used = 0;
        Ok(())
    }

    /// Hands the copies and then the event to the stream.
    pub(super) fn enqueue(&mut self, stream: &Stream, copies: &[(usize, Slice)]) -> Result<()> {
        self.alone()?;
        for (src, dst) in copies {
            if src.checked_add(dst.len()).is_none_or(|end| end > self.len()) {
                let (device, len) = (self.memory.device, self.len());
                let end = src.saturating_add(dst.len());
                return Err(DeviceError::OutOfRange { device, what: "staging slot", offset: *src, end, len });
            }
        }
        for (_, dst) in copies {
            if self.held.last().is_none_or(|last| last.device_addr() != dst.buffer().device_addr()) {
                self.held.push(dst.buffer().clone());
            }
        }
        // From here on a copy may be under way, so every way out ends with the event recorded or a wait.
        self.state = State::Unknown;
        let done = copies.iter().try_for_each(|(src, dst)| self.copy(stream, *src, dst));
        if let Err(error) = done.and_then(|()| stream.record(&self.event)) {
            match stream.synchronize() {
                // A lost device runs nothing any more.
                Ok(()) | Err(DeviceError::Lost { .. }) => self.state = State::Free,
                Err(_) => {}
            }
            return Err(error);
        }
        self.state = State::Copying;
        Ok(())
    }

    /// Refuses while a part of the slot is held: bytes would be carved twice, or copied while they are written.
    fn alone(&self) -> Result<()> {
        if Arc::strong_count(&self.memory) != 1 {
            return Err(self.failed("a part of the staging slot is still held"));
        }
        // What parts on other threads wrote happened before they were dropped.
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(())
    }

    fn copy(&self, stream: &Stream, src: usize, dst: &Slice) -> Result<()> {
        if let Some(buffer) = &self.memory.pinned {
            let src = buffer.slice(src, dst.len())?;
            // SAFETY: both ranges stay allocated until the copy has run: the slot keeps its own memory and, in
            // `held`, the destination's, until its event is complete or the stream was waited for, and leaks both
            // where neither can be known. Nothing else touches the source meanwhile: no part of the slot is out
            // (`alone`), and none is carved before `wait`. Nothing else touches the destination: it is a
            // range of an arena that was borrowed mutably to get here, whose memory the host does not see, and
            // every reader of it is an unsafe call that promises to be ordered after this stream's copies.
            unsafe { stream.copy(dst, &src) }
        } else {
            // SAFETY: the range was checked against `len`, the memory is initialised, and no part of it is out.
            let bytes = unsafe { std::slice::from_raw_parts(self.memory.host.as_ptr().add(src), dst.len()) };
            // SAFETY: as for `copy` above; `bytes` may be reused once this returns.
            unsafe { stream.upload(dst, bytes) }
        }
    }

    fn failed(&self, reason: &str) -> DeviceError {
        DeviceError::Failed { device: self.memory.device, call: "staging", reason: reason.to_owned() }
    }
}

impl Drop for StagingSlot {
    fn drop(&mut self) {
        let free = match self.state {
            State::Free => true,
            State::Copying => matches!(self.event.synchronize(), Ok(()) | Err(DeviceError::Lost { .. })),
            State::Unknown => false,
        };
        if !free {
            // Freed memory that a copy still writes to would be somebody else's by then.
            tracing::warn!(
                "{}: copies of a staging slot may be under way; its memory is kept",
                self.memory.device
            );
            std::mem::forget(self.memory.clone());
            std::mem::forget(std::mem::take(&mut self.held));
        }
    }
}

impl std::fmt::Debug for StagingSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagingSlot({} of {} bytes used, {:?})", self.used, self.len(), self.state)
    }
}

/// Bytes of a slot, for one thread to fill. A slot can be submitted once all its parts are dropped.
pub struct SlotPart {
    memory: Arc<SlotMemory>,
    offset: usize,
    len: usize,
}

impl Deref for SlotPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is within the slot's memory, which is initialised and which this keeps alive. A slot
        // carves each byte once between two waits, so no other part has these bytes, and no copy runs while a part
        // lives: `submit` refuses, and a slot is only carved after the wait for its last copies.
        unsafe { std::slice::from_raw_parts(self.memory.host.as_ptr().add(self.offset), self.len) }
    }
}

impl DerefMut for SlotPart {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and this part is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.host.as_ptr().add(self.offset), self.len) }
    }
}

impl std::fmt::Debug for SlotPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotPart({} bytes from {})", self.len, self.offset)
    }
}
