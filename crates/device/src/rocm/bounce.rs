//! Pinned memory between the host's pageable memory and a stream.
//!
//! What the runtime does with pageable memory in an asynchronous copy has changed from version to version: staged at
//! once, pinned for the time of the copy, or read later. So no pageable address is ever given to it.

use super::{device::Context, memory, sys::hipError_t};
use crate::{DeviceError, MemoryKind, Result, backend::RawMemory};

/// Bytes of the buffer: the inputs of several hundred steps, or the logits of a few rows. Halved where the host lets so
/// much not be pinned, but not below the least.
const BYTES: usize = 2 << 20;
const LEAST_BYTES: usize = 64 << 10;

/// Where each piece begins: whole cache lines.
const ALIGN: usize = 256;

fn take(context: &Context) -> Result<RawMemory> {
    let mut bytes = BYTES;
    loop {
        match memory::alloc(context, bytes, MemoryKind::Pinned) {
            Err(DeviceError::OutOfMemory { .. }) if bytes > LEAST_BYTES => bytes /= 2,
            other => return other,
        }
    }
}

/// One buffer a stream. It is taken with the stream, before a load pins whatever it may. Pieces are handed out one after another; from the start again
/// once the stream has been waited for.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    memory: Option<RawMemory>,
    used: usize,
    /// Whether the stream records in place of running.
    pub(super) capturing: bool,
}

impl Bounce {
    /// Takes the buffer ahead. Where that fails it is tried again when the buffer is needed.
    pub(super) fn ahead(context: &Context) -> Self {
        let memory = take(context).map_err(|error| tracing::debug!("{error}")).ok();
        Bounce { memory, ..Bounce::default() }
    }

    /// Says that no work on the stream uses the buffer any more.
    pub(super) fn reset(&mut self) {
        self.used = 0;
    }

    /// The next piece, of at most `len` bytes: its address and its length, which is zero when the buffer is full. The
    /// piece is the caller's until [`Bounce::reset`].
    pub(super) fn piece(&mut self, context: &Context, len: usize) -> Result<(*mut u8, usize)> {
        let memory = match &self.memory {
            Some(memory) => memory,
            None => self.memory.insert(take(context)?),
        };
        let bytes = memory.len;
        let Some(host) = memory.host else {
            return Err(super::error::failed(context.id, "hipHostMalloc", hipError_t::hipErrorNotSupported));
        };
        let start = self.used.min(bytes);
        let len = len.min(bytes - start);
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
