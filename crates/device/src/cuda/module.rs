use std::{
    ffi::CString,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use cudarc::driver::{
    result,
    sys::{self, CUfunction_attribute as Attribute},
};

use super::{device::Context, error::failed};
use crate::{DeviceError, KernelResources, KernelSource, Result, backend::KernelBackend};

/// Shared memory that a block may take without being asked for: what the kernel declares and what a launch adds.
const PLAIN_SHARED: u32 = 48 << 10;

/// A function of a loaded module.
#[derive(Debug)]
pub(super) struct CudaKernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    pub(super) function: sys::CUfunction,
    resources: KernelResources,
    /// Dynamic shared memory that has been allowed so far.
    allowed_shared: AtomicU32,
    entry: String,
}

// SAFETY: handles of the driver, which may be used from any thread that has made the context current.
unsafe impl Send for CudaKernel {}
// SAFETY: as above.
unsafe impl Sync for CudaKernel {}

impl CudaKernel {
    pub(super) fn new(context: Arc<Context>, code: &[u8], source: &KernelSource<'_>) -> Result<Self> {
        context.bind()?;
        let id = context.id;
        let name = CString::new(source.entry).map_err(|_| DeviceError::Failed {
            device: id,
            call: "cuModuleGetFunction",
            reason: "a zero byte in the name of a kernel".to_owned(),
        })?;
        // SAFETY: a whole ELF image made by the compiler; the driver copies it.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }
            .map_err(|e| failed(id, "cuModuleLoadData", e))?;
        // SAFETY: the module is loaded.
        let function = match unsafe { result::module::get_function(module, name) } {
            Ok(function) => function,
            Err(error) => {
                // SAFETY: loaded above, and nothing uses it.
                let _ = unsafe { result::module::unload(module) };
                return Err(failed(id, "cuModuleGetFunction", error));
            }
        };
        let attribute = |which| {
            // SAFETY: the function is of a loaded module.
            unsafe { result::function::get_function_attribute(function, which) }
                .map_or(0, |n| n.max(0) as u32)
        };
        let resources = KernelResources {
            registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS),
            shared: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            local: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
        };
        let allowed_shared = AtomicU32::new(PLAIN_SHARED.saturating_sub(resources.shared));
        Ok(CudaKernel {
            context,
            module,
            function,
            resources,
            allowed_shared,
            entry: source.entry.to_owned(),
        })
    }

    /// Allows a launch so much dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= self.allowed_shared.load(Ordering::Acquire) {
            return Ok(());
        }
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of a loaded module.
        unsafe { result::function::set_function_attribute(self.function, which, bytes as i32) }
            .map_err(|e| failed(self.context.id, "cuFuncSetAttribute", e))?;
        self.allowed_shared.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }

    pub(super) fn entry(&self) -> &str {
        &self.entry
    }
}

impl KernelBackend for CudaKernel {
    fn resources(&self) -> KernelResources {
        self.resources
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for CudaKernel {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `new`, unloaded once; whoever drops a kernel knows that no launch of it is to run.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
