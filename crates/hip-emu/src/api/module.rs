//! Modules and launches.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{Arc, PoisonError},
};

use super::{exported, late, put};
use crate::{
    codes::{Code, INVALID_VALUE, NOT_FOUND},
    launch::{Arguments, Launch},
    module::{Function, Module},
    profile::SHARED_BYTES,
    report,
    state::{FUNCTIONS, MODULES, stream_of},
    work::{Work, submit},
};

/// Marks in the list that `hipModuleLaunchKernel` may be given instead of pointers.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
const BUFFER_END: usize = 3;

/// Reads the list of marks and values.
///
/// # Safety
/// The list ends with [`BUFFER_END`].
unsafe fn packed(extra: *mut *mut c_void) -> Result<Arguments, Code> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    let mut at = 0;
    loop {
        // SAFETY: the caller's promise: no mark before the end is without a value.
        let (mark, value) = unsafe {
            let mark = *extra.add(at) as usize;
            (mark, if mark == BUFFER_END { std::ptr::null_mut() } else { *extra.add(at + 1) })
        };
        match mark {
            BUFFER_POINTER => buffer = value.cast(),
            // SAFETY: the value of this mark points to a length.
            BUFFER_SIZE if !value.is_null() => size = Some(unsafe { *value.cast::<usize>() }),
            BUFFER_END => break,
            _ => return Err(INVALID_VALUE),
        }
        at += 2;
    }
    match size {
        Some(size) if !buffer.is_null() => Ok(Arguments::Packed(buffer, size)),
        _ => Err(INVALID_VALUE),
    }
}

exported! {
    /// Loads code that `hiprtcGetCode` gave.
    fn hipModuleLoadData(place: *mut *mut c_void, image: *const c_void) {
        report::lost()?;
        if place.is_null() || image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes an image.
        let module = unsafe { Module::open(image.cast()) }?;
        put(place, MODULES.insert(Arc::new(module)))
    }

    /// The same; options are not heeded.
    fn hipModuleLoadDataEx(
        place: *mut *mut c_void,
        image: *const c_void,
        _count: c_uint,
        _options: *mut c_uint,
        _values: *mut *mut c_void,
    ) {
        report::lost()?;
        if place.is_null() || image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes an image.
        let module = unsafe { Module::open(image.cast()) }?;
        put(place, MODULES.insert(Arc::new(module)))
    }

    /// Unloads a module; its functions end with it.
    fn hipModuleUnload(module: *mut c_void) {
        let module = MODULES.remove(module)?;
        let functions = std::mem::take(&mut *module.functions.lock().unwrap_or_else(PoisonError::into_inner));
        for function in functions {
            let _ = FUNCTIONS.remove(function as *mut c_void);
        }
        Ok(())
    }

    /// A kernel by its name.
    fn hipModuleGetFunction(place: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        let module = MODULES.get(module)?;
        report::lost()?;
        if place.is_null() || name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a string that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        let function = Function::new(module.clone(), name).ok_or(NOT_FOUND)?;
        let handle = FUNCTIONS.insert(Arc::new(function));
        module.functions.lock().unwrap_or_else(PoisonError::into_inner).push(handle as usize);
        put(place, handle)
    }

    /// An attribute of a kernel, by the numbers of `hipFunction_attribute`. Registers are not known.
    fn hipFuncGetAttribute(value: *mut c_int, which: c_uint, function: *mut c_void) {
        let function = FUNCTIONS.get(function)?;
        put(value, match which {
            0 => function.table().threads as c_int,
            1 => function.module.shared_bytes() as c_int,
            8 => (SHARED_BYTES as usize).saturating_sub(function.module.shared_bytes()) as c_int,
            2..=9 => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    /// Allows a kernel more dynamic shared memory, which it has anyway.
    fn hipFuncSetAttribute(function: *const c_void, which: c_uint, value: c_int) {
        let function = FUNCTIONS.get(function.cast_mut())?;
        let most = SHARED_BYTES as usize - function.module.shared_bytes().min(SHARED_BYTES as usize);
        match which {
            8 if usize::try_from(value).is_ok_and(|value| value <= most) => Ok(()),
            9 => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Launches a kernel on a stream. Arguments are a pointer for each parameter, or one buffer named in `extra`.
    fn hipModuleLaunchKernel(
        function: *mut c_void,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        dynamic: c_uint,
        stream: *mut c_void,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (function, stream) = (FUNCTIONS.get(function)?, stream_of(stream)?);
        report::lost()?;
        let arguments = match (params.is_null(), extra.is_null()) {
            (false, false) => return Err(INVALID_VALUE),
            // SAFETY: the caller passes such a list.
            (true, false) => unsafe { packed(extra) }?,
            _ => Arguments::Each(params.cast_const()),
        };
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        // SAFETY: the caller passes arguments of the kernel.
        let launch = unsafe { Launch::new(function, grid, block, dynamic, arguments) }?;
        let work = late().map_or_else(|| Work::Launch(Arc::new(launch)), Work::Fail);
        submit(&stream, work).map(drop)
    }
}
