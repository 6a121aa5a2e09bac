//! Captured graphs. The modes of a capture have the same numbers in both.

use std::ffi::{c_char, c_uint, c_void};

use super::forwarded;

forwarded! {
    /// Lets a stream record in place of running.
    fn hipStreamBeginCapture(stream: *mut c_void, mode: c_uint) |cu| (cu.cuStreamBeginCapture_v2)(stream, mode);

    /// Ends the recording.
    fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) |cu| (cu.cuStreamEndCapture)(stream, graph);

    /// Makes a recording launchable. Neither a node nor a log is written.
    fn hipGraphInstantiate(
        exec: *mut *mut c_void,
        graph: *mut c_void,
        _node: *mut *mut c_void,
        _log: *mut c_char,
        _log_bytes: usize,
    ) |cu| (cu.cuGraphInstantiateWithFlags)(exec, graph, 0);

    /// Runs a recording on a stream.
    fn hipGraphLaunch(exec: *mut c_void, stream: *mut c_void) |cu| (cu.cuGraphLaunch)(exec, stream);

    /// Gives a recording back.
    fn hipGraphDestroy(graph: *mut c_void) |cu| (cu.cuGraphDestroy)(graph);

    /// Gives what is launched back.
    fn hipGraphExecDestroy(exec: *mut c_void) |cu| (cu.cuGraphExecDestroy)(exec);
}
