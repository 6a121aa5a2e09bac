use std::time::Duration;

use portolan_device::StagingCounters;

use crate::reading::ReadStats;

/// What a load did, leg by leg.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadTransferStats {
    /// Tensors that went through pinned staging slots.
    pub pinned_tensors: usize,
    /// Tensors that went through pageable memory.
    pub pageable_tensors: usize,
    /// Tensors read straight into memory that the kernels read (CPU, APU).
    pub direct_tensors: usize,
    /// Copies enqueued on the device.
    pub copies: usize,
    /// Bytes of those, with what is padded between planes.
    pub copied_bytes: u64,
    /// Bytes of weights made resident.
    pub bytes: u64,
    /// Bytes of device memory reserved for weights.
    pub arena_bytes: u64,
    /// Reader threads.
    pub readers: usize,
    /// Reads from files.
    pub reads: usize,
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Time in reads, added up over the readers.
    pub read_time: Duration,
    /// Time in rearranging and decoding, added up over the threads.
    pub convert_time: Duration,
    /// Time spent waiting for a staging slot.
    pub slot_wait: Duration,
    /// Time spent handing copies to the device; on the pageable path the copies themselves.
    pub enqueue_time: Duration,
    /// Time from a first copy to the end of the last, of copies that were waited for (those of an eager load).
    pub copy_time: Duration,
    /// Bytes of the copies that [`LoadTransferStats::copy_time`] is of.
    pub timed_bytes: u64,
    /// Waits of one stream for another; must be 0.
    pub cross_stream_waits: usize,
    /// Most pinned memory at any time.
    pub pinned_peak: u64,
    /// Wall time of the whole load.
    pub wall: Duration,
    /// Tensors of the checkpoint that the graph lacks, and their bytes; not read.
    pub unused_tensors: usize,
    /// Bytes of those.
    pub unused_bytes: u64,
}

/// Billions of bytes a second; none where no time was measured.
fn rate(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64() / 1e9)
}

impl LoadTransferStats {
    pub(crate) fn add_reads(&mut self, read: &ReadStats, readers: usize) {
        self.readers = self.readers.max(readers);
        self.reads += read.reads;
        self.read_bytes += read.read_bytes;
        self.read_time += read.read_time;
        self.convert_time += read.convert_time;
    }

    pub(crate) fn add_copies(&mut self, counters: &StagingCounters) {
        self.copies += counters.copies;
        self.copied_bytes += counters.bytes;
        self.slot_wait += counters.slot_wait;
        self.enqueue_time += counters.enqueue;
        self.copy_time += counters.copying;
        self.timed_bytes += counters.timed_bytes;
        self.pinned_peak = self.pinned_peak.max(counters.pinned_peak);
    }

    /// What was done since an earlier state of the same load. Peaks and sums of the whole (arena, readers, what was not
    /// read) stay as they are.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        LoadTransferStats {
            pinned_tensors: self.pinned_tensors - earlier.pinned_tensors.min(self.pinned_tensors),
            pageable_tensors: self.pageable_tensors - earlier.pageable_tensors.min(self.pageable_tensors),
            direct_tensors: self.direct_tensors - earlier.direct_tensors.min(self.direct_tensors),
            copies: self.copies - earlier.copies.min(self.copies),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            reads: self.reads - earlier.reads.min(self.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            read_time: self.read_time.saturating_sub(earlier.read_time),
            convert_time: self.convert_time.saturating_sub(earlier.convert_time),
            slot_wait: self.slot_wait.saturating_sub(earlier.slot_wait),
            enqueue_time: self.enqueue_time.saturating_sub(earlier.enqueue_time),
            copy_time: self.copy_time.saturating_sub(earlier.copy_time),
            timed_bytes: self.timed_bytes.saturating_sub(earlier.timed_bytes),
            wall: self.wall.saturating_sub(earlier.wall),
            ..self.clone()
        }
    }

    /// Time in reads as if the readers had been busy side by side all the time.
    fn read_wall(&self) -> Duration {
        self.read_time / u32::try_from(self.readers.max(1)).unwrap_or(u32::MAX)
    }

    fn convert_wall(&self) -> Duration {
        self.convert_time / u32::try_from(self.readers.max(1)).unwrap_or(u32::MAX)
    }

    /// GB/s of the reads, all readers together; none where nothing was read.
    pub fn read_gb_per_s(&self) -> Option<f64> {
        rate(self.read_bytes, self.read_wall())
    }

    /// GB/s of the copies to the device, at least: while the readers are the slower leg, copies wait for them. None
    /// where no copy was waited for.
    pub fn copy_gb_per_s(&self) -> Option<f64> {
        rate(self.timed_bytes, self.copy_time)
    }

    /// GB/s of the whole load.
    pub fn load_gb_per_s(&self) -> Option<f64> {
        rate(self.bytes, self.wall)
    }

    /// Which leg took most of the time: `read`, `convert`, `slot wait` (the copies) or `enqueue`.
    pub fn limit(&self) -> &'static str {
        let legs = [
            (self.read_wall(), "read"),
            (self.convert_wall(), "convert"),
            (self.slot_wait, "slot wait"),
            (self.enqueue_time, "enqueue"),
        ];
        legs.iter().max_by_key(|(time, _)| *time).map_or("none", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(read: u64, convert: u64, slot_wait: u64, enqueue: u64, readers: usize, expected: &str) {
        let ms = Duration::from_millis;
        let stats = LoadTransferStats {
            read_time: ms(read),
            convert_time: ms(convert),
            slot_wait: ms(slot_wait),
            enqueue_time: ms(enqueue),
            readers,
            ..Default::default()
        };
        assert_eq!(stats.limit(), expected);
    }

    #[test]
    fn the_slowest_leg() {
        check(800, 10, 90, 5, 1, "read");
        // Eight readers took 100 ms for it.
        check(800, 10, 110, 5, 8, "slot wait");
        check(80, 900, 110, 5, 8, "convert");
        check(80, 90, 11, 50, 8, "enqueue");
    }

    #[test]
    fn rates() {
        let stats = LoadTransferStats {
            readers: 8,
            read_bytes: 4_000_000_000,
            read_time: Duration::from_secs(16),
            timed_bytes: 3_000_000_000,
            copy_time: Duration::from_secs(2),
            ..Default::default()
        };
        assert_eq!(stats.read_gb_per_s(), Some(2.0));
        assert_eq!(stats.copy_gb_per_s(), Some(1.5));
        assert_eq!(stats.load_gb_per_s(), None);
    }
}
