//! Pinned memory between the host's pageable memory and a stream.
//!
//! What the runtime does with pageable memory in an asynchronous copy has changed from version to version: staged at
//! once, pinned for the time of the copy, or read later. So no pageable address is ever given to it.

use super::{device::Context, memory, sys::hipError_t};
use crate::{MemoryKind, Result, backend::RawMemory};

/// Bytes of the buffer: the inputs of several hundred steps, or the logits of a few rows.
const BYTES: usize = 2 << 20;

/// Where each piece begins: whole cache lines.
const ALIGN: usize = 256;

/// One buffer a stream, taken when it is first needed. Pieces are handed out one after another; from the start again
/// once the stream has been waited for.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    memory: Option<RawMemory>,
    used: usize,
    /// Whether the stream records in place of running.
    pub(super) capturing: bool,
}

impl Bounce {
    /// Says that no work on the stream uses the buffer any more.
    pub(super) fn reset(&mut self) {
        self.used = 0;
    }

    /// The next piece, of at most `len` bytes: its address and its length, which is zero when the buffer is full. The
    /// piece is the caller's until [`Bounce::reset`].
    pub(super) fn piece(&mut self, context: &Context, len: usize) -> Result<(*mut u8, usize)> {
        let memory = match &self.memory {
            Some(memory) => memory,
            None => self.memory.insert(memory::alloc(context, BYTES, MemoryKind::Pinned)?),
        };
        let Some(host) = memory.host else {
            return Err(super::error::failed(context.id, "hipHostMalloc", hipError_t::hipErrorNotSupported));
        };
        let start = self.used.min(BYTES);
        let len = len.min(BYTES - start);
        self.used = (start + len).next_multiple_of(ALIGN);
        // SAFETY: `start` is within or one past the allocation.
        Ok((unsafe { host.as_ptr().add(start) }, len))
    }

    /// Gives the buffer back.
    ///
    /// # Safety
    /// No work on the stream uses it any more.
    pub(super) unsafe fn free(&mut self, context: &Context) {
        if let Some(memory) = self.memory.take() {
            // SAFETY: taken by `piece`, given back once; the rest is the caller's promise.
            unsafe { memory::free(context, &memory) }
        }
    }
}
