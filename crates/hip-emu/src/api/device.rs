//! The runtime's start, the device and its properties, errors.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{LAST, exported, put};
use crate::{
    codes::{self, Code, INVALID_DEVICE, INVALID_VALUE, SUCCESS},
    graph, profile, report, settings, state, work,
};

/// HIP 7.1, as `hipRuntimeGetVersion` says it.
const VERSION: c_int = 70_125_424;
/// Bytes of `hipDeviceProp_tR0600`.
const PROPERTIES: usize = 1472;
const MOST_GRID: c_int = i32::MAX;

fn check_device(device: c_int) -> Result<(), Code> {
    if device == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

/// The value of an attribute, by HIP's number of it.
fn attribute(which: c_int) -> Result<c_int, Code> {
    let settings = settings::get();
    let profile = settings.profile;
    let shared = profile::SHARED_BYTES as c_int;
    Ok(match which {
        3 | 15 | 24 | 85 => 1, // CanMapHostMemory, HostNativeAtomic, ManagedMemory, UnifiedAddressing
        8 => 1,                // ConcurrentKernels
        5 => 2_500_000,        // ClockRate, kHz
        16 => profile.integrated.into(), // Integrated
        19 => 4 << 20,         // L2CacheSize
        23 => profile.major,   // ComputeCapabilityMajor
        61 => profile.minor,   // ComputeCapabilityMinor
        26..=28 | 55 | 56 => 1024, // MaxBlockDimX, Y, Z, MaxThreadsDim, MaxThreadsPerBlock
        29 => MOST_GRID,       // MaxGridDimX
        30 | 31 => 65_535,     // MaxGridDimY, Z
        57 => 2048,            // MaxThreadsPerMultiProcessor
        59 => 256,             // MemoryBusWidth
        60 => 1_000_000,       // MemoryClockRate, kHz
        63 | 10_015 => profile.units, // MultiprocessorCount, PhysicalMultiProcessorCount
        71 | 72 => 65_536,     // MaxRegistersPerBlock, PerMultiprocessor
        74..=76 | 10_002 => shared, // MaxSharedMemoryPerBlock, Optin, PerMultiprocessor
        84 => settings.pool.min(i32::MAX as u64) as c_int, // TotalGlobalMem, which does not fit
        87 => profile.lanes as c_int, // WarpSize
        10_011 => 0,           // IsLargeBar
        0..=89 | 10_001..=10_017 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

/// Writes a string and its end into `len` bytes, cut where it is too long.
fn put_text(place: *mut c_char, len: usize, text: &str) -> Result<(), Code> {
    if place.is_null() || len == 0 {
        return Err(INVALID_VALUE);
    }
    let n = text.len().min(len - 1);
    // SAFETY: the caller passes `len` bytes.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), n);
        place.add(n).write(0);
    }
    Ok(())
}

exported! {
    /// Starts the runtime. `flags` is 0.
    fn hipInit(flags: c_uint) {
        state::tell_at_exit();
        if flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// The driver's version, as HIP counts it.
    fn hipDriverGetVersion(version: *mut c_int) { put(version, VERSION) }

    /// The runtime's version: major * 10^7 + minor * 10^5 + patch.
    fn hipRuntimeGetVersion(version: *mut c_int) { put(version, VERSION) }

    /// How many devices there are: one.
    fn hipGetDeviceCount(count: *mut c_int) { put(count, 1) }

    /// The device of a number.
    fn hipDeviceGet(device: *mut c_int, ordinal: c_int) {
        check_device(ordinal)?;
        put(device, ordinal)
    }

    /// Makes a device the thread's current one.
    fn hipSetDevice(device: c_int) { check_device(device) }

    /// The thread's current device.
    fn hipGetDevice(device: *mut c_int) { put(device, 0) }

    /// The device's name.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        check_device(device)?;
        put_text(name, usize::try_from(len).map_err(|_| INVALID_VALUE)?, settings::get().profile.name)
    }

    /// The device's place on the bus.
    fn hipDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int) {
        check_device(device)?;
        put_text(name, usize::try_from(len).map_err(|_| INVALID_VALUE)?, "0000:c4:00.0")
    }

    /// An attribute, by the numbers of `hipDeviceAttribute_t`.
    fn hipDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) {
        check_device(device)?;
        put(value, attribute(which)?)
    }

    /// Bytes of the device's memory.
    fn hipDeviceTotalMem(bytes: *mut usize, device: c_int) {
        check_device(device)?;
        put(bytes, settings::get().pool as usize)
    }

    /// The properties, in the layout of HIP 6 and later.
    fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int) {
        check_device(device)?;
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        let settings = settings::get();
        let profile = settings.profile;
        let mut bytes = [0u8; PROPERTIES];
        let mut write = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        write(0, profile.name.as_bytes());
        write(288, &settings.pool.to_le_bytes());
        write(296, &u64::from(profile::SHARED_BYTES).to_le_bytes());
        let ints: [(usize, c_int); 21] = [
            (304, 65_536), (308, profile.lanes as c_int), (320, 1024), (324, 1024), (328, 1024), (332, 1024),
            (336, MOST_GRID), (340, 65_535), (344, 65_535), (348, 2_500_000), (360, profile.major),
            (364, profile.minor), (388, profile.units), (396, profile.integrated.into()), (400, 1), (604, 1),
            (616, 4 << 20), (624, 2048), (652, 1), (696, profile::SHARED_BYTES as c_int), (1464, 0),
        ];
        for (at, value) in ints {
            write(at, &value.to_le_bytes());
        }
        write(1160, profile.arch.as_bytes());
        write(1416, &u64::from(profile::SHARED_BYTES).to_le_bytes());
        // SAFETY: the caller passes a struct of that size.
        unsafe { properties.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), PROPERTIES) };
        Ok(())
    }

    /// Retains the primary context, which is the only one.
    fn hipDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) {
        check_device(device)?;
        put(context, std::ptr::dangling_mut())
    }

    /// Releases the primary context.
    fn hipDevicePrimaryCtxRelease(device: c_int) { check_device(device) }

    /// Makes a context the thread's current one.
    fn hipCtxSetCurrent(_context: *mut c_void) { Ok(()) }

    /// The thread's current context.
    fn hipCtxGetCurrent(context: *mut *mut c_void) { put(context, std::ptr::dangling_mut()) }

    /// Waits for all streams, and gives the error of a lost device.
    fn hipDeviceSynchronize() {
        graph::no_unsafe_call()?;
        for stream in state::all_streams()? {
            work::wait_for(&stream);
        }
        for text in state::state().memory.overruns() {
            report::lose(codes::ILLEGAL_ADDRESS, &text);
        }
        report::lost()
    }

    /// Waits for all streams; a lost device works again. What the program holds stays as it is.
    fn hipDeviceReset() {
        for stream in state::all_streams()? {
            work::wait_for(&stream);
        }
        report::recover();
        Ok(())
    }
}

/// The last error of this thread, which is forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetLastError() -> u32 {
    LAST.replace(SUCCESS)
}

/// The last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn hipPeekAtLastError() -> u32 {
    LAST.get()
}

/// The name of an error code.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: u32) -> *const c_char {
    codes::name(code).as_ptr()
}

/// An error code in words.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: u32) -> *const c_char {
    codes::text(code).as_ptr()
}

/// The name of an error code, as `hipDrvGetErrorString`'s kin give it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDrvGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    put(name, codes::name(code).as_ptr()).err().unwrap_or(SUCCESS)
}

/// An error code in words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDrvGetErrorString(code: u32, text: *mut *const c_char) -> u32 {
    put(text, codes::text(code).as_ptr()).err().unwrap_or(SUCCESS)
}
