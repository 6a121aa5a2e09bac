//! The exported functions. Signatures, constants and results are those of HIP 6's public headers.
//!
//! # Safety
//! As of a C interface: what a function of HIP's asks for its arguments, CUDA's function asks for them too.

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod device;
pub mod event;
pub mod graph;
pub mod memory;
pub mod module;
pub mod rtc;
pub mod stream;

use crate::codes::{self, INVALID_VALUE, SUCCESS};

/// HIP's code of what the driver said.
fn code(result: Result<u32, u32>) -> u32 {
    codes::hip(result.unwrap_or_else(|code| code))
}

/// Writes a result to where the caller wants it; a code of the driver's.
fn put<T>(place: *mut T, value: T) -> u32 {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller of an exported function passes a place for the result.
    unsafe { place.write(value) };
    SUCCESS
}

/// Declares exported functions that are calls of the driver, named `cu` or otherwise, with a current device.
macro_rules! forwarded {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) |$cu:ident| $body:expr;)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> u32 {
            // SAFETY: the arguments are the caller's promise, and CUDA's function wants of them what HIP's does.
            $crate::api::code($crate::context::ready().map(|$cu| unsafe { $body }))
        }
    )*};
}
use forwarded;
