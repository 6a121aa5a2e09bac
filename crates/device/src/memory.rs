use std::{fmt, ptr::NonNull, sync::Arc};

use crate::{
    DeviceError, DeviceId, Result,
    backend::{Backend, RawMemory},
};

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The device's own memory; on the CPU, host memory.
    Device,
    /// Host memory that the device copies from and to without a bounce buffer.
    Pinned,
    /// Host memory that the device's kernels read and write directly (the arena of an APU).
    Mapped,
}

impl MemoryKind {
    /// The name used in plans and errors.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryKind::Device => "device",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Mapped => "mapped",
        }
    }
}

struct Inner {
    backend: Arc<dyn Backend>,
    raw: RawMemory,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `raw` came from this backend's `alloc`, and this is the only owner: it is freed once, here.
        unsafe { self.backend.free(&self.raw) }
    }
}

/// Memory on a device or memory that a device copies from. Cloning shares it; the last clone frees it.
///
/// A `Buffer` says nothing about who reads or writes when: that order belongs to the [`crate::Stream`], and
/// whoever drops the last clone must know that no work on a stream still uses it.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

impl Buffer {
    pub(crate) fn new(backend: Arc<dyn Backend>, raw: RawMemory) -> Self {
        Buffer { inner: Arc::new(Inner { backend, raw }) }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.inner.raw.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lives.
    pub fn kind(&self) -> MemoryKind {
        self.inner.raw.kind
    }

    /// The device it was allocated for.
    pub fn device(&self) -> DeviceId {
        self.inner.backend.caps().id
    }

    /// The address by which the device's kernels see it.
    pub fn device_addr(&self) -> u64 {
        self.inner.raw.device_addr
    }

    /// The address by which the host sees it, where it does.
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.inner.raw.host
    }

    /// The bytes, to fill in before the buffer is shared: none when a clone or a [`Slice`] of it exists, or
    /// when the host does not see it. Safe, since nobody else can reach the memory meanwhile.
    pub fn host_mut(&mut self) -> Option<&mut [u8]> {
        let inner = Arc::get_mut(&mut self.inner)?;
        let host = inner.raw.host?;
        // SAFETY: the allocation is live and `len` long, backends hand host-visible memory out initialised,
        // and `get_mut` shows that this is the only handle to it.
        Some(unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), inner.raw.len) })
    }

    /// All of it as a slice.
    pub fn whole(&self) -> Slice {
        Slice { buffer: self.clone(), offset: 0, len: self.len() }
    }

    /// `len` bytes from `offset`.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice> {
        self.whole().slice(offset, len)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} {} bytes on {})", self.kind().name(), self.len(), self.device())
    }
}

/// A range of a [`Buffer`], which it keeps alive.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Buffer,
    offset: usize,
    len: usize,
}

impl Slice {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a slice of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte within the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The buffer it is a part of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// `len` bytes from `offset` of this slice.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Slice { buffer: self.buffer.clone(), offset: self.offset + offset, len })
            }
            end => Err(DeviceError::OutOfRange {
                device: self.buffer.device(),
                what: "slice",
                offset,
                end: end.unwrap_or(usize::MAX),
                len: self.len,
            }),
        }
    }

    /// The address by which the device's kernels see the first byte.
    pub fn device_addr(&self) -> u64 {
        self.buffer.device_addr() + self.offset as u64
    }

    /// The address by which the host sees the first byte, where it does.
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        // SAFETY: `offset <= buffer.len()` holds from construction, so the result is within or one past it.
        self.buffer.host_ptr().map(|p| unsafe { p.add(self.offset) })
    }

    /// The bytes as the host sees them, where it does.
    ///
    /// # Safety
    /// While the result lives nothing writes these bytes: no other view, no work on a stream.
    pub unsafe fn host_bytes(&self) -> Option<&[u8]> {
        let ptr = self.host_ptr()?;
        // SAFETY: the range is within one live allocation, and the caller promises that nobody writes it.
        Some(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), self.len) })
    }

    /// The bytes as the host sees them, to write.
    ///
    /// # Safety
    /// While the result lives nothing else reads or writes these bytes: no other view, no work on a stream.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn host_bytes_mut(&self) -> Option<&mut [u8]> {
        let ptr = self.host_ptr()?;
        // SAFETY: the range is within one live allocation, and the caller promises to be alone with it.
        Some(unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), self.len) })
    }
}
