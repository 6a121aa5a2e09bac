//! The functions of CUDA's driver that HIP's are made of, looked up in libcuda when the first of them is wanted.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use libloading::Library;

use crate::codes::{NO_DEVICE, SUCCESS};

/// A handle of any kind.
pub(crate) type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($kind:ty),* $(,)?);)*) => {
        /// The table of functions, under the names that the library exports.
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(crate) struct Driver {
            $(pub(crate) $name: unsafe extern "C" fn($($kind),*) -> u32,)*
            /// Keeps the functions above where they are.
            _library: Library,
        }

        impl Driver {
            /// Looks all of them up; none where one is missing.
            fn open(name: &str) -> Option<Self> {
                // SAFETY: the driver's library runs constructors of its own when it is opened, and nothing of ours.
                let library = unsafe { Library::new(name) }.ok()?;
                Some(Driver {
                    $(
                        // SAFETY: the signature is the one of cuda.h.
                        $name: *unsafe { library.get(stringify!($name)) }.ok()?,
                    )*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuCtxSetCurrent(Handle);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemAllocManaged(*mut u64, usize, c_uint);
    cuMemcpyAsync(u64, u64, usize, Handle);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuEventCreate(*mut Handle, c_uint);
    cuEventDestroy_v2(Handle);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
    );
    cuFuncSetAttribute(Handle, c_uint, c_int);
    cuFuncGetAttribute(*mut c_int, c_uint, Handle);
    cuStreamBeginCapture_v2(Handle, c_uint);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphDestroy(Handle);
    cuGraphExecDestroy(Handle);
}

/// The driver, opened and started once a process.
///
/// # Errors
/// [`NO_DEVICE`] where there is no driver, or it does not start.
pub(crate) fn driver() -> Result<&'static Driver, u32> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let open = || {
        let driver = ["libcuda.so.1", "libcuda.so"].iter().find_map(|name| Driver::open(name))?;
        // SAFETY: no pointers.
        (unsafe { (driver.cuInit)(0) } == SUCCESS).then_some(driver)
    };
    DRIVER.get_or_init(open).as_ref().ok_or(NO_DEVICE)
}
