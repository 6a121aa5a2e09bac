//! hipRTC.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{exported, put};
use crate::{
    codes::Code,
    compile::{Program, version},
    state::PROGRAMS,
};

// hipRTC's own codes.
const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
const COMPILATION: Code = 6;

fn program(handle: *mut c_void) -> Result<Arc<Mutex<Program>>, Code> {
    PROGRAMS.get(handle).map_err(|_| INVALID_PROGRAM)
}

fn lock(program: &Mutex<Program>) -> MutexGuard<'_, Program> {
    program.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A string of the caller's; none where there is none.
///
/// # Safety
/// Null, or a string that ends with a zero.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Strings of the caller's.
///
/// # Safety
/// A list of as many.
unsafe fn texts(list: *const *const c_char, count: c_int) -> Result<Vec<String>, Code> {
    let count = usize::try_from(count).map_err(|_| INVALID_INPUT)?;
    if count > 0 && list.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: the caller's promise.
    (0..count).map(|i| unsafe { text(*list.add(i)) }.ok_or(INVALID_INPUT)).collect()
}

fn put_bytes(place: *mut c_char, bytes: &[u8]) -> Result<(), Code> {
    if place.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: the caller passes as many bytes as it was told before.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

exported! {
    /// The version: 7, and a number that changes with the emulator's headers and with the settings that change code, so
    /// that caches keyed by the version never give code that was compiled with others.
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) {
        put(major, 7)?;
        put(minor, 1000 + version() as c_int)
    }

    /// Makes a program of a text and the headers that it includes.
    fn hiprtcCreateProgram(
        place: *mut *mut c_void,
        source: *const c_char,
        name: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        names: *const *const c_char,
    ) {
        // SAFETY: strings, and lists of `count`.
        let program = unsafe {
            Program {
                name: text(name).unwrap_or_default(),
                text: text(source).ok_or(INVALID_INPUT)?,
                headers: texts(names, count)?.into_iter().zip(texts(headers, count)?).collect(),
                ..Program::default()
            }
        };
        put(place, PROGRAMS.insert(Arc::new(Mutex::new(program))))
    }

    /// Compiles a program by the system's C++ compiler.
    fn hiprtcCompileProgram(handle: *mut c_void, count: c_int, options: *const *const c_char) {
        // SAFETY: a list of `count` strings.
        let options = unsafe { texts(options, count) }?;
        let program = program(handle)?;
        if lock(&program).compile(&options) { Ok(()) } else { Err(COMPILATION) }
    }

    /// Bytes of the log, with the zero at its end.
    fn hiprtcGetProgramLogSize(handle: *mut c_void, len: *mut usize) {
        put(len, lock(&*program(handle)?).log.len() + 1)
    }

    /// The log.
    fn hiprtcGetProgramLog(handle: *mut c_void, log: *mut c_char) {
        let program = program(handle)?;
        let mut bytes = lock(&program).log.clone().into_bytes();
        bytes.push(0);
        put_bytes(log, &bytes)
    }

    /// Bytes of the code.
    fn hiprtcGetCodeSize(handle: *mut c_void, len: *mut usize) { put(len, lock(&*program(handle)?).code.len()) }

    /// The code, for `hipModuleLoadData`.
    fn hiprtcGetCode(handle: *mut c_void, code: *mut c_char) { put_bytes(code, &lock(&*program(handle)?).code) }

    /// Ends a program.
    fn hiprtcDestroyProgram(handle: *mut *mut c_void) {
        if handle.is_null() {
            return Err(INVALID_INPUT);
        }
        // SAFETY: a place that holds a handle.
        let program = unsafe { *handle };
        PROGRAMS.remove(program).map_err(|_| INVALID_PROGRAM)?;
        put(handle, std::ptr::null_mut())
    }
}

/// A code of hipRTC in words.
#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"HIPRTC_SUCCESS",
        1 => c"HIPRTC_ERROR_OUT_OF_MEMORY",
        2 => c"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        5 => c"HIPRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        7 => c"HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}
