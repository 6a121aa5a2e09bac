//! The HIP runtime's functions, types and constants, under the names of its headers (`hip/hip_runtime_api.h`).
//!
//! Nothing here is linked: [`Hip::open`] looks each function up in a library. Values that C declares as enums are
//! numbers in a struct, for a runtime may return one that its header of today does not name. The signatures and values
//! below are those of HIP 5.2, 5.4, 6.2 and 7.1 alike; what differs between them is not used, or is said so.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    path::{Path, PathBuf},
};

use libloading::Library;

use crate::rtc::library_words;

macro_rules! handles {
    ($($(#[$doc:meta])* $handle:ident = $target:ident;)*) => {$(
        $(#[$doc])*
        pub type $handle = *mut $target;

        /// What a handle points to: never looked at.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $target {
            _opaque: [u8; 0],
        }
    )*};
}

handles! {
    /// A stream.
    hipStream_t = ihipStream_t;
    /// An event.
    hipEvent_t = ihipEvent_t;
    /// A loaded code object.
    hipModule_t = ihipModule_t;
    /// A kernel of a module.
    hipFunction_t = ihipModuleSymbol_t;
    /// A recorded graph.
    hipGraph_t = ihipGraph;
    /// A node of a graph.
    hipGraphNode_t = hipGraphNode;
    /// A graph that can be launched.
    hipGraphExec_t = hipGraphExec;
}

macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal;)* })*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub c_uint);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    )*};
}

// LOCAL_FIX(6): the codes are numbers here, where hip-runtime-sys has a closed enum.
enums! {
    /// The code that every function returns. [`super::error_name`] has the names of those that are known.
    hipError_t {
        /// No error.
        hipSuccess = 0;
        /// An allocation did not fit.
        hipErrorOutOfMemory = 2;
        /// There is no GPU.
        hipErrorNoDevice = 100;
        /// There is no GPU of that number; also what an old runtime says where there is none.
        hipErrorInvalidDevice = 101;
        /// The work before an event is not done.
        hipErrorNotReady = 600;
        /// The device or the runtime does not offer it.
        hipErrorNotSupported = 801;
    }

    /// Whose memory a copy reads and writes.
    hipMemcpyKind {
        /// The runtime tells it by the addresses.
        hipMemcpyDefault = 4;
    }

    /// What can be asked of a device. The numbers are the same since HIP 5.2; some were given up, none of these.
    hipDeviceAttribute_t {
        /// Whether its memory is the host's.
        hipDeviceAttributeIntegrated = 16;
        /// Whether it offers managed memory.
        hipDeviceAttributeManagedMemory = 24;
        /// Compute units; on RDNA what the runtime counts as such (work-group processors or units).
        hipDeviceAttributeMultiprocessorCount = 63;
        /// Lanes that run in step.
        hipDeviceAttributeWarpSize = 87;
    }

    /// What can be asked of a kernel.
    hipFunction_attribute {
        /// Shared memory that is known when it is compiled, in bytes.
        HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
        /// Private memory of a lane, in bytes.
        HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
        /// Vector registers of a lane.
        HIP_FUNC_ATTRIBUTE_NUM_REGS = 4;
    }

    /// What can be set of a kernel.
    hipFuncAttribute {
        /// Dynamic shared memory of a block, in bytes.
        hipFuncAttributeMaxDynamicSharedMemorySize = 8;
    }

    /// Which other calls a capture forbids.
    hipStreamCaptureMode {
        /// Unsafe calls of this thread.
        hipStreamCaptureModeThreadLocal = 1;
    }
}

/// A stream that the null stream does not wait for.
pub const hipStreamNonBlocking: c_uint = 1;
/// An event without timing.
pub const hipEventDisableTiming: c_uint = 2;
/// Host memory that every device of the process sees as pinned.
pub const hipHostMallocPortable: c_uint = 1;
/// Host memory that kernels reach.
pub const hipHostMallocMapped: c_uint = 2;
/// Managed memory that every stream may use.
pub const hipMemAttachGlobal: c_uint = 1;

macro_rules! functions {
    (
        required { $($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),* $(,)?);)* }
        optional { $($(#[$opt_doc:meta])* $opt:ident($($opt_arg:ident: $opt_kind:ty),* $(,)?);)* }
    ) => {
        /// The table of functions. Those that a runtime may lack are options.
        #[derive(Debug)]
        pub struct Hip {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg: $kind),*) -> hipError_t,)*
            $($(#[$opt_doc])* pub $opt: Option<unsafe extern "C" fn($($opt_arg: $opt_kind),*) -> hipError_t>,)*
            /// What was opened.
            pub path: PathBuf,
            /// Keeps the functions above where they are.
            _library: Library,
        }

        impl Hip {
            /// Names of the functions without which a library is no HIP runtime.
            pub const REQUIRED: &[&str] = &[$(stringify!($name)),*];
            /// Names of the functions that a runtime may lack.
            pub const OPTIONAL: &[&str] = &[$(stringify!($opt)),*];

            /// Opens a runtime's library.
            ///
            /// # Errors
            /// In words: that the file cannot be opened, or which functions it lacks.
            pub fn open(path: &Path) -> Result<Self, String> {
                // SAFETY: the runtime's library runs constructors of its own when it is opened, and nothing of ours.
                let library = unsafe { Library::new(path) }.map_err(|e| library_words(&e))?;
                let mut missing: Vec<&str> = Vec::new();
                $(
                    // SAFETY: the signature is the one of the runtime's public header, which a test compares.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($kind),*) -> hipError_t>(stringify!($name))
                    }
                    .map(|f| *f)
                    .map_err(|_| missing.push(stringify!($name)));
                )*
                $(
                    // SAFETY: as above.
                    let $opt = unsafe {
                        library.get::<unsafe extern "C" fn($($opt_kind),*) -> hipError_t>(stringify!($opt))
                    }
                    .map(|f| *f)
                    .ok();
                )*
                match ($($name,)*) {
                    ($(Ok($name),)*) => Ok(Hip { $($name,)* $($opt,)* path: path.to_owned(), _library: library }),
                    _ => Err(lacks(&missing)),
                }
            }
        }
    };
}

/// That functions are missing: three of them by name.
fn lacks(missing: &[&str]) -> String {
    let named = missing.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    match missing.len() {
        0..=3 => format!("it lacks {named}"),
        count => format!("it lacks {named} and {} more functions of HIP", count - 3),
    }
}

functions! {
    required {
        /// Starts the runtime.
        hipInit(flags: c_uint);
        /// The runtime's version: major * 10^7 + minor * 10^5 + patch.
        hipRuntimeGetVersion(version: *mut c_int);
        /// How many GPUs there are.
        hipGetDeviceCount(count: *mut c_int);
        /// Makes a GPU the calling thread's current one.
        hipSetDevice(device: c_int);
        /// The name of a GPU, cut at `len` bytes with its zero.
        hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
        /// A property of a GPU that is a number.
        hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int);
        /// Free and total bytes of the current GPU's memory.
        hipMemGetInfo(free: *mut usize, total: *mut usize);
        /// Takes memory of the current GPU.
        hipMalloc(address: *mut *mut c_void, bytes: usize);
        /// Gives memory of `hipMalloc` and `hipMallocManaged` back.
        hipFree(address: *mut c_void);
        /// Takes pinned memory of the host.
        hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        /// Gives memory of `hipHostMalloc` back.
        hipHostFree(address: *mut c_void);
        /// Copies, in the order of a stream.
        hipMemcpyAsync(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            kind: hipMemcpyKind,
            stream: hipStream_t,
        );
        /// Sets every byte, in the order of a stream.
        hipMemsetAsync(dst: *mut c_void, value: c_int, bytes: usize, stream: hipStream_t);
        /// A new stream.
        hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint);
        /// Gives a stream back.
        hipStreamDestroy(stream: hipStream_t);
        /// Waits for a stream's work.
        hipStreamSynchronize(stream: hipStream_t);
        /// Lets a stream's later work wait for an event.
        hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
        /// A new event.
        hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
        /// Gives an event back.
        hipEventDestroy(event: hipEvent_t);
        /// Marks a point in a stream.
        hipEventRecord(event: hipEvent_t, stream: hipStream_t);
        /// Whether the work before an event is done.
        hipEventQuery(event: hipEvent_t);
        /// Waits for the work before an event.
        hipEventSynchronize(event: hipEvent_t);
        /// Loads a code object.
        hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
        /// Unloads it.
        hipModuleUnload(module: hipModule_t);
        /// A kernel of a module by its name.
        hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
        /// Launches a kernel: blocks, threads of a block, dynamic shared bytes, stream, parameters.
        hipModuleLaunchKernel(
            function: hipFunction_t,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: hipStream_t,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
    }
    optional {
        /// Properties of a GPU, in HIP 6's struct. Since HIP 6.
        hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int);
        /// Properties of a GPU, in HIP 5's struct, whatever the runtime's version.
        hipGetDeviceProperties(properties: *mut c_void, device: c_int);
        /// A GPU's place on the bus, as sysfs writes it: `0000:c6:00.0`.
        hipDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int);
        /// Takes memory that moves between host and GPU.
        hipMallocManaged(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        /// Sets a property of a kernel.
        hipFuncSetAttribute(function: *const c_void, attribute: hipFuncAttribute, value: c_int);
        /// A property of a kernel that is a number.
        hipFuncGetAttribute(value: *mut c_int, attribute: hipFunction_attribute, function: hipFunction_t);
        /// Lets a stream record in place of running.
        hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode);
        /// Ends the recording.
        hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t);
        /// Makes a recording launchable.
        hipGraphInstantiate(
            exec: *mut hipGraphExec_t,
            graph: hipGraph_t,
            error_node: *mut hipGraphNode_t,
            log: *mut c_char,
            log_bytes: usize,
        );
        /// Runs a recording on a stream.
        hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t);
        /// Gives a recording back.
        hipGraphDestroy(graph: hipGraph_t);
        /// Gives what is launched back.
        hipGraphExecDestroy(exec: hipGraphExec_t);
    }
}
