//! Streams, events, kernels and graphs around those of the inner device.

use std::sync::Arc;

use super::{Call, Held};
use crate::{
    DeviceError, KernelResources, LaunchConfig, Result, Slice,
    backend::{EventBackend, GraphBackend, KernelBackend, StreamBackend},
};

#[derive(Debug)]
pub(super) struct FaultyStream(pub(super) Held<Arc<dyn StreamBackend>>);

#[derive(Debug)]
pub(super) struct FaultyEvent(pub(super) Held<Box<dyn EventBackend>>);

#[derive(Debug)]
pub(super) struct FaultyKernel(pub(super) Held<Box<dyn KernelBackend>>);

#[derive(Debug)]
struct FaultyGraph(Held<Box<dyn GraphBackend>>);

impl FaultyStream {
    fn event<'e>(&self, event: &'e dyn EventBackend) -> &'e dyn EventBackend {
        // What is not of this device the inner one refuses.
        event.as_any().downcast_ref::<FaultyEvent>().map_or(event, |event| event.0.inner.as_ref())
    }
}

impl StreamBackend for FaultyStream {
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        self.0.shared.call(Call::Copy)?;
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.copy(dst, src) }
    }

    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        self.0.shared.call(Call::Upload)?;
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.upload(dst, src) }
    }

    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        self.0.shared.call(Call::Download)?;
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.download(dst, src) }
    }

    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        self.0.shared.call(Call::Fill)?;
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.fill(dst, byte) }
    }

    unsafe fn launch(&self, kernel: &dyn KernelBackend, config: &LaunchConfig, args: &[u8]) -> Result<()> {
        self.0.shared.call(Call::Launch)?;
        let inner =
            kernel.as_any().downcast_ref::<FaultyKernel>().map_or(kernel, |kernel| kernel.0.inner.as_ref());
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.launch(inner, config, args) }
    }

    fn record(&self, event: &dyn EventBackend) -> Result<()> {
        self.0.shared.call(Call::Record)?;
        self.0.inner.record(self.event(event))
    }

    fn wait(&self, event: &dyn EventBackend) -> Result<()> {
        self.0.shared.call(Call::StreamWait)?;
        self.0.inner.wait(self.event(event))
    }

    fn synchronize(&self) -> Result<()> {
        self.0.shared.call(Call::Synchronize)?;
        self.0.inner.synchronize()
    }

    fn begin_capture(&self) -> Result<()> {
        self.0.shared.call(Call::BeginCapture)?;
        self.0.inner.begin_capture()
    }

    fn end_capture(&self) -> Result<Box<dyn GraphBackend>> {
        let failed = self.0.shared.call(Call::EndCapture);
        let graph = self.0.inner.end_capture();
        failed?;
        let shared = self.0.shared.clone();
        let _counted = shared.objects.clone();
        Ok(Box::new(FaultyGraph(Held { inner: graph?, shared, _counted })))
    }

    fn no_graphs(&self) -> DeviceError {
        self.0.inner.no_graphs()
    }

    fn no_kernels(&self) -> DeviceError {
        self.0.inner.no_kernels()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl EventBackend for FaultyEvent {
    fn is_complete(&self) -> Result<bool> {
        self.0.shared.call(Call::WaitEvent)?;
        self.0.inner.is_complete()
    }

    fn synchronize(&self) -> Result<()> {
        self.0.shared.call(Call::WaitEvent)?;
        self.0.inner.synchronize()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl KernelBackend for FaultyKernel {
    fn resources(&self) -> KernelResources {
        self.0.inner.resources()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl GraphBackend for FaultyGraph {
    unsafe fn launch(&self, stream: &dyn StreamBackend) -> Result<()> {
        self.0.shared.call(Call::LaunchGraph)?;
        let inner =
            stream.as_any().downcast_ref::<FaultyStream>().map_or(stream, |stream| stream.0.inner.as_ref());
        // SAFETY: the caller's promise.
        unsafe { self.0.inner.launch(inner) }
    }
}
