use std::{
    ffi::{CString, c_void},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    device::Context,
    error::{failed, words},
    result::check,
    sys::{hipFuncAttribute, hipFunction_attribute as Attribute, hipFunction_t, hipModule_t},
};
use crate::{DeviceError, KernelResources, KernelSource, Result, backend::KernelBackend};

/// Shared memory that a block may take without being asked for: what every AMD GPU has.
const PLAIN_SHARED: u32 = 64 << 10;

/// A function of a loaded module.
#[derive(Debug)]
pub(super) struct RocmKernel {
    context: Arc<Context>,
    module: hipModule_t,
    pub(super) function: hipFunction_t,
    resources: KernelResources,
    /// Dynamic shared memory that has been allowed so far.
    allowed_shared: AtomicU32,
    entry: String,
}

// SAFETY: handles of the runtime, which may be used from any thread.
unsafe impl Send for RocmKernel {}
// SAFETY: as above.
unsafe impl Sync for RocmKernel {}

impl RocmKernel {
    pub(super) fn new(context: Arc<Context>, code: &[u8], source: &KernelSource<'_>) -> Result<Self> {
        context.bind()?;
        let (id, hip) = (context.id, context.hip);
        let name = CString::new(source.entry).map_err(|_| DeviceError::Failed {
            device: id,
            call: "hipModuleGetFunction",
            reason: "a zero byte in the name of a kernel".to_owned(),
        })?;
        // SAFETY: a whole code object made by the compiler; the runtime copies it.
        let module = unsafe { hip.module_load(code) }.map_err(|e| failed(id, "hipModuleLoadData", e))?;
        // SAFETY: the module is loaded.
        let function = match unsafe { hip.module_function(module, &name) } {
            Ok(function) => function,
            Err(error) => {
                // SAFETY: loaded above, and nothing uses it.
                let _ = unsafe { (hip.hipModuleUnload)(module) };
                return Err(failed(id, "hipModuleGetFunction", error));
            }
        };
        let attribute = |which| {
            // SAFETY: the function is of a loaded module.
            unsafe { hip.function_attribute(which, function) }.map_or(0, |n| n.max(0) as u32)
        };
        let resources = KernelResources {
            registers: attribute(Attribute::HIP_FUNC_ATTRIBUTE_NUM_REGS),
            shared: attribute(Attribute::HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            local: attribute(Attribute::HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
        };
        let allowed_shared = AtomicU32::new(PLAIN_SHARED);
        let entry = source.entry.to_owned();
        Ok(RocmKernel { context, module, function, resources, allowed_shared, entry })
    }

    /// Allows a launch so much dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: u32) {
        if bytes <= self.allowed_shared.load(Ordering::Acquire) {
            return;
        }
        // Asked for and no more: a runtime may lack the call or know no such attribute, and then has no limit of its
        // own to lift. The launch says whether it fits.
        if let Some(set) = self.context.hip.hipFuncSetAttribute {
            let which = hipFuncAttribute::hipFuncAttributeMaxDynamicSharedMemorySize;
            let function: *const c_void = self.function.cast_const().cast();
            // SAFETY: the function is of a loaded module.
            let set = check(unsafe { set(function, which, i32::try_from(bytes).unwrap_or(i32::MAX)) });
            if let Err(error) = set {
                tracing::debug!("{}: hipFuncSetAttribute: {}", self.context.id, words(error));
            }
        }
        self.allowed_shared.fetch_max(bytes, Ordering::AcqRel);
    }

    pub(super) fn entry(&self) -> &str {
        &self.entry
    }
}

impl KernelBackend for RocmKernel {
    fn resources(&self) -> KernelResources {
        self.resources
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for RocmKernel {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: loaded by `new`, unloaded once; whoever drops a kernel knows that no launch of it is to run.
        let _ = unsafe { (self.context.hip.hipModuleUnload)(self.module) };
    }
}
