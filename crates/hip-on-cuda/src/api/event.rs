//! Events. Flags have the same numbers in both, of which HIP has some that CUDA does not know.

use std::ffi::{c_uint, c_void};

use super::forwarded;

forwarded! {
    /// A new event: blocking, without timing.
    fn hipEventCreateWithFlags(event: *mut *mut c_void, flags: c_uint) |cu| (cu.cuEventCreate)(event, flags & 3);

    /// Gives an event back.
    fn hipEventDestroy(event: *mut c_void) |cu| (cu.cuEventDestroy_v2)(event);

    /// Marks a point in a stream.
    fn hipEventRecord(event: *mut c_void, stream: *mut c_void) |cu| (cu.cuEventRecord)(event, stream);

    /// Whether the work before an event is done.
    fn hipEventQuery(event: *mut c_void) |cu| (cu.cuEventQuery)(event);

    /// Waits for the work before an event.
    fn hipEventSynchronize(event: *mut c_void) |cu| (cu.cuEventSynchronize)(event);
}
