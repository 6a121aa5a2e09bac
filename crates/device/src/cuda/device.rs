use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    result,
    sys::{self, CUdevice_attribute as Attribute},
};

use super::{
    compile,
    error::{failed, unavailable, words},
    memory,
    module::CudaKernel,
    stream::{CudaEvent, CudaStream},
};
use crate::{
    DeviceCaps, DeviceId, DeviceKind, KernelSource, MemoryInfo, MemoryKind, Result,
    backend::{Backend, EventBackend, KernelBackend, RawMemory, StreamBackend},
};

/// The driver must be at least this new: CUDA 12.0.
const LEAST_DRIVER: i32 = 12000;

const ADVICE: &str = "Install NVIDIA's driver, version 525 or later, or take --device cpu";

/// The primary context of a device, for as long as anything on it lives.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: DeviceId,
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be made current on any thread, and on several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes it the calling thread's current one, which every call of the driver needs.
    pub(super) fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained until `self` is dropped.
        unsafe { result::ctx::set_current(self.raw) }.map_err(|e| failed(self.id, "cuCtxSetCurrent", e))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; everything that was made in it holds an `Arc` of it.
        if let Err(error) = unsafe { result::primary_ctx::release(self.device) } {
            tracing::debug!("{}: cuDevicePrimaryCtxRelease: {}", self.id, words(error));
        }
    }
}

/// A GPU.
#[derive(Debug)]
pub struct CudaBackend {
    caps: DeviceCaps,
    context: Arc<Context>,
}

/// Opens the driver, once a process.
fn driver() -> Result<()> {
    static OPENED: OnceLock<Result<()>> = OnceLock::new();
    let open = || {
        // SAFETY: opens the driver's library and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable("the driver's library (libcuda.so.1) is not there", ADVICE));
        }
        result::init()
            .map_err(|e| unavailable(format!("the driver does not start: {}", words(e)), ADVICE))?;
        let mut version = 0;
        // SAFETY: a pointer to an integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|e| unavailable(format!("the driver has no version: {}", words(e)), ADVICE))?;
        if version < LEAST_DRIVER {
            let reason = format!(
                "the driver is for CUDA {}.{}, and 12.0 is the least",
                version / 1000,
                version % 1000 / 10
            );
            return Err(unavailable(reason, ADVICE));
        }
        Ok(())
    };
    OPENED.get_or_init(open).clone()
}

/// How many GPUs the driver has.
pub fn count() -> Result<usize> {
    driver()?;
    let count = result::device::get_count().map_err(|e| unavailable(words(e), ADVICE))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl CudaBackend {
    /// Opens a GPU by its number.
    ///
    /// # Errors
    /// [`crate::DeviceError::Unavailable`] without a driver, a compiler, or a GPU of that number.
    pub fn new(ordinal: usize) -> Result<Self> {
        let count = count()?;
        if ordinal >= count {
            let reason = match count {
                0 => "the driver finds no GPU".to_owned(),
                _ => format!("there is no GPU number {ordinal}: the driver finds {count}"),
            };
            return Err(unavailable(reason, "Look at `nvidia-smi`, or take --device cpu"));
        }
        let id = DeviceId { kind: DeviceKind::Cuda, ordinal };
        let device = result::device::get(ordinal as i32).map_err(|e| failed(id, "cuDeviceGet", e))?;
        // SAFETY: the device is one that the driver just gave.
        let raw = unsafe { result::primary_ctx::retain(device) }
            .map_err(|e| failed(id, "cuDevicePrimaryCtxRetain", e))?;
        let context = Arc::new(Context { id, device, raw });
        context.bind()?;
        let attribute = |which| {
            // SAFETY: as above.
            unsafe { result::device::get_attribute(device, which) }
                .map_err(|e| failed(id, "cuDeviceGetAttribute", e))
        };
        let (major, minor) = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let mut features = Vec::new();
        for (least, feature) in
            [((8, 0), "mma_bf16"), ((8, 0), "cp_async"), ((9, 0), "overlap"), ((9, 0), "cluster")]
        {
            if (major, minor) >= least {
                features.push(feature.to_owned());
            }
        }
        // wgmma and its kin belong to this one architecture, and not to later ones.
        if major == 9 {
            features.push("wgmma".to_owned());
        }
        let caps = DeviceCaps {
            id,
            name: result::device::get_name(device).map_err(|e| failed(id, "cuDeviceGetName", e))?,
            arch: format!("sm_{major}{minor}"),
            features,
            wave_width: attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)? as u32,
            integrated: attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        };
        if major < 8 {
            let reason = format!("{} is {}, and the kernels need sm_80 or later", caps.name, caps.arch);
            return Err(unavailable(reason, "Take --device cpu"));
        }
        // Asked for now, so that a machine without it hears of it before a checkpoint is read.
        compile::compiler()?;
        Ok(CudaBackend { caps, context })
    }
}

impl Backend for CudaBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        memory::info(&self.context)
    }

    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory> {
        memory::alloc(&self.context, len, kind)
    }

    unsafe fn free(&self, raw: &RawMemory) {
        // SAFETY: the caller's promise.
        unsafe { memory::free(&self.context, raw) }
    }

    fn create_stream(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(CudaStream::new(self.context.clone())?))
    }

    fn create_event(&self) -> Result<Box<dyn EventBackend>> {
        Ok(Box::new(CudaEvent::new(self.context.clone())?))
    }

    fn load_kernel(&self, source: &KernelSource<'_>) -> Result<Box<dyn KernelBackend>> {
        let code = compile::compile(&self.caps, source)?;
        Ok(Box::new(CudaKernel::new(self.context.clone(), &code, source)?))
    }
}
