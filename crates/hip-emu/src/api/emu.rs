//! Functions that no real runtime has, for tests: settings, reports, counts.

use std::ffi::{CStr, c_char};

use crate::{
    compile, inject, report, settings,
    state::{self, leaks},
};

/// Writes a text and its zero, cut where `len` bytes do not hold it; returns the length of the whole text.
fn put_text(place: *mut c_char, len: usize, text: &str) -> usize {
    if !place.is_null() && len > 0 {
        let n = text.len().min(len - 1);
        // SAFETY: the caller passes `len` bytes.
        unsafe {
            place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), n);
            place.add(n).write(0);
        }
    }
    text.len()
}

/// Changes a setting, by the name that it has in the environment. 0, or 1 where the name or the value is none.
///
/// # Safety
/// Two strings that end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_emu_set(name: *const c_char, value: *const c_char) -> u32 {
    if name.is_null() || value.is_null() {
        return 1;
    }
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
    let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
    let done = match &*name {
        "HIP_EMU_FAIL" => inject::set(&value),
        _ => settings::set(&name, &value),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            report::say(&error);
            1
        }
    }
}

/// How many violations there were since the last [`hip_emu_take_violations`].
#[unsafe(no_mangle)]
pub extern "C" fn hip_emu_violations() -> usize {
    report::count()
}

/// Writes the violations so far, and forgets them. Returns the bytes that the whole text has.
///
/// # Safety
/// `text` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_emu_take_violations(text: *mut c_char, len: usize) -> usize {
    put_text(text, len, &report::take().1)
}

/// How many allocations and objects are alive.
#[unsafe(no_mangle)]
pub extern "C" fn hip_emu_live() -> usize {
    state::live()
}

/// Writes what is alive, a line each. Returns the bytes that the whole text has.
///
/// # Safety
/// `text` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_emu_leaks(text: *mut c_char, len: usize) -> usize {
    put_text(text, len, &leaks().join("\n"))
}

/// Writes how often each function was called since `HIP_EMU_FAIL` was last set: `NAME COUNT`, a line each. Returns the
/// bytes that the whole text has.
///
/// # Safety
/// `text` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_emu_calls(text: *mut c_char, len: usize) -> usize {
    put_text(text, len, &inject::counts())
}

/// Writes the path of the C++ compiler that kernels are compiled with; nothing where there is none.
///
/// # Safety
/// `text` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hip_emu_compiler(text: *mut c_char, len: usize) -> usize {
    put_text(text, len, &compile::compiler_name().unwrap_or_default())
}
