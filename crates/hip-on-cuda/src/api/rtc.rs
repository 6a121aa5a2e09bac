//! hipRTC. Its codes are NVRTC's.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::put;
use crate::{
    compile::Program,
    context::{capability, current},
    nvrtc::nvrtc,
};

const INVALID_INPUT: u32 = 3;
const COMPILATION: u32 = 6;
/// The compute capability of what is compiled where there is no GPU.
const PLAIN_CAPABILITY: c_int = 90;

/// A program by its handle.
///
/// # Safety
/// Null, or a handle of `hiprtcCreateProgram` that is not destroyed.
unsafe fn program<'a>(handle: *mut c_void) -> Result<&'a mut Program, u32> {
    // SAFETY: the caller's promise.
    unsafe { handle.cast::<Program>().as_mut() }.ok_or(INVALID_INPUT)
}

/// A string of the caller's.
///
/// # Safety
/// Null, or a string that ends with a zero.
unsafe fn text(pointer: *const c_char) -> Result<String, u32> {
    if pointer.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Strings of the caller's.
///
/// # Safety
/// A list of as many, or null where there are none.
unsafe fn texts(list: *const *const c_char, count: c_int) -> Result<Vec<String>, u32> {
    let count = usize::try_from(count).map_err(|_| INVALID_INPUT)?;
    if count > 0 && list.is_null() {
        return Err(INVALID_INPUT);
    }
    // SAFETY: the caller's promise.
    (0..count).map(|i| unsafe { text(*list.add(i)) }).collect()
}

fn put_bytes(place: *mut c_char, bytes: &[u8]) -> u32 {
    if place.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller passes as many bytes as it was told before.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    0
}

/// Declares exported functions whose bodies give hipRTC's code, or an error in its place.
macro_rules! exported {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> u32 {
            // SAFETY: strings, lists and handles are what the caller of a C interface promises.
            let body = || -> Result<u32, u32> { unsafe { $body } };
            body().unwrap_or_else(|code| code)
        }
    )*};
}

exported! {
    /// NVRTC's version; zeros where it is not there, which compiling tells of.
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) {
        let version = nvrtc().map_or((0, 0), |nvrtc| nvrtc.version());
        put(major, version.0);
        Ok(put(minor, version.1))
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
        let program = Program {
            name: text(name).unwrap_or_default(),
            text: text(source)?,
            headers: texts(names, count)?.into_iter().zip(texts(headers, count)?).collect(),
            ..Program::default()
        };
        Ok(put(place, Box::into_raw(Box::new(program)).cast()))
    }

    /// Compiles a program by NVRTC, for the thread's GPU.
    fn hiprtcCompileProgram(handle: *mut c_void, count: c_int, options: *const *const c_char) {
        let (program, options) = (program(handle)?, texts(options, count)?);
        let capability = capability(current()).unwrap_or(PLAIN_CAPABILITY);
        Ok(if program.compile(&options, capability) { 0 } else { COMPILATION })
    }

    /// Bytes of the log, with the zero at its end.
    fn hiprtcGetProgramLogSize(handle: *mut c_void, len: *mut usize) { Ok(put(len, program(handle)?.log.len() + 1)) }

    /// The log.
    fn hiprtcGetProgramLog(handle: *mut c_void, log: *mut c_char) {
        let mut bytes = program(handle)?.log.clone().into_bytes();
        bytes.push(0);
        Ok(put_bytes(log, &bytes))
    }

    /// Bytes of the code.
    fn hiprtcGetCodeSize(handle: *mut c_void, len: *mut usize) { Ok(put(len, program(handle)?.code.len())) }

    /// The code, for `hipModuleLoadData`: a cubin.
    fn hiprtcGetCode(handle: *mut c_void, code: *mut c_char) { Ok(put_bytes(code, &program(handle)?.code)) }

    /// Ends a program.
    fn hiprtcDestroyProgram(handle: *mut *mut c_void) {
        let place = handle.as_mut().ok_or(INVALID_INPUT)?;
        let program: *mut Program = program(*place)?;
        drop(Box::from_raw(program));
        *place = std::ptr::null_mut();
        Ok(0)
    }
}

/// A code of hipRTC in words.
#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"HIPRTC_SUCCESS",
        INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}
