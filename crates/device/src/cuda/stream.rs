use std::{ffi::c_void, sync::Arc};

use cudarc::driver::{result, sys};

use super::{device::Context, error::failed, module::CudaKernel};
use crate::{
    DeviceError, LaunchConfig, Result, Slice,
    backend::{EventBackend, GraphBackend, KernelBackend, StreamBackend},
};

/// A stream that the default stream does not wait for.
#[derive(Debug)]
pub(super) struct CudaStream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: a handle of the driver, which may be used from any thread that has made the context current.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        context.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| failed(context.id, "cuStreamCreate", e))?;
        Ok(CudaStream { context, raw })
    }

    fn check(&self, call: &'static str, code: sys::CUresult) -> Result<()> {
        code.result().map_err(|e| failed(self.context.id, call, e))
    }

    fn event<'e>(&self, event: &'e dyn EventBackend) -> Result<&'e CudaEvent> {
        event.as_any().downcast_ref().ok_or_else(|| self.foreign("an event"))
    }

    fn foreign(&self, what: &str) -> DeviceError {
        DeviceError::Failed {
            device: self.context.id,
            call: "a stream",
            reason: format!("{what} of another runtime"),
        }
    }

    /// Whether the driver knows an address of the host as pinned, so that a copy from it would not be staged.
    fn is_pinned(&self, host: *const u8) -> bool {
        let mut kind = 0u32;
        let mut which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let mut data = (&raw mut kind).cast::<c_void>();
        // This call, unlike the one for a single attribute, is no error for an address that the driver does not know: it
        // leaves a zero.
        // SAFETY: one attribute, an integer, is written.
        let asked = unsafe { sys::cuPointerGetAttributes(1, &mut which, &mut data, host as u64) };
        asked == sys::CUresult::CUDA_SUCCESS && kind != 0
    }
}

impl StreamBackend for CudaStream {
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both ranges are live and of one length (the caller and `Stream`). With one address space the driver
        // tells host from device by the address.
        let code = unsafe { sys::cuMemcpyAsync(dst.device_addr(), src.device_addr(), src.len(), self.raw) };
        self.check("cuMemcpyAsync", code)
    }

    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: `dst` is live and as long as `src` (checked by `Stream`). The driver stages pageable memory before it
        // returns; pinned memory it would read later, so that is waited for.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(dst.device_addr(), src.as_ptr().cast(), src.len(), self.raw) };
        self.check("cuMemcpyHtoDAsync", code)?;
        if self.is_pinned(src.as_ptr()) { self.synchronize() } else { Ok(()) }
    }

    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        self.context.bind()?;
        if !dst.is_empty() {
            // SAFETY: `src` is live and as long as `dst` (checked by `Stream`), which is borrowed until the wait below.
            let code = unsafe {
                sys::cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src.device_addr(), dst.len(), self.raw)
            };
            // Even after an error nothing may still write to `dst`.
            if let Err(error) = self.check("cuMemcpyDtoHAsync", code) {
                let _ = self.synchronize();
                return Err(error);
            }
        }
        self.synchronize()
    }

    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: `dst` is live; nobody else touches it.
        let code = unsafe { sys::cuMemsetD8Async(dst.device_addr(), byte, dst.len(), self.raw) };
        self.check("cuMemsetD8Async", code)
    }

    unsafe fn launch(&self, kernel: &dyn KernelBackend, config: &LaunchConfig, args: &[u8]) -> Result<()> {
        let kernel: &CudaKernel = kernel.as_any().downcast_ref().ok_or_else(|| self.foreign("a kernel"))?;
        self.context.bind()?;
        kernel.allow_shared(config.shared)?;
        let mut attributes = [const { no_attribute() }; 2];
        let mut count = 0;
        if config.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim.x = config.cluster;
            attributes[count].value.clusterDim.y = 1;
            attributes[count].value.clusterDim.z = 1;
            count += 1;
        }
        if config.overlap {
            attributes[count].id =
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        let launch = sys::CUlaunchConfig {
            gridDimX: config.grid[0],
            gridDimY: config.grid[1],
            gridDimZ: config.grid[2],
            blockDimX: config.block[0],
            blockDimY: config.block[1],
            blockDimZ: config.block[2],
            sharedMemBytes: config.shared,
            hStream: self.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: one parameter, whose size the kernel asserts; the driver copies it before it returns. What its
        // addresses point to is the caller's promise.
        let code = unsafe {
            sys::cuLaunchKernelEx(&launch, kernel.function, params.as_mut_ptr(), std::ptr::null_mut())
        };
        code.result().map_err(|e| match failed(self.context.id, "cuLaunchKernelEx", e) {
            DeviceError::Failed { device, reason, .. } => DeviceError::Failed {
                device,
                call: "launching a kernel",
                reason: format!(
                    "{reason}: {} with grid {:?}, block {:?}, {} bytes shared",
                    kernel.entry(),
                    config.grid,
                    config.block,
                    config.shared
                ),
            },
            other => other,
        })
    }

    fn record(&self, event: &dyn EventBackend) -> Result<()> {
        let event = self.event(event)?;
        self.context.bind()?;
        // SAFETY: both are live.
        unsafe { result::event::record(event.raw, self.raw) }
            .map_err(|e| failed(self.context.id, "cuEventRecord", e))
    }

    fn wait(&self, event: &dyn EventBackend) -> Result<()> {
        let event = self.event(event)?;
        self.context.bind()?;
        // SAFETY: both are live.
        self.check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream is live.
        unsafe { result::stream::synchronize(self.raw) }
            .map_err(|e| failed(self.context.id, "cuStreamSynchronize", e))
    }

    fn begin_capture(&self) -> Result<()> {
        self.context.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        unsafe { result::stream::begin_capture(self.raw, mode) }
            .map_err(|e| failed(self.context.id, "cuStreamBeginCapture", e))
    }

    fn end_capture(&self) -> Result<Box<dyn GraphBackend>> {
        self.context.bind()?;
        let id = self.context.id;
        // SAFETY: the stream is live.
        let graph = unsafe { result::stream::end_capture(self.raw) }
            .map_err(|e| failed(id, "cuStreamEndCapture", e))?;
        if graph.is_null() {
            return Err(DeviceError::Failed {
                device: id,
                call: "cuStreamEndCapture",
                reason: "the capture was invalidated".to_owned(),
            });
        }
        let mut exec = std::ptr::null_mut();
        // SAFETY: a whole graph, of which the executable is a copy.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }.result();
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::graph::destroy(graph) };
        made.map_err(|e| failed(id, "cuGraphInstantiate", e))?;
        Ok(Box::new(CudaGraph { context: self.context.clone(), raw: exec }))
    }

    fn no_graphs(&self) -> DeviceError {
        DeviceError::Unsupported { device: self.context.id, what: "captured graphs" }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// An attribute of zeros, to be filled in.
const fn no_attribute() -> sys::CUlaunchAttribute {
    // SAFETY: integers and arrays of them, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // Nothing that the stream still does may outlive what its owner frees next.
            let _ = self.synchronize();
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// An event without timing.
#[derive(Debug)]
pub(super) struct CudaEvent {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: a handle of the driver, which may be used from any thread that has made the context current.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        context.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|e| failed(context.id, "cuEventCreate", e))?;
        Ok(CudaEvent { context, raw })
    }
}

impl EventBackend for CudaEvent {
    fn is_complete(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event is live.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(failed(self.context.id, "cuEventQuery", e)),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event is live.
        unsafe { result::event::synchronize(self.raw) }
            .map_err(|e| failed(self.context.id, "cuEventSynchronize", e))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver keeps what is pending.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// A captured step, ready to run.
#[derive(Debug)]
struct CudaGraph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, which may be used from any thread that has made the context current.
unsafe impl Send for CudaGraph {}
// SAFETY: as above; launches of one graph are ordered by its stream.
unsafe impl Sync for CudaGraph {}

impl GraphBackend for CudaGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        let Some(stream) = stream.as_any().downcast_ref::<CudaStream>() else {
            return Err(DeviceError::Failed {
                device: self.context.id,
                call: "launching a graph",
                reason: "a stream of another runtime".to_owned(),
            });
        };
        self.context.bind()?;
        // SAFETY: both are live; the buffers are the caller's promise.
        unsafe { result::graph::launch(self.raw, stream.raw) }
            .map_err(|e| failed(self.context.id, "cuGraphLaunch", e))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated once, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}
