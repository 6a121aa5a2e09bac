use std::time::Duration;

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
    /// Bytes of weights made resident.
    pub bytes: u64,
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
    /// Time spent handing copies to the device.
    pub enqueue_time: Duration,
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

impl LoadTransferStats {
    /// Which leg took most of the time: `read`, `convert`, `slot wait` or `enqueue`.
    pub fn limit(&self) -> &'static str {
        let legs = [
            (self.read_time, "read"),
            (self.convert_time, "convert"),
            (self.slot_wait, "slot wait"),
            (self.enqueue_time, "enqueue"),
        ];
        legs.iter().max_by_key(|(time, _)| *time).map_or("none", |(_, name)| name)
    }
}
