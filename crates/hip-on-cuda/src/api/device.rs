//! The start, the devices, and what they say of themselves.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{code, forwarded, put};
use crate::{
    codes::{INVALID_VALUE, NO_DEVICE, SUCCESS},
    context::{attribute, attribute_of, capability, check, handle, set},
    driver::{Driver, driver},
};

/// HIP 6.2, as `hipRuntimeGetVersion` says it. The patch is the GPU's compute capability: caches of compiled kernels ask
/// for the version, and a cubin serves one capability.
const VERSION: c_int = 60_200_000;

/// Bytes of `hipDeviceProp_tR0600`, and where it holds what is written here.
const PROPERTIES: usize = 1472;
const TOTAL_MEMORY: usize = 288;
const WARP_SIZE: usize = 308;
const MULTIPROCESSORS: usize = 388;
const INTEGRATED: usize = 396;
const ARCH_NAME: usize = 1160;

/// The architecture that the GPU gives itself out for: `HIP_ON_CUDA_ARCH`, which must be one of 32 lanes. What else is
/// set is an invalid value, as of [`hipInit`]: kernels would be refused later by their lanes, or by matrix units.
fn arch() -> Result<&'static str, u32> {
    const KNOWN: [&str; 3] = ["gfx1100", "gfx1030", "gfx1201"];
    match std::env::var_os("HIP_ON_CUDA_ARCH") {
        Some(set) => KNOWN.into_iter().find(|name| set == *name).ok_or(INVALID_VALUE),
        None => Ok(KNOWN[0]),
    }
}

/// `<CUDA's name> as gfx1100`.
fn name_of(cu: &Driver, device: c_int) -> Result<String, u32> {
    let (mut name, device) = ([0u8; 200], handle(cu, device)?);
    // SAFETY: as many bytes as said, less one that stays zero.
    check(unsafe { (cu.cuDeviceGetName)(name.as_mut_ptr().cast(), 199, device) })?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    Ok(format!("{} as {}", String::from_utf8_lossy(&name[..end]), arch()?))
}

/// Writes a text and its zero into `len` bytes, cut where it is too long.
fn put_text(place: *mut c_char, len: c_int, text: &str) -> u32 {
    let Some(room) =
        usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).filter(|_| !place.is_null())
    else {
        return INVALID_VALUE;
    };
    let n = text.len().min(room);
    // SAFETY: the caller passes `len` bytes.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), n);
        place.add(n).write(0);
    }
    SUCCESS
}

/// An attribute by HIP's number of it: those that Portolan asks for.
fn attribute_by_hip(cu: &Driver, which: c_uint, device: c_int) -> Result<c_int, u32> {
    let which = match which {
        16 => attribute::INTEGRATED,
        24 => attribute::MANAGED_MEMORY,
        63 => attribute::MULTIPROCESSORS,
        87 => attribute::WARP_SIZE,
        _ => return Err(INVALID_VALUE),
    };
    attribute_of(cu, which, device)
}

fn properties(cu: &Driver, device: c_int) -> Result<[u8; PROPERTIES], u32> {
    let mut bytes = [0u8; PROPERTIES];
    let mut write = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let name = name_of(cu, device)?;
    write(0, &name.as_bytes()[..name.len().min(255)]);
    let (mut total, number) = (0usize, handle(cu, device)?);
    // SAFETY: a pointer to an integer.
    check(unsafe { (cu.cuDeviceTotalMem_v2)(&mut total, number) })?;
    write(TOTAL_MEMORY, &total.to_le_bytes());
    let ints = [
        (WARP_SIZE, attribute::WARP_SIZE),
        (MULTIPROCESSORS, attribute::MULTIPROCESSORS),
        (INTEGRATED, attribute::INTEGRATED),
    ];
    for (at, which) in ints {
        write(at, &attribute_of(cu, which, device)?.to_le_bytes());
    }
    write(ARCH_NAME, arch()?.as_bytes());
    Ok(bytes)
}

/// Starts the runtime.
#[unsafe(no_mangle)]
pub extern "C" fn hipInit(_flags: c_uint) -> u32 {
    code(arch().and_then(|_| driver()).map(|_| SUCCESS))
}

/// The runtime's version: major * 10^7 + minor * 10^5 + patch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> u32 {
    code(Ok(put(version, VERSION + capability(0).unwrap_or(0))))
}

/// How many GPUs there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> u32 {
    // SAFETY: a place for an integer (the caller's promise).
    let counted = driver().map(|cu| unsafe { (cu.cuDeviceGetCount)(count) });
    // SAFETY: as above.
    let none = counted == Ok(SUCCESS) && unsafe { *count } == 0;
    code(if none { Err(NO_DEVICE) } else { counted })
}

/// Makes a GPU the thread's current one.
#[unsafe(no_mangle)]
pub extern "C" fn hipSetDevice(device: c_int) -> u32 {
    code(driver().and_then(|cu| set(cu, device)).map(|()| SUCCESS))
}

forwarded! {
    /// The name of a GPU, cut at `len` bytes with its zero.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int)
        |cu| name_of(cu, device).map_or_else(|code| code, |text| put_text(name, len, &text));

    /// An attribute of a GPU, by HIP's numbers.
    fn hipDeviceGetAttribute(value: *mut c_int, which: c_uint, device: c_int)
        |cu| attribute_by_hip(cu, which, device).map_or_else(|code| code, |number| put(value, number));

    /// A GPU's place on the bus.
    fn hipDeviceGetPCIBusId(name: *mut c_char, len: c_int, device: c_int)
        |cu| handle(cu, device).map_or_else(|code| code, |device| (cu.cuDeviceGetPCIBusId)(name, len, device));

    /// Properties of a GPU in HIP 6's struct: name, architecture, memory, lanes and units; the rest is zeros.
    fn hipGetDevicePropertiesR0600(place: *mut c_void, device: c_int)
        |cu| properties(cu, device).map_or_else(|code| code, |bytes| put(place.cast(), bytes));
}
