//! Streams and events of the fake device.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    Call, CopyWork, FakeBackend,
    kernel::{FakeGraph, FakeKernel},
};
use crate::{
    DeviceError, LaunchConfig, Result, Slice,
    backend::{EventBackend, GraphBackend, KernelBackend, StreamBackend},
};

#[derive(Debug)]
pub(super) struct FakeStream {
    pub(super) backend: FakeBackend,
    pub(super) number: u64,
}

impl FakeStream {
    fn run_all(&self) {
        self.backend.state().run(self.number, u64::MAX);
    }
}

impl Drop for FakeStream {
    /// A driver's stream ends its work before it is gone. A device that only loads leaves this out, so that whoever frees
    /// memory under a copy is seen even where the stream went first.
    fn drop(&mut self) {
        if self.backend.options.kernels {
            self.run_all();
        }
    }
}

impl StreamBackend for FakeStream {
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        self.backend.call(Call::Copy)?;
        let mut state = self.backend.state();
        state.numbers += 1;
        let place = |slice: &Slice| (slice.buffer().device_addr(), slice.offset());
        let (stream, number) = (self.number, state.numbers);
        state.work.push_back(CopyWork { stream, number, dst: place(dst), src: place(src), len: src.len() });
        Ok(())
    }

    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        self.backend.call(Call::Upload)?;
        self.run_all();
        let mut state = self.backend.state();
        let place = state.memory.get_mut(&dst.buffer().device_addr());
        match place.and_then(|m| m.bytes.get_mut(dst.offset()..dst.offset() + src.len())) {
            Some(place) => place.copy_from_slice(src),
            None => state.faults.push(format!("an upload to memory that is gone: {dst:?}")),
        }
        Ok(())
    }

    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        self.run_all();
        dst.copy_from_slice(&self.backend.bytes(src));
        Ok(())
    }

    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        self.run_all();
        let mut state = self.backend.state();
        let place = state.memory.get_mut(&dst.buffer().device_addr());
        if let Some(place) = place.and_then(|m| m.bytes.get_mut(dst.offset()..dst.offset() + dst.len())) {
            place.fill(byte);
        }
        Ok(())
    }

    fn record(&self, event: &dyn EventBackend) -> Result<()> {
        self.backend.call(Call::Record)?;
        let number = self.backend.state().numbers;
        if let Some(event) = event.as_any().downcast_ref::<FakeEvent>() {
            *event.after.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.number, number));
            event.seen.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    fn wait(&self, event: &dyn EventBackend) -> Result<()> {
        event.synchronize()
    }

    fn synchronize(&self) -> Result<()> {
        self.backend.call(Call::Synchronize)?;
        self.run_all();
        Ok(())
    }

    unsafe fn launch(&self, kernel: &dyn KernelBackend, _: &LaunchConfig, _: &[u8]) -> Result<()> {
        if kernel.as_any().downcast_ref::<FakeKernel>().is_none() {
            return Err(self.no_kernels());
        }
        self.backend.call(Call::Launch)
    }

    fn begin_capture(&self) -> Result<()> {
        if !self.backend.options.kernels {
            return Err(self.no_graphs());
        }
        self.backend.call(Call::BeginCapture)
    }

    fn end_capture(&self) -> Result<Box<dyn GraphBackend>> {
        if !self.backend.options.kernels {
            return Err(self.no_graphs());
        }
        self.backend.call(Call::EndCapture)?;
        Ok(Box::new(FakeGraph { backend: self.backend.clone() }))
    }

    fn no_graphs(&self) -> DeviceError {
        DeviceError::Unsupported { device: self.backend.caps.id, what: "captured graphs" }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[derive(Debug)]
pub(super) struct FakeEvent {
    pub(super) backend: FakeBackend,
    /// The stream, and the last copy that was handed to it before.
    pub(super) after: Mutex<Option<(u64, u64)>>,
    pub(super) seen: AtomicBool,
}

impl EventBackend for FakeEvent {
    fn is_complete(&self) -> Result<bool> {
        self.backend.call(Call::WaitEvent)?;
        Ok(self.backend.options.events_lie || self.seen.load(Ordering::SeqCst))
    }

    fn synchronize(&self) -> Result<()> {
        self.backend.call(Call::WaitEvent)?;
        if self.backend.options.events_lie {
            return Ok(());
        }
        if let Some((stream, number)) = *self.after.lock().unwrap_or_else(PoisonError::into_inner) {
            self.backend.state().run(stream, number);
        }
        self.seen.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
