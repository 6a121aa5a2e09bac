//! Graphs.

use std::{
    ffi::{c_char, c_ulonglong, c_void},
    sync::Arc,
};

use super::{exported, late, put};
use crate::{
    codes::{Code, INVALID_VALUE},
    graph::Graph,
    report,
    state::{EXECS, GRAPHS, stream_of},
    work::{Work, submit},
};

fn instantiate(place: *mut *mut c_void, graph: *mut c_void) -> Result<(), Code> {
    report::lost()?;
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    let graph = GRAPHS.get(graph)?;
    put(place, EXECS.insert(Arc::new(Graph { work: graph.work.clone() })))
}

exported! {
    /// Makes an executable graph. Neither an error's node nor a log is given.
    fn hipGraphInstantiate(
        place: *mut *mut c_void,
        graph: *mut c_void,
        _node: *mut *mut c_void,
        _log: *mut c_char,
        _len: usize,
    ) {
        instantiate(place, graph)
    }

    /// Makes an executable graph.
    fn hipGraphInstantiateWithFlags(place: *mut *mut c_void, graph: *mut c_void, _flags: c_ulonglong) {
        instantiate(place, graph)
    }

    /// Does a graph's work, in the order of a stream.
    fn hipGraphLaunch(exec: *mut c_void, stream: *mut c_void) {
        report::lost()?;
        let (exec, stream) = (EXECS.get(exec)?, stream_of(stream)?);
        if let Some(code) = late() {
            return submit(&stream, Work::Fail(code)).map(drop);
        }
        for work in &exec.work {
            submit(&stream, work.clone())?;
        }
        Ok(())
    }

    /// How many pieces of work a graph has. The nodes themselves are not given.
    fn hipGraphGetNodes(graph: *mut c_void, nodes: *mut *mut c_void, count: *mut usize) {
        if !nodes.is_null() {
            return Err(INVALID_VALUE);
        }
        put(count, GRAPHS.get(graph)?.work.len())
    }

    /// Ends a graph; what was made of it stays.
    fn hipGraphDestroy(graph: *mut c_void) { GRAPHS.remove(graph).map(drop) }

    /// Ends an executable graph. What it has queued is still done.
    fn hipGraphExecDestroy(exec: *mut c_void) { EXECS.remove(exec).map(drop) }
}
