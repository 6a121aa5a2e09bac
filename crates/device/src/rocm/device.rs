use std::{
    collections::HashSet,
    ffi::c_int,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::{
    arch::Arch,
    compile,
    error::{failed, unavailable, words},
    library, memory,
    memory_sources::MemorySources,
    module::RocmKernel,
    stream::{RocmEvent, RocmStream},
    sys::{Hip, hipDeviceAttribute_t as Attribute, hipError_t},
};
use crate::{
    DeviceCaps, DeviceError, DeviceId, DeviceKind, KernelSource, MemoryInfo, MemoryKind, Result,
    backend::{Backend, EventBackend, KernelBackend, RawMemory, StreamBackend},
    env,
};

/// The runtime must be at least of this major version.
const LEAST_MAJOR: u32 = 5;

const ADVICE: &str = "Install ROCm's HIP runtime (your system's package libamdhip64 or hip-runtime-amd, version 6 or \
                      later), name it in PORTOLAN_HIP_LIBRARY, or take --device cpu";

const NO_GPU: &str = "Look at `rocminfo`: the kernel's amdgpu driver must be loaded, and you must be allowed to open \
                      /dev/kfd and /dev/dri/renderD* (groups render and video); or take --device cpu";

/// A device of the runtime, for as long as anything on it lives.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: DeviceId,
    pub(super) hip: &'static Hip,
    device: c_int,
    /// Whether the device offers managed memory.
    pub(super) managed: bool,
    /// Its place on the bus.
    pub(super) bus_id: Option<String>,
    /// Addresses that came from `hipMallocManaged`, which are given back by another call than the host's.
    managed_addresses: Mutex<HashSet<u64>>,
}

impl Context {
    /// Makes it the calling thread's current device.
    pub(super) fn bind(&self) -> Result<()> {
        self.hip.set_device(self.device).map_err(|e| failed(self.id, "hipSetDevice", e))
    }

    pub(super) fn remember_managed(&self, address: u64) {
        self.managed_addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    /// Whether the address is one of managed memory; it is not from now on.
    pub(super) fn forget_managed(&self, address: u64) -> bool {
        self.managed_addresses.lock().unwrap_or_else(PoisonError::into_inner).remove(&address)
    }
}

/// The runtime, opened and started once a process.
pub(super) fn runtime() -> Result<&'static Hip> {
    static OPENED: OnceLock<Result<Hip>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        let hip = open(env::path("PORTOLAN_HIP_LIBRARY").as_deref())?;
        start(&hip)?;
        Ok(hip)
    });
    opened.as_ref().map_err(Clone::clone)
}

/// Opens the library that is named, or the first that is found.
fn open(named: Option<&std::path::Path>) -> Result<Hip> {
    if let Some(path) = named {
        return Hip::open(path)
            .map_err(|e| unavailable(format!("PORTOLAN_HIP_LIBRARY={}: {e}", path.display()), ADVICE));
    }
    for path in library::runtimes() {
        match Hip::open(&path) {
            Ok(hip) => return Ok(hip),
            Err(error) => tracing::trace!("{}: {error}", path.display()),
        }
    }
    Err(unavailable("the HIP runtime (libamdhip64.so.7, .6 or .5) is not there", ADVICE))
}

fn start(hip: &Hip) -> Result<()> {
    let path = hip.path.display();
    match hip.init() {
        Ok(()) => {}
        Err(hipError_t::hipErrorNoDevice | hipError_t::hipErrorInvalidDevice) => {
            return Err(unavailable(format!("the HIP runtime {path} finds no AMD GPU"), NO_GPU));
        }
        Err(e) => {
            return Err(unavailable(format!("the HIP runtime {path} does not start: {}", words(e)), NO_GPU));
        }
    }
    let (major, rest) = hip
        .version()
        .map_err(|e| unavailable(format!("the HIP runtime {path} has no version: {}", words(e)), ADVICE))?;
    if major < LEAST_MAJOR {
        let minor = rest / 100_000;
        let reason = format!("the HIP runtime {path} is {major}.{minor}, and {LEAST_MAJOR}.0 is the least");
        return Err(unavailable(reason, ADVICE));
    }
    tracing::debug!("HIP {major}.{}.{} from {path}", rest / 100_000, rest % 100_000);
    Ok(())
}

/// How many GPUs the runtime has.
///
/// # Errors
/// [`DeviceError::Unavailable`] where there is no runtime, or it finds none at all.
pub fn count() -> Result<usize> {
    match runtime()?.device_count() {
        Ok(count) => Ok(count),
        Err(hipError_t::hipErrorNoDevice) => Ok(0),
        Err(e) => Err(unavailable(format!("the HIP runtime does not count GPUs: {}", words(e)), NO_GPU)),
    }
}

/// A GPU.
#[derive(Debug)]
pub struct RocmBackend {
    caps: DeviceCaps,
    arch: Arch,
    context: Arc<Context>,
}

impl RocmBackend {
    /// Opens a GPU by its number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] without a runtime, a compiler, or a GPU of that number.
    pub fn new(ordinal: usize) -> Result<Self> {
        let (hip, count) = (runtime()?, count()?);
        let device = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(device) = device else {
            let reason = match count {
                0 => "the HIP runtime finds no AMD GPU".to_owned(),
                _ => format!("there is no AMD GPU number {ordinal}: the HIP runtime finds {count}"),
            };
            return Err(unavailable(reason, NO_GPU));
        };
        let id = DeviceId { kind: DeviceKind::Rocm, ordinal };
        let attribute =
            |which| hip.attribute(which, device).map_err(|e| failed(id, "hipDeviceGetAttribute", e));
        let said = hip.arch_name(device).map_err(|e| failed(id, "hipGetDeviceProperties", e))?;
        let unreadable =
            |reason: String| DeviceError::Failed { device: id, call: "hipGetDeviceProperties", reason };
        let arch: Arch = said.parse().map_err(|e: super::arch::BadArch| unreadable(e.to_string()))?;
        let wave_width = match attribute(Attribute::hipDeviceAttributeWarpSize)? {
            32 => 32,
            64 => 64,
            other => {
                let reason = format!("a wavefront of {other} lanes, where 32 or 64 are expected");
                return Err(DeviceError::Failed { device: id, call: "hipDeviceGetAttribute", reason });
            }
        };
        let mut features = arch.features.clone();
        features.extend(arch.instructions().into_iter().map(str::to_owned));
        // Some runtimes leave the name empty.
        let name = hip.device_name(device).ok().filter(|name| !name.is_empty());
        let caps = DeviceCaps {
            id,
            name: name.unwrap_or_else(|| format!("AMD {}", arch.base)),
            arch: arch.base.clone(),
            features,
            wave_width,
            integrated: attribute(Attribute::hipDeviceAttributeIntegrated)? != 0,
            units: attribute(Attribute::hipDeviceAttributeMultiprocessorCount)?.max(0) as usize,
        };
        // Asked for now, so that a machine without it hears of it before a checkpoint is read.
        compile::compiler_for(&arch)?;
        let managed = attribute(Attribute::hipDeviceAttributeManagedMemory).unwrap_or(0) != 0;
        let context = Context {
            id,
            hip,
            device,
            managed: managed && hip.hipMallocManaged.is_some(),
            bus_id: hip.bus_id(device),
            managed_addresses: Mutex::default(),
        };
        context.bind()?;
        Ok(RocmBackend { caps, arch, context: Arc::new(context) })
    }

    /// The architecture with its features and numbers.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }
}

impl Backend for RocmBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        memory::info(&self.context)
    }

    fn pool_info(&self, kind: MemoryKind) -> Result<MemoryInfo> {
        memory::pool(&self.context, kind)
    }

    fn memory_sources(&self) -> Option<MemorySources> {
        Some(memory::sources(&self.context))
    }

    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory> {
        memory::alloc(&self.context, len, kind)
    }

    unsafe fn free(&self, raw: &RawMemory) {
        // SAFETY: the caller's promise.
        unsafe { memory::free(&self.context, raw) }
    }

    fn create_stream(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(RocmStream::new(self.context.clone())?))
    }

    fn create_event(&self) -> Result<Box<dyn EventBackend>> {
        Ok(Box::new(RocmEvent::new(self.context.clone())?))
    }

    fn load_kernel(&self, source: &KernelSource<'_>) -> Result<Box<dyn KernelBackend>> {
        let code = compile::compile(self.caps.id, &self.arch, source)?;
        Ok(Box::new(RocmKernel::new(self.context.clone(), &code, source)?))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[track_caller]
    fn refused(library: &str, expected: &str) {
        let error = open(Some(Path::new(library))).map(drop).expect_err("no HIP runtime");
        let said = error.to_string();
        assert!(matches!(error, DeviceError::Unavailable { kind: DeviceKind::Rocm, .. }), "{said}");
        for part in ["rocm cannot be used", &format!("PORTOLAN_HIP_LIBRARY={library}"), expected, "Install"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn pegainfer_263_a_library_that_is_missing_or_is_none_of_hip_is_refused_in_words() {
        refused("/nowhere/libamdhip64.so.7", "cannot open shared object file");
        refused(
            "libc.so.6",
            "it lacks hipInit, hipRuntimeGetVersion, hipGetDeviceCount and 23 more functions of HIP",
        );
    }
}
