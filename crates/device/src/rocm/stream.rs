use std::{
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    bounce::Bounce,
    device::Context,
    error::{failed, words},
    module::RocmKernel,
    result::check,
    sys::{
        hipError_t, hipEvent_t, hipGraphExec_t, hipMemcpyKind, hipStream_t,
        hipStreamCaptureMode as CaptureMode,
    },
};
use crate::{
    DeviceError, LaunchConfig, Result, Slice,
    backend::{EventBackend, GraphBackend, KernelBackend, StreamBackend},
};

/// A stream that the default stream does not wait for.
#[derive(Debug)]
pub(super) struct RocmStream {
    context: Arc<Context>,
    raw: hipStream_t,
    bounce: Mutex<Bounce>,
}

// SAFETY: a handle of the runtime, which may be used from any thread.
unsafe impl Send for RocmStream {}
// SAFETY: as above; the bounce buffer is behind a lock.
unsafe impl Sync for RocmStream {}

impl RocmStream {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        context.bind()?;
        // SAFETY: the device is current.
        let raw = unsafe { context.hip.stream_create() }
            .map_err(|e| failed(context.id, "hipStreamCreateWithFlags", e))?;
        let bounce = Mutex::new(Bounce::ahead(&context));
        Ok(RocmStream { context, raw, bounce })
    }

    fn check(&self, call: &'static str, code: hipError_t) -> Result<()> {
        check(code).map_err(|e| failed(self.context.id, call, e))
    }

    fn event<'e>(&self, event: &'e dyn EventBackend) -> Result<&'e RocmEvent> {
        event.as_any().downcast_ref().ok_or_else(|| foreign(&self.context, "an event"))
    }

    fn bounce(&self) -> MutexGuard<'_, Bounce> {
        self.bounce.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges are memory that the runtime gave out, so that it tells host from device by the address, and stay
    /// allocated until the copy has run; nothing else touches them meanwhile.
    unsafe fn copy_raw(&self, to: u64, from: u64, len: usize) -> Result<()> {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        let kind = hipMemcpyKind::hipMemcpyDefault;
        // SAFETY: the caller's promise.
        self.check("hipMemcpyAsync", unsafe {
            (self.context.hip.hipMemcpyAsync)(to, from, len, kind, self.raw)
        })
    }

    /// Waits, and frees what the stream's copies used of the bounce buffer. Holding it keeps others from taking pieces
    /// between the two.
    fn wait_with(&self, bounce: &mut Bounce) -> Result<()> {
        // SAFETY: the stream is live.
        self.check("hipStreamSynchronize", unsafe { (self.context.hip.hipStreamSynchronize)(self.raw) })?;
        bounce.reset();
        Ok(())
    }
}

fn foreign(context: &Context, what: &str) -> DeviceError {
    let reason = format!("{what} of another runtime");
    DeviceError::Failed { device: context.id, call: "a stream", reason }
}

impl StreamBackend for RocmStream {
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: both ranges are live and of one length (the caller and `Stream`).
        unsafe { self.copy_raw(dst.device_addr(), src.device_addr(), src.len()) }
    }

    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        self.context.bind()?;
        let mut bounce = self.bounce();
        if bounce.capturing {
            // A replay would read what the buffer holds then.
            return Err(DeviceError::Unsupported {
                device: self.context.id,
                what: "uploads while it captures",
            });
        }
        let (mut rest, mut to) = (src, dst.device_addr());
        while !rest.is_empty() {
            let (piece, len) = bounce.piece(&self.context, rest.len())?;
            if len == 0 {
                self.wait_with(&mut bounce)?;
                continue;
            }
            let (now, later) = rest.split_at(len);
            // SAFETY: the piece is `len` long and nobody else's; it is not a part of a Rust object.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), piece, len) };
            // SAFETY: `dst` is live and as long as `src` (checked by `Stream`); the piece is used again only after a wait.
            unsafe { self.copy_raw(to, piece as u64, len) }?;
            (rest, to) = (later, to + len as u64);
        }
        Ok(())
    }

    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        self.context.bind()?;
        let mut bounce = self.bounce();
        self.wait_with(&mut bounce)?;
        let (mut rest, mut from) = (dst, src.device_addr());
        while !rest.is_empty() {
            let (piece, len) = bounce.piece(&self.context, rest.len())?;
            let (now, later) = rest.split_at_mut(len);
            // SAFETY: `src` is live and as long as `dst` (checked by `Stream`); the piece is `len` long.
            unsafe { self.copy_raw(piece as u64, from, len) }?;
            self.wait_with(&mut bounce)?;
            // SAFETY: the copy is done, and the lock keeps the piece ours.
            unsafe { std::ptr::copy_nonoverlapping(piece, now.as_mut_ptr(), len) };
            (rest, from) = (later, from + len as u64);
        }
        Ok(())
    }

    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        let to = dst.device_addr() as *mut c_void;
        // SAFETY: `dst` is live; nobody else touches it.
        let code = unsafe { (self.context.hip.hipMemsetAsync)(to, i32::from(byte), dst.len(), self.raw) };
        self.check("hipMemsetAsync", code)
    }

    unsafe fn launch(&self, kernel: &dyn KernelBackend, config: &LaunchConfig, args: &[u8]) -> Result<()> {
        let kernel: &RocmKernel =
            kernel.as_any().downcast_ref().ok_or_else(|| foreign(&self.context, "a kernel"))?;
        if config.cluster > 1 {
            return Err(DeviceError::Unsupported { device: self.context.id, what: "clusters of blocks" });
        }
        self.context.bind()?;
        kernel.allow_shared(config.shared);
        let ([gx, gy, gz], [bx, by, bz]) = (config.grid, config.block);
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: one parameter, whose size the kernel asserts; the runtime copies it before it returns. What its
        // addresses point to is the caller's promise.
        let code = unsafe {
            (self.context.hip.hipModuleLaunchKernel)(
                kernel.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                config.shared,
                self.raw,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(code).map_err(|e| match failed(self.context.id, "hipModuleLaunchKernel", e) {
            DeviceError::Failed { device, .. } => {
                let (entry, said) = (kernel.entry(), words(e));
                let shape = format!("grid {:?}, block {:?}", config.grid, config.block);
                let reason = format!("{said}: {entry} with {shape}, {} bytes shared", config.shared);
                DeviceError::Failed { device, call: "launching a kernel", reason }
            }
            other => other,
        })
    }

    fn record(&self, event: &dyn EventBackend) -> Result<()> {
        let event = self.event(event)?;
        self.context.bind()?;
        // SAFETY: both are live.
        self.check("hipEventRecord", unsafe { (self.context.hip.hipEventRecord)(event.raw, self.raw) })
    }

    fn wait(&self, event: &dyn EventBackend) -> Result<()> {
        let event = self.event(event)?;
        self.context.bind()?;
        // SAFETY: both are live.
        let code = unsafe { (self.context.hip.hipStreamWaitEvent)(self.raw, event.raw, 0) };
        self.check("hipStreamWaitEvent", code)
    }

    fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        self.wait_with(&mut self.bounce())
    }

    fn begin_capture(&self) -> Result<()> {
        let hip = self.context.hip;
        let Some(begin) = hip.hipStreamBeginCapture.filter(|_| hip.hipGraphInstantiate.is_some()) else {
            return Err(self.no_graphs());
        };
        self.context.bind()?;
        // SAFETY: the stream is live.
        let code = unsafe { begin(self.raw, CaptureMode::hipStreamCaptureModeThreadLocal) };
        self.check("hipStreamBeginCapture", code)?;
        self.bounce().capturing = true;
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn GraphBackend>> {
        self.context.bind()?;
        let (id, hip) = (self.context.id, self.context.hip);
        self.bounce().capturing = false;
        // SAFETY: the stream is live.
        let ended = unsafe { hip.end_capture(self.raw) };
        if ended.is_err() {
            // A stream that still captures cannot be waited for, and what it does would outlive what it uses.
            // SAFETY: the stream is live; a graph that comes of it is destroyed once.
            let again = unsafe { hip.end_capture(self.raw) };
            if let (Ok(graph), Some(destroy)) = (again, hip.hipGraphDestroy)
                && !graph.is_null()
            {
                // SAFETY: as above.
                let _ = unsafe { destroy(graph) };
            }
        }
        let graph = ended.map_err(|e| failed(id, "hipStreamEndCapture", e))?;
        if graph.is_null() {
            let reason = "the capture was invalidated".to_owned();
            return Err(DeviceError::Failed { device: id, call: "hipStreamEndCapture", reason });
        }
        // SAFETY: a whole graph, of which the executable is a copy.
        let made = unsafe { hip.graph_instantiate(graph) };
        if let Some(destroy) = hip.hipGraphDestroy {
            // SAFETY: made above, destroyed once.
            let _ = unsafe { destroy(graph) };
        }
        let raw = made.map_err(|e| failed(id, "hipGraphInstantiate", e))?;
        Ok(Box::new(RocmGraph { context: self.context.clone(), raw }))
    }

    fn no_graphs(&self) -> DeviceError {
        DeviceError::Unsupported { device: self.context.id, what: "captured graphs" }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for RocmStream {
    fn drop(&mut self) {
        // Nothing that the stream still does may outlive what its owner frees next: a wait that fails is tried again. If
        // the device is lost, nothing is done any more.
        let _ = self.synchronize().or_else(|_| self.synchronize());
        // A handle knows its device, so it is given back even where the device cannot be made the current one.
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { (self.context.hip.hipStreamDestroy)(self.raw) };
        let bounce = self.bounce.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream was waited for, or its device is lost, and it is gone.
        unsafe { bounce.free(&self.context) };
    }
}

/// An event without timing.
#[derive(Debug)]
pub(super) struct RocmEvent {
    context: Arc<Context>,
    raw: hipEvent_t,
}

// SAFETY: a handle of the runtime, which may be used from any thread.
unsafe impl Send for RocmEvent {}
// SAFETY: as above.
unsafe impl Sync for RocmEvent {}

impl RocmEvent {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        context.bind()?;
        // SAFETY: the device is current.
        let raw = unsafe { context.hip.event_create() }
            .map_err(|e| failed(context.id, "hipEventCreateWithFlags", e))?;
        Ok(RocmEvent { context, raw })
    }
}

impl EventBackend for RocmEvent {
    fn is_complete(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event is live.
        match check(unsafe { (self.context.hip.hipEventQuery)(self.raw) }) {
            Ok(()) => Ok(true),
            Err(hipError_t::hipErrorNotReady) => Ok(false),
            Err(e) => Err(failed(self.context.id, "hipEventQuery", e)),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event is live.
        check(unsafe { (self.context.hip.hipEventSynchronize)(self.raw) })
            .map_err(|e| failed(self.context.id, "hipEventSynchronize", e))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for RocmEvent {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: created by `new`, destroyed once; the runtime keeps what is pending.
        let _ = unsafe { (self.context.hip.hipEventDestroy)(self.raw) };
    }
}

/// A captured step, ready to run.
#[derive(Debug)]
struct RocmGraph {
    context: Arc<Context>,
    raw: hipGraphExec_t,
}

// SAFETY: a handle of the runtime, which may be used from any thread.
unsafe impl Send for RocmGraph {}
// SAFETY: as above; launches of one graph are ordered by its stream.
unsafe impl Sync for RocmGraph {}

impl GraphBackend for RocmGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let stream: &RocmStream =
            stream.as_any().downcast_ref().ok_or_else(|| foreign(&self.context, "a stream"))?;
        let Some(launch) = self.context.hip.hipGraphLaunch else { return Err(stream.no_graphs()) };
        self.context.bind()?;
        // SAFETY: both are live; the buffers are the caller's promise.
        stream.check("hipGraphLaunch", unsafe { launch(self.raw, stream.raw) })
    }
}

impl Drop for RocmGraph {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.hip.hipGraphExecDestroy
            && self.context.bind().is_ok()
        {
            // SAFETY: instantiated once, destroyed once.
            let _ = unsafe { destroy(self.raw) };
        }
    }
}
