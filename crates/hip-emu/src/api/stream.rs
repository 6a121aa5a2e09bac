//! Streams and captures.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{exported, put};
use crate::{
    codes::{
        Code, ILLEGAL_STATE, INVALID_VALUE, NOT_READY, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_ISOLATION,
        STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_WRONG_THREAD,
    },
    event::Recorded,
    graph::{self, Capture, Mode},
    report,
    state::{EVENTS, GRAPHS, STREAMS, default_stream, state, stream_of},
    stream::Stream,
    work::{HostCall, Work, submit, wait_for},
};

const NON_BLOCKING: c_uint = 1;

fn create(place: *mut *mut c_void, flags: c_uint) -> Result<(), Code> {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    report::lost()?;
    if flags > NON_BLOCKING || place.is_null() {
        return Err(INVALID_VALUE);
    }
    default_stream()?;
    let stream = Stream::start(NUMBER.fetch_add(1, Ordering::AcqRel), flags != NON_BLOCKING)?;
    put(place, STREAMS.insert(stream))
}

/// Puts a stream in a capture, or out of it.
fn set_capture(stream: &Stream, capture: Option<Arc<Capture>>) {
    *stream.capture.lock().unwrap_or_else(PoisonError::into_inner) = capture;
}

exported! {
    /// Makes a stream that the default stream waits for.
    fn hipStreamCreate(place: *mut *mut c_void) { create(place, 0) }

    /// Makes a stream; flag 1 for one that has nothing to do with the default stream.
    fn hipStreamCreateWithFlags(place: *mut *mut c_void, flags: c_uint) { create(place, flags) }

    /// The same; all priorities are one.
    fn hipStreamCreateWithPriority(place: *mut *mut c_void, flags: c_uint, _priority: c_int) {
        create(place, flags)
    }

    /// Ends a stream once its queue is empty.
    fn hipStreamDestroy(stream: *mut c_void) {
        let stream = STREAMS.remove(stream)?;
        if let Some(capture) = graph::capture_of(&stream) {
            capture.invalidate();
        }
        stream.close();
        Ok(())
    }

    /// Waits for a stream, and gives the error of a lost device.
    fn hipStreamSynchronize(stream: *mut c_void) {
        let stream = stream_of(stream)?;
        graph::not_capturing(&stream)?;
        wait_for(&stream);
        report::lost()
    }

    /// `hipErrorNotReady` while a stream has work.
    fn hipStreamQuery(stream: *mut c_void) {
        let stream = stream_of(stream)?;
        graph::not_capturing(&stream)?;
        report::lost()?;
        if !stream.is_done(stream.submitted()) {
            return Err(NOT_READY);
        }
        wait_for(&stream);
        Ok(())
    }

    /// Lets a stream wait for what an event was recorded behind.
    fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) {
        let (stream, event) = (stream_of(stream)?, EVENTS.get(event)?);
        report::lost()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let recorded = event.recorded().clone();
        match (recorded, graph::capture_of(&stream)) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::Work { stream: other, number, clock, .. }, None) => {
                let mut state = state();
                stream.push(Work::Wait(other, number));
                state.clocks.stream_waits(&stream, &clock);
                Ok(())
            }
            (Recorded::Work { .. }, Some(capture)) => {
                capture.invalidate();
                Err(STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::Captured(capture, other), current) => {
                capture.valid()?;
                match current {
                    Some(current) if !Arc::ptr_eq(&current, &capture) => {
                        current.invalidate();
                        return Err(STREAM_CAPTURE_ISOLATION);
                    }
                    Some(_) if stream.number == capture.origin => capture.joined(&other),
                    Some(_) => {}
                    None => {
                        capture.fork(&stream);
                        set_capture(&stream, Some(capture));
                    }
                }
                Ok(())
            }
        }
    }

    /// Begins to capture. `mode`: 0 global, 1 this thread, 2 relaxed.
    fn hipStreamBeginCapture(stream: *mut c_void, mode: c_uint) {
        report::lost()?;
        let stream = stream_of(stream)?;
        if stream.number == 0 {
            return Err(STREAM_CAPTURE_IMPLICIT);
        }
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(INVALID_VALUE),
        };
        if graph::capture_of(&stream).is_some() {
            return Err(ILLEGAL_STATE);
        }
        set_capture(&stream, Some(Arc::new(Capture::new(mode, stream.number))));
        Ok(())
    }

    /// Ends a capture, and makes a graph of it; none where it was spoilt.
    fn hipStreamEndCapture(stream: *mut c_void, place: *mut *mut c_void) {
        let stream = stream_of(stream)?;
        let capture = graph::capture_of(&stream).ok_or(ILLEGAL_STATE)?;
        if capture.origin != stream.number {
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        for member in STREAMS.all() {
            if graph::capture_of(&member).is_some_and(|c| Arc::ptr_eq(&c, &capture)) {
                set_capture(&member, None);
            }
        }
        match capture.end() {
            Ok(graph) => put(place, GRAPHS.insert(Arc::new(graph))),
            Err(code) => {
                put(place, std::ptr::null_mut())?;
                Err(code)
            }
        }
    }

    /// Whether a stream captures: 0 no, 1 yes, 2 a spoilt capture.
    fn hipStreamIsCapturing(stream: *mut c_void, status: *mut c_uint) {
        let capture = graph::capture_of(&*stream_of(stream)?);
        put(status, capture.map_or(0, |capture| if capture.valid().is_ok() { 1 } else { 2 }))
    }

    /// Runs a function of the host, in the order of a stream.
    fn hipLaunchHostFunc(
        stream: *mut c_void,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        argument: *mut c_void,
    ) {
        report::lost()?;
        let function = function.ok_or(INVALID_VALUE)?;
        submit(&stream_of(stream)?, Work::Host(HostCall { function, argument })).map(drop)
    }
}
