//! The table's functions with results in place of codes. As unsafe as the functions themselves.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::sys::*;

/// The code of a call that failed.
pub(super) type HipResult<T> = Result<T, hipError_t>;

/// The offset of `gcnArchName`, 256 bytes with a zero, in the struct of properties of HIP 6 and later (1472 bytes).
const ARCH_NAME_R0600: usize = 1160;
/// The same in HIP 5's struct (792 bytes).
const ARCH_NAME_R0000: usize = 396;
/// Larger than any version's struct of properties.
const PROPERTIES_BYTES: usize = 8192;

/// Success, or the code.
pub(super) fn check(code: hipError_t) -> HipResult<()> {
    if code == hipError_t::hipSuccess { Ok(()) } else { Err(code) }
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map(|c| c.to_string_lossy().into_owned());
    text.unwrap_or_default().trim().to_owned()
}

impl Hip {
    pub(super) fn init(&self) -> HipResult<()> {
        // SAFETY: no pointers.
        check(unsafe { (self.hipInit)(0) })
    }

    /// Major version, and the rest (minor * 10^5 + patch).
    pub(super) fn version(&self) -> HipResult<(u32, u32)> {
        let mut version = 0;
        // SAFETY: a pointer to an integer.
        check(unsafe { (self.hipRuntimeGetVersion)(&mut version) })?;
        let version = version.max(0) as u32;
        Ok((version / 10_000_000, version % 10_000_000))
    }

    pub(super) fn device_count(&self) -> HipResult<usize> {
        let mut count = 0;
        // SAFETY: a pointer to an integer.
        check(unsafe { (self.hipGetDeviceCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn set_device(&self, device: c_int) -> HipResult<()> {
        // SAFETY: no pointers.
        check(unsafe { (self.hipSetDevice)(device) })
    }

    pub(super) fn device_name(&self, device: c_int) -> HipResult<String> {
        let mut name = [0u8; 256];
        // SAFETY: as many bytes as said, less one that stays zero.
        check(unsafe { (self.hipDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), 255, device) })?;
        Ok(text(&name))
    }

    pub(super) fn attribute(&self, which: hipDeviceAttribute_t, device: c_int) -> HipResult<c_int> {
        let mut value = 0;
        // SAFETY: a pointer to an integer.
        check(unsafe { (self.hipDeviceGetAttribute)(&mut value, which, device) })?;
        Ok(value)
    }

    /// `gcnArchName` of a GPU: the architecture with its features. No attribute has it.
    pub(super) fn arch_name(&self, device: c_int) -> HipResult<String> {
        // LOCAL_FIX(5): the function without a version fills in HIP 5's struct whatever the runtime's version, so the
        // later one is looked for by its whole name.
        let (function, offset) = match (self.hipGetDevicePropertiesR0600, self.hipGetDeviceProperties) {
            (Some(function), _) => (function, ARCH_NAME_R0600),
            (None, Some(function)) => (function, ARCH_NAME_R0000),
            (None, None) => return Err(hipError_t::hipErrorNotSupported),
        };
        // Eight-byte words, for the struct holds such.
        let mut properties = vec![0u64; PROPERTIES_BYTES / 8];
        // SAFETY: the struct is smaller than the buffer, and holds plain data.
        check(unsafe { function(properties.as_mut_ptr().cast::<c_void>(), device) })?;
        let bytes: &[u8] = bytemuck::cast_slice(&properties);
        Ok(text(bytes.get(offset..offset + 256).unwrap_or_default()))
    }

    /// A GPU's place on the bus, `0000:c6:00.0`; none where the runtime does not say.
    pub(super) fn bus_id(&self, device: c_int) -> Option<String> {
        let mut name = [0u8; 64];
        // SAFETY: as many bytes as said, less one that stays zero.
        check(unsafe { (self.hipDeviceGetPCIBusId?)(name.as_mut_ptr().cast::<c_char>(), 63, device) })
            .ok()?;
        Some(text(&name)).filter(|id| !id.is_empty())
    }

    /// Free and total bytes of the current device.
    pub(super) fn mem_info(&self) -> HipResult<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two pointers to integers.
        check(unsafe { (self.hipMemGetInfo)(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// # Safety
    /// The device is current.
    pub(super) unsafe fn malloc(&self, bytes: usize) -> HipResult<*mut c_void> {
        let mut address = std::ptr::null_mut();
        // SAFETY: a pointer to a pointer.
        check(unsafe { (self.hipMalloc)(&mut address, bytes) }).map(|()| address)
    }

    /// # Safety
    /// As for [`Hip::malloc`].
    pub(super) unsafe fn host_malloc(&self, bytes: usize, flags: c_uint) -> HipResult<*mut c_void> {
        let mut address = std::ptr::null_mut();
        // SAFETY: a pointer to a pointer.
        check(unsafe { (self.hipHostMalloc)(&mut address, bytes, flags) }).map(|()| address)
    }

    /// # Safety
    /// As for [`Hip::malloc`].
    pub(super) unsafe fn malloc_managed(&self, bytes: usize) -> HipResult<*mut c_void> {
        let Some(function) = self.hipMallocManaged else { return Err(hipError_t::hipErrorNotSupported) };
        let mut address = std::ptr::null_mut();
        // SAFETY: a pointer to a pointer.
        check(unsafe { function(&mut address, bytes, hipMemAttachGlobal) }).map(|()| address)
    }

    /// # Safety
    /// The device is current.
    pub(super) unsafe fn stream_create(&self) -> HipResult<hipStream_t> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a pointer to a handle.
        check(unsafe { (self.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking) }).map(|()| stream)
    }

    /// # Safety
    /// The device is current.
    pub(super) unsafe fn event_create(&self) -> HipResult<hipEvent_t> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a pointer to a handle.
        check(unsafe { (self.hipEventCreateWithFlags)(&mut event, hipEventDisableTiming) }).map(|()| event)
    }

    /// # Safety
    /// `code` is a whole code object.
    pub(super) unsafe fn module_load(&self, code: &[u8]) -> HipResult<hipModule_t> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the caller's promise; the runtime copies it.
        check(unsafe { (self.hipModuleLoadData)(&mut module, code.as_ptr().cast()) }).map(|()| module)
    }

    /// # Safety
    /// The module is loaded.
    pub(super) unsafe fn module_function(
        &self,
        module: hipModule_t,
        name: &CStr,
    ) -> HipResult<hipFunction_t> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the caller's promise, and a text with its zero.
        check(unsafe { (self.hipModuleGetFunction)(&mut function, module, name.as_ptr()) }).map(|()| function)
    }

    /// # Safety
    /// The function is one of a loaded module.
    pub(super) unsafe fn function_attribute(
        &self,
        which: hipFunction_attribute,
        function: hipFunction_t,
    ) -> HipResult<c_int> {
        let Some(get) = self.hipFuncGetAttribute else { return Err(hipError_t::hipErrorNotSupported) };
        let mut value = 0;
        // SAFETY: a pointer to an integer; the function is the caller's promise.
        check(unsafe { get(&mut value, which, function) }).map(|()| value)
    }

    /// # Safety
    /// The stream is live and captures.
    pub(super) unsafe fn end_capture(&self, stream: hipStream_t) -> HipResult<hipGraph_t> {
        let Some(end) = self.hipStreamEndCapture else { return Err(hipError_t::hipErrorNotSupported) };
        let mut graph = std::ptr::null_mut();
        // SAFETY: a pointer to a handle; the stream is the caller's promise.
        check(unsafe { end(stream, &mut graph) }).map(|()| graph)
    }

    /// # Safety
    /// The graph is whole.
    pub(super) unsafe fn graph_instantiate(&self, graph: hipGraph_t) -> HipResult<hipGraphExec_t> {
        let Some(make) = self.hipGraphInstantiate else { return Err(hipError_t::hipErrorNotSupported) };
        let (mut exec, mut node) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: two pointers to handles, and no room for a log.
        check(unsafe { make(&mut exec, graph, &mut node, std::ptr::null_mut(), 0) }).map(|()| exec)
    }
}
