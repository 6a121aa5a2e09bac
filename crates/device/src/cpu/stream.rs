use crate::{
    DeviceError, DeviceId, Result, Slice,
    backend::{EventBackend, StreamBackend},
};

/// Work runs when it is handed over, so every event is complete when it is recorded.
#[derive(Debug)]
pub(super) struct CpuStream {
    pub(super) device: DeviceId,
}

#[derive(Debug)]
pub(super) struct CpuEvent;

impl CpuStream {
    fn host(&self, slice: &Slice, call: &'static str) -> Result<*mut u8> {
        slice.host_ptr().map(|p| p.as_ptr()).ok_or_else(|| DeviceError::Failed {
            device: self.device,
            call,
            reason: format!("the host cannot see {:?}", slice.buffer()),
        })
    }
}

impl StreamBackend for CpuStream {
    unsafe fn copy(&self, dst: &Slice, src: &Slice) -> Result<()> {
        let (to, from) = (self.host(dst, "copy")?, self.host(src, "copy")?);
        // SAFETY: both ranges are live and `src.len()` long (checked by `Stream`). `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, src.len()) }
        Ok(())
    }

    unsafe fn upload(&self, dst: &Slice, src: &[u8]) -> Result<()> {
        let to = self.host(dst, "upload")?;
        // SAFETY: `dst` is live and as long as `src` (checked by `Stream`); nobody else touches it.
        unsafe { std::ptr::copy(src.as_ptr(), to, src.len()) }
        Ok(())
    }

    unsafe fn download(&self, dst: &mut [u8], src: &Slice) -> Result<()> {
        let from = self.host(src, "download")?;
        // SAFETY: `src` is live and as long as `dst` (checked by `Stream`); nobody writes it.
        unsafe { std::ptr::copy(from, dst.as_mut_ptr(), dst.len()) }
        Ok(())
    }

    unsafe fn fill(&self, dst: &Slice, byte: u8) -> Result<()> {
        let to = self.host(dst, "fill")?;
        // SAFETY: `dst` is live; nobody else touches it.
        unsafe { std::ptr::write_bytes(to, byte, dst.len()) }
        Ok(())
    }

    fn record(&self, _: &dyn EventBackend) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: &dyn EventBackend) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn no_graphs(&self) -> DeviceError {
        DeviceError::Unsupported { device: self.device, what: "captured graphs" }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl EventBackend for CpuEvent {
    fn is_complete(&self) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
