//! Events.

use std::{
    ffi::{c_uint, c_void},
    sync::{Arc, OnceLock},
};

use super::{exported, put};
use crate::{
    codes::{CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY},
    event::{Event, Recorded},
    graph, report,
    state::{EVENTS, state, stream_of},
    work::Work,
};

const DISABLE_TIMING: c_uint = 2;

fn create(place: *mut *mut c_void, flags: c_uint) -> Result<(), Code> {
    report::lost()?;
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    put(place, EVENTS.insert(Arc::new(Event::new(flags & DISABLE_TIMING == 0))))
}

/// What an event was recorded behind, unless that is a capture.
fn recorded(event: *mut c_void) -> Result<Recorded, Code> {
    match EVENTS.get(event)?.recorded().clone() {
        Recorded::Captured(capture, _) => {
            capture.invalidate();
            Err(CAPTURED_EVENT)
        }
        other => Ok(other),
    }
}

exported! {
    /// Makes an event that keeps the time.
    fn hipEventCreate(place: *mut *mut c_void) { create(place, 0) }

    /// Makes an event; flag 2 for one without a time.
    fn hipEventCreateWithFlags(place: *mut *mut c_void, flags: c_uint) { create(place, flags) }

    /// Ends an event. What waits for it still does.
    fn hipEventDestroy(event: *mut c_void) { EVENTS.remove(event).map(drop) }

    /// Records an event behind what a stream has to do.
    fn hipEventRecord(event: *mut c_void, stream: *mut c_void) {
        let (event, stream) = (EVENTS.get(event)?, stream_of(stream)?);
        report::lost()?;
        if let Some(capture) = graph::capture_of(&stream) {
            capture.valid()?;
            *event.recorded() = Recorded::Captured(capture, stream);
            return Ok(());
        }
        let stamp = event.timing.then(|| Arc::new(OnceLock::new()));
        let mut state = state();
        if let Some(stamp) = &stamp {
            stream.push(Work::Stamp(stamp.clone()));
        }
        let (number, clock) = (stream.submitted(), state.clocks.of(&stream));
        drop(state);
        *event.recorded() = Recorded::Work { stream, number, clock, stamp };
        Ok(())
    }

    /// `hipErrorNotReady` while there is work before an event.
    fn hipEventQuery(event: *mut c_void) {
        let recorded = recorded(event)?;
        report::lost()?;
        if let Recorded::Work { stream, number, clock, .. } = recorded {
            if !stream.is_done(number) {
                return Err(NOT_READY);
            }
            state().clocks.host_waited(&clock);
        }
        report::lost()
    }

    /// Waits for what an event was recorded behind, and gives the error of a lost device.
    fn hipEventSynchronize(event: *mut c_void) {
        if let Recorded::Work { stream, number, clock, .. } = recorded(event)? {
            stream.wait(number);
            state().clocks.host_waited(&clock);
        }
        report::lost()
    }

    /// Milliseconds between two events.
    fn hipEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) {
        report::lost()?;
        let stamp = |event| match recorded(event)? {
            Recorded::Work { stream, number, stamp: Some(stamp), .. } => {
                if stream.is_done(number) { stamp.get().copied().ok_or(NOT_READY) } else { Err(NOT_READY) }
            }
            _ => Err(INVALID_HANDLE),
        };
        let (start, end) = (stamp(start)?, stamp(end)?);
        put(milliseconds, end.saturating_duration_since(start).as_secs_f32() * 1e3)
    }
}
