use std::fmt;

use crate::{
    DeviceError, DeviceId, Kernel, LaunchConfig, Result, Slice,
    backend::{EventBackend, GraphBackend, StreamBackend},
};

/// An ordered queue of work on one device.
pub struct Stream {
    device: DeviceId,
    backend: Box<dyn StreamBackend>,
}

impl Stream {
    pub(crate) fn new(device: DeviceId, backend: Box<dyn StreamBackend>) -> Self {
        Stream { device, backend }
    }

    /// The device it belongs to.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The backend's own stream, for launch code.
    pub fn backend(&self) -> &dyn StreamBackend {
        self.backend.as_ref()
    }

    /// Copies `src` to `dst` once all earlier work of this stream is done. On a GPU it returns before.
    ///
    /// # Safety
    /// Both ranges stay allocated until the copy has run, and nothing else touches them meanwhile.
    pub unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        self.same_len("copy", dst.len(), src.len())?;
        // SAFETY: the caller's promise; the lengths agree.
        unsafe { self.backend.copy(dst, src) }
    }

    /// Copies host bytes in; when it returns, `src` may be reused.
    ///
    /// # Safety
    /// Nothing else touches `dst` meanwhile.
    pub unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        self.same_len("upload", dst.len(), src.len())?;
        // SAFETY: the caller's promise; the lengths agree.
        unsafe { self.backend.upload(dst, src) }
    }

    /// Waits for all earlier work of this stream, then copies out.
    ///
    /// # Safety
    /// Nothing writes `src` meanwhile.
    pub unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        self.same_len("download", dst.len(), src.len())?;
        // SAFETY: the caller's promise; the lengths agree.
        unsafe { self.backend.download(dst, src) }
    }

    /// Sets every byte of `dst`.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    pub unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.fill(dst, byte) }
    }

    /// Launches a kernel behind all earlier work of this stream; `args` is the one struct that it takes.
    ///
    /// # Safety
    /// The struct is the one that the kernel expects, and what its addresses point to stays allocated, and is used by
    /// nobody else against the kernel's use, until it has run. The kernel itself must not be dropped before.
    pub unsafe fn launch_kernel(&self, kernel: &Kernel, config: &LaunchConfig, args: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.backend.launch(kernel.backend.as_ref(), config, args) }
    }

    /// Marks `event` as complete once all earlier work of this stream is done.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.backend.record(event.backend.as_ref())
    }

    /// Later work of this stream waits for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.backend.wait(event.backend.as_ref())
    }

    /// Blocks until all work of this stream is done, and reports errors of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// Starts to record work in place of running it. The CPU answers `Unsupported`.
    pub fn begin_capture(&self) -> Result<()> {
        self.backend.begin_capture()
    }

    /// Ends the recording.
    pub fn end_capture(&self) -> Result<Graph> {
        Ok(Graph { backend: self.backend.end_capture()? })
    }

    /// Runs a recording.
    ///
    /// # Safety
    /// Every buffer that the recording used is still allocated.
    pub unsafe fn launch(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { graph.backend.launch(self.backend.as_ref()) }
    }

    fn same_len(&self, what: &'static str, dst: usize, src: usize) -> Result<()> {
        if dst == src {
            return Ok(());
        }
        Err(DeviceError::OutOfRange { device: self.device, what, offset: 0, end: src, len: dst })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.device)
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    backend: Box<dyn EventBackend>,
}

impl Event {
    pub(crate) fn new(backend: Box<dyn EventBackend>) -> Self {
        Event { backend }
    }

    /// Whether the work before it is done.
    pub fn is_complete(&self) -> Result<bool> {
        self.backend.is_complete()
    }

    /// Blocks until it is.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }
}

/// A recorded sequence of work, launched as one.
#[derive(Debug)]
pub struct Graph {
    backend: Box<dyn GraphBackend>,
}
