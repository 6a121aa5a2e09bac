use std::{
    fmt,
    sync::{Arc, Mutex},
};

use crate::{
    Buffer, DeviceCaps, DeviceError, DeviceId, DeviceKind, Event, Kernel, KernelSource, MemoryKind, Result,
    StagingPool, Stream,
    backend::Backend,
    cpu::{CpuBackend, CpuOptions, Team},
    cuda::CudaBackend,
    rocm::{RocmBackend, memory_sources::MemorySources},
};

/// Free and total bytes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be taken.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Who said so: `MemAvailable`, `hipMemGetInfo`, ...
    pub source: &'static str,
}

/// A handle to a device. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
    /// One ring for all clones of the handle, empty until a load asks for it.
    pub(crate) staging: Arc<Mutex<StagingPool>>,
}

impl Device {
    /// The host's processor, with a team of threads of its own.
    pub fn cpu(options: &CpuOptions) -> Result<Self> {
        Ok(Device::from_backend(Arc::new(CpuBackend::new(options)?)))
    }

    /// A GPU of NVIDIA's, by its number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a driver, a compiler, or such a GPU: what to install is in the message.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Device::from_backend(Arc::new(CudaBackend::new(ordinal)?)))
    }

    /// A GPU of AMD's, by its number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a HIP runtime, a compiler, or such a GPU: what to install is in the message.
    pub fn rocm(ordinal: usize) -> Result<Self> {
        Ok(Device::from_backend(Arc::new(RocmBackend::new(ordinal)?)))
    }

    /// Wraps a backend; the way for a backend outside this crate (a fake one in a test) to come in.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        let staging = Arc::new(Mutex::new(StagingPool::new(backend.clone())));
        Device { backend, staging }
    }

    /// What the device is.
    pub fn caps(&self) -> &DeviceCaps {
        self.backend.caps()
    }

    /// Kind and number.
    pub fn id(&self) -> DeviceId {
        self.caps().id
    }

    /// Free and total memory of its own pool.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.backend.memory_info()
    }

    /// Free and total memory of the pool that a kind of memory comes from. Pools may overlap, as on an integrated GPU.
    pub fn pool_info(&self, kind: MemoryKind) -> Result<MemoryInfo> {
        self.backend.pool_info(kind)
    }

    /// What each source says of the memory that the device can use, where there are several that speak of several pools:
    /// those of an AMD GPU.
    pub fn memory_sources(&self) -> Option<MemorySources> {
        self.backend.memory_sources()
    }

    /// Free and total memory of the host, whatever this device is.
    pub fn host_memory() -> MemoryInfo {
        crate::cpu::host_memory()
    }

    /// Takes memory, aligned to 256 bytes, with undefined content. Zero bytes are rounded up to one.
    pub fn alloc(&self, len: usize, kind: MemoryKind) -> Result<Buffer> {
        let raw = self.backend.alloc(len.max(1), kind)?;
        Ok(Buffer::new(self.backend.clone(), raw))
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.id(), self.backend.create_stream()?))
    }

    /// A new event, without timing.
    pub fn event(&self) -> Result<Event> {
        Ok(Event::new(self.backend.create_event()?))
    }

    /// Compiles device code, or finds it compiled on disk, and loads it.
    pub fn kernel(&self, source: &KernelSource<'_>) -> Result<Kernel> {
        Ok(Kernel { device: self.id(), backend: self.backend.load_kernel(source)? })
    }

    /// The team of threads that runs the CPU's kernels; none on a GPU.
    pub fn team(&self) -> Option<&Arc<Team>> {
        self.backend.team()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.id(), self.caps().name)
    }
}

/// A device as a user names it: `auto`, `cpu`, `cuda`, `cuda:1`, `rocm`, `rocm:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best device that can hold the model.
    #[default]
    Auto,
    /// This one, or an error.
    Only(DeviceId),
}

impl std::str::FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || DeviceError::UnknownDevice { given: text.to_owned() };
        let (name, ordinal) = match text.split_once(':') {
            Some((name, number)) => (name, number.parse().map_err(|_| unknown())?),
            None => (text, 0),
        };
        match name {
            "auto" if !text.contains(':') => Ok(DeviceChoice::Auto),
            "cpu" if ordinal == 0 => Ok(DeviceChoice::Only(DeviceId { kind: DeviceKind::Cpu, ordinal })),
            "cuda" => Ok(DeviceChoice::Only(DeviceId { kind: DeviceKind::Cuda, ordinal })),
            "rocm" => Ok(DeviceChoice::Only(DeviceId { kind: DeviceKind::Rocm, ordinal })),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<DeviceChoice>) {
        assert_eq!(text.parse::<DeviceChoice>().ok(), expected, "{text}");
    }

    #[test]
    fn device_names() {
        let only = |kind, ordinal| Some(DeviceChoice::Only(DeviceId { kind, ordinal }));
        check("auto", Some(DeviceChoice::Auto));
        check("cpu", only(DeviceKind::Cpu, 0));
        check("cuda", only(DeviceKind::Cuda, 0));
        check("cuda:1", only(DeviceKind::Cuda, 1));
        check("rocm:3", only(DeviceKind::Rocm, 3));
        check("cpu:1", None);
        check("auto:0", None);
        check("cuda:", None);
        check("cuda:x", None);
        check("vulkan", None);
        check("", None);
    }
}
