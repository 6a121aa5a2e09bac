//! Streams. Flags have the same numbers in both.

use std::ffi::{c_uint, c_void};

use super::forwarded;

forwarded! {
    /// A new stream.
    fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) |cu| (cu.cuStreamCreate)(stream, flags);

    /// Gives a stream back.
    fn hipStreamDestroy(stream: *mut c_void) |cu| (cu.cuStreamDestroy_v2)(stream);

    /// Waits for a stream's work.
    fn hipStreamSynchronize(stream: *mut c_void) |cu| (cu.cuStreamSynchronize)(stream);

    /// Lets a stream's later work wait for an event.
    fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint)
        |cu| (cu.cuStreamWaitEvent)(stream, event, flags);
}
