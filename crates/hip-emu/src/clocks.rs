//! What is ordered before what. Every stream has a clock that says, for each stream, up to which work everything is
//! done before the stream's next work begins; the host has one too. Two pieces of work that touch the same bytes, one
//! of them writing, are in conflict where neither clock knows of the other.

use std::{ops::Range, sync::Arc};

use crate::stream::Stream;

/// By stream number.
pub(crate) type Clock = Vec<u64>;

/// What a piece of work does to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) range: Range<usize>,
    pub(crate) kind: AccessKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
    /// A kernel was given the address: it reads or writes there, nobody knows which, or how far.
    Pointer,
}

#[derive(Debug)]
struct Logged {
    stream: Arc<Stream>,
    number: u64,
    access: Access,
    what: String,
}

/// The clocks, and what work has touched that the host does not know to be done.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    host: Clock,
    streams: Vec<Clock>,
    log: Vec<Logged>,
}

/// More entries are not kept where all are done.
const LOG: usize = 4096;

fn join(into: &mut Clock, from: &Clock) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

fn knows(clock: &Clock, stream: usize, number: u64) -> bool {
    clock.get(stream).is_some_and(|&known| known >= number)
}

impl Clocks {
    fn stream(&mut self, number: usize) -> &mut Clock {
        if self.streams.len() <= number {
            self.streams.resize(number + 1, Clock::new());
        }
        &mut self.streams[number]
    }

    /// A stream's clock, as an event remembers it.
    pub(crate) fn of(&mut self, stream: &Stream) -> Clock {
        self.stream(stream.number).clone()
    }

    /// A stream waits for what a clock knows.
    pub(crate) fn stream_waits(&mut self, stream: &Stream, clock: &Clock) {
        join(self.stream(stream.number), clock);
    }

    /// The host has waited for what a clock knows.
    pub(crate) fn host_waited(&mut self, clock: &Clock) {
        join(&mut self.host, clock);
        let host = &self.host;
        self.log.retain(|l| !knows(host, l.stream.number, l.number));
    }

    /// Notes that a stream's work begins after all that the host knows, and looks for conflicts.
    pub(crate) fn begin(&mut self, stream: &Arc<Stream>, accesses: &[Access], what: &str) -> Vec<String> {
        let host = self.host.clone();
        let clock = self.stream(stream.number);
        join(clock, &host);
        let clock = clock.clone();
        let unordered =
            |l: &&Logged| l.stream.number != stream.number && !knows(&clock, l.stream.number, l.number);
        let mut found = Vec::new();
        for logged in self.log.iter().filter(unordered) {
            if let Some(access) = accesses.iter().find(|a| conflict(a, &logged.access)) {
                found.push(format!(
                    "race: {what} on stream {} touches {:#x}..{:#x}, which {} on stream {} touches too; no event or \
                     wait orders them",
                    stream.number, access.range.start, access.range.end, logged.what, logged.stream.number
                ));
                break;
            }
        }
        found
    }

    /// Notes what queued work touches.
    pub(crate) fn log(&mut self, stream: &Arc<Stream>, number: u64, accesses: Vec<Access>, what: &str) {
        let clock = self.stream(stream.number);
        if clock.len() <= stream.number {
            clock.resize(stream.number + 1, 0);
        }
        clock[stream.number] = number;
        let entry = |access| Logged { stream: stream.clone(), number, access, what: what.to_owned() };
        self.log.extend(accesses.into_iter().map(entry));
        if self.log.len() > LOG {
            self.log.retain(|l| !l.stream.is_done(l.number));
        }
    }

    /// Work that is not done and touches a range: the stream, its number, what it is.
    pub(crate) fn in_flight(&self, range: &Range<usize>) -> Vec<(Arc<Stream>, u64, String, AccessKind)> {
        let touches = |l: &&Logged| {
            l.access.range.start < range.end
                && range.start < l.access.range.end
                && !l.stream.is_done(l.number)
        };
        let told = |l: &Logged| (l.stream.clone(), l.number, l.what.clone(), l.access.kind);
        self.log.iter().filter(touches).map(told).collect()
    }
}

fn conflict(a: &Access, b: &Access) -> bool {
    let overlap = a.range.start < b.range.end && b.range.start < a.range.end;
    overlap && (a.kind == AccessKind::Write || b.kind == AccessKind::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_conflicts() {
        use AccessKind::{Pointer, Read, Write};
        let at = |range: Range<usize>, kind| Access { range, kind };
        for (a, b, expected) in [
            (at(0..8, Write), at(4..12, Read), true),
            (at(0..8, Write), at(8..12, Write), false),
            (at(0..8, Read), at(0..8, Read), false),
            (at(4..5, Pointer), at(0..8, Write), true),
            (at(4..5, Pointer), at(0..8, Read), false),
            (at(4..5, Pointer), at(4..5, Pointer), false),
        ] {
            assert_eq!(conflict(&a, &b), expected, "{a:?} {b:?}");
            assert_eq!(conflict(&b, &a), expected, "{b:?} {a:?}");
        }
    }
}
