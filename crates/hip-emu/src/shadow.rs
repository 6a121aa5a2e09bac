//! Who touched shared memory last, for each byte: finds threads that write what others read or write, with nothing that
//! orders them. Used under full checks, where device code is compiled to tell of every access.
//!
//! A barrier orders all threads of a block; an exchange between lanes orders those of a wave. Atomics are not watched.

/// Where a block's shared memory lies: starts and lengths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) fixed: (usize, usize),
    pub(crate) dynamic: (usize, usize),
}

impl Shared {
    /// The place of an address, of static and dynamic memory one behind the other.
    pub(crate) fn offset(&self, address: usize) -> Option<usize> {
        let within = |(start, len): (usize, usize)| address.checked_sub(start).filter(|&offset| offset < len);
        within(self.fixed).or_else(|| within(self.dynamic).map(|offset| self.fixed.1 + offset))
    }
}

/// Who and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// 0 for nobody.
    block_epoch: u64,
    wave_epoch: u64,
    thread: usize,
    wave: usize,
}

impl Stamp {
    pub(crate) fn new(block_epoch: u64, wave_epoch: u64, thread: usize, wave: usize) -> Self {
        Stamp { block_epoch, wave_epoch, thread, wave }
    }

    /// Whether nothing orders it before `later`.
    fn races(&self, later: &Stamp) -> bool {
        self.block_epoch == later.block_epoch
            && self.thread != later.thread
            && (self.wave != later.wave || self.wave_epoch == later.wave_epoch)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    written: Stamp,
    /// The last two threads that read it.
    read: [Stamp; 2],
}

/// An access that races with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) offset: usize,
    /// Who came before, and whether it wrote.
    pub(crate) thread: usize,
    pub(crate) write: bool,
}

/// The last accesses to each byte.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    bytes: Vec<Byte>,
}

impl Shadow {
    /// Notes an access, and says what it races with.
    pub(crate) fn touch(&mut self, offset: usize, size: usize, write: bool, me: Stamp) -> Option<Conflict> {
        if self.bytes.len() < offset + size {
            self.bytes.resize(offset + size, Byte::default());
        }
        for (offset, byte) in (offset..).zip(&mut self.bytes[offset..offset + size]) {
            let conflict = |stamp: &Stamp, write| Conflict { offset, thread: stamp.thread, write };
            if byte.written.races(&me) {
                return Some(conflict(&byte.written, true));
            }
            if write {
                if let Some(read) = byte.read.iter().find(|read| read.races(&me)) {
                    return Some(conflict(read, false));
                }
                byte.written = me;
            } else {
                if byte.read[0].thread != me.thread {
                    byte.read[1] = byte.read[0];
                }
                byte.read[0] = me;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accesses one after another: thread of a wave of 32, block epoch, wave epoch, whether it writes. Whether the last
    /// races.
    #[track_caller]
    fn check(accesses: &[(usize, u64, u64, bool)], races: bool) {
        let mut shadow = Shadow::default();
        let mut last = None;
        for &(thread, block_epoch, wave_epoch, write) in accesses {
            last = shadow.touch(4, 4, write, Stamp::new(block_epoch, wave_epoch, thread, thread / 32));
        }
        assert_eq!(last.is_some(), races, "{accesses:?}");
    }

    #[test]
    fn what_races() {
        check(&[(0, 1, 0, true), (0, 1, 0, false)], false);
        check(&[(0, 1, 0, true), (40, 1, 0, false)], true);
        check(&[(0, 1, 0, true), (40, 2, 0, false)], false);
        check(&[(0, 1, 0, false), (40, 1, 0, true)], true);
        check(&[(0, 1, 0, false), (40, 1, 0, false)], false);
        // Within a wave an exchange is enough.
        check(&[(0, 1, 0, true), (5, 1, 0, false)], true);
        check(&[(0, 1, 0, true), (5, 1, 1, false)], false);
        check(&[(0, 1, 0, true), (40, 1, 1, false)], true);
        // The writer has read it as the last one; one before had, too.
        check(&[(40, 1, 0, false), (0, 1, 0, false), (0, 1, 0, true)], true);
    }
}
