//! Which device a thread calls. HIP has one by number; CUDA's driver has contexts, of which each device's primary one is
//! taken here and never given back.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::{c_int, c_uint},
    ptr::null_mut,
    sync::{Mutex, PoisonError},
};

use crate::{
    codes::SUCCESS,
    driver::{Driver, driver},
};

thread_local! {
    /// The thread's device, once it has one.
    static CURRENT: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Attributes of a device, by CUDA's numbers.
pub(crate) mod attribute {
    use std::ffi::c_uint;

    pub(crate) const WARP_SIZE: c_uint = 10;
    pub(crate) const MULTIPROCESSORS: c_uint = 16;
    pub(crate) const INTEGRATED: c_uint = 18;
    pub(crate) const MAJOR: c_uint = 75;
    pub(crate) const MINOR: c_uint = 76;
    pub(crate) const MANAGED_MEMORY: c_uint = 83;
}

/// Whether a call of the driver went well, or its code.
pub(crate) fn check(code: u32) -> Result<(), u32> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// The driver's handle of a device.
pub(crate) fn handle(cu: &Driver, device: c_int) -> Result<c_int, u32> {
    let mut handle = 0;
    // SAFETY: a pointer to a handle.
    check(unsafe { (cu.cuDeviceGet)(&mut handle, device) })?;
    Ok(handle)
}

/// An attribute of a device.
pub(crate) fn attribute_of(cu: &Driver, which: c_uint, device: c_int) -> Result<c_int, u32> {
    let (mut value, device) = (0, handle(cu, device)?);
    // SAFETY: a pointer to an integer.
    check(unsafe { (cu.cuDeviceGetAttribute)(&mut value, which, device) })?;
    Ok(value)
}

/// Compute capability of a device as a number of two digits or three: 90, 120.
pub(crate) fn capability(device: c_int) -> Result<c_int, u32> {
    let cu = driver()?;
    Ok(attribute_of(cu, attribute::MAJOR, device)? * 10 + attribute_of(cu, attribute::MINOR, device)?)
}

/// The thread's device: the first, as long as it has not said another.
pub(crate) fn current() -> c_int {
    CURRENT.get().unwrap_or(0)
}

/// Makes a device the thread's.
pub(crate) fn set(cu: &Driver, device: c_int) -> Result<(), u32> {
    // Contexts as numbers, so that threads may share them.
    static CONTEXTS: Mutex<BTreeMap<c_int, usize>> = Mutex::new(BTreeMap::new());
    let context = {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        match contexts.get(&device) {
            Some(&context) => context,
            None => {
                let (mut context, handle) = (null_mut(), handle(cu, device)?);
                // SAFETY: a pointer to a handle.
                check(unsafe { (cu.cuDevicePrimaryCtxRetain)(&mut context, handle) })?;
                contexts.insert(device, context as usize);
                context as usize
            }
        }
    };
    // SAFETY: a primary context that is not given back.
    check(unsafe { (cu.cuCtxSetCurrent)(context as *mut _) })?;
    CURRENT.set(Some(device));
    Ok(())
}

/// The driver, with a current device.
pub(crate) fn ready() -> Result<&'static Driver, u32> {
    let cu = driver()?;
    if CURRENT.get().is_none() {
        set(cu, 0)?;
    }
    Ok(cu)
}
