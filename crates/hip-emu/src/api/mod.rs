//! The exported functions. Signatures, constants and results are those of HIP 7's public headers.
//!
//! # Safety
//! As of a C interface: pointers are valid for what the function's own documentation says is read or written, or null
//! where that is allowed; a null pointer that is not gives `hipErrorInvalidValue`.

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod device;
pub mod emu;
pub mod event;
pub mod graph;
pub mod memory;
pub mod module;
pub mod rtc;
pub mod stream;

use std::cell::Cell;

use crate::{
    codes::{Code, INVALID_VALUE, SUCCESS},
    inject::{self, Fault},
};

thread_local! {
    /// What `hipGetLastError` gives.
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
    /// The call is to be queued, and its work to fail.
    static LATE: Cell<Option<Code>> = const { Cell::new(None) };
}

/// Runs a call's body, unless it is to fail.
fn call(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let result = match inject::called(name) {
        Some(Fault::Now(code)) => Err(code),
        fault => {
            LATE.set(match fault {
                Some(Fault::Late(code)) => Some(code),
                _ => None,
            });
            body()
        }
    };
    match result {
        Ok(()) => SUCCESS,
        Err(code) => {
            LAST.set(code);
            code
        }
    }
}

/// The error that the work of this call is to end in.
fn late() -> Option<Code> {
    LATE.take()
}

/// Writes a result to where the caller wants it.
fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of an exported function passes a place for the result.
    unsafe { place.write(value) };
    Ok(())
}

/// Declares exported functions whose bodies give a result.
macro_rules! exported {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> u32 {
            $crate::api::call(stringify!($name), || $body)
        }
    )*};
}
use exported;
