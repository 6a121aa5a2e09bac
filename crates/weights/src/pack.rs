//! What goes where in a staging slot: whole tensors while they fit, then a part of the next one.

use portolan_device::{SlotPart, StagingSlot, Transfer};

use crate::{PlannedTensor, fill::plane_offsets, load::ALIGN, reading::PIECE};

/// Rows of a tensor for one reader, and the parts of the slot they go to, one a plane.
pub(crate) struct Job {
    pub(crate) tensor: usize,
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) parts: Vec<SlotPart>,
}

impl Job {
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// How a tensor can be cut: `blocks` blocks of `rows` rows each (the last may have fewer), with these bytes in each
/// plane.
struct Grain {
    blocks: usize,
    rows: usize,
    bytes: Vec<usize>,
}

impl Grain {
    fn of(tensor: &PlannedTensor) -> Grain {
        let rows = tensor.rows.rows();
        match tensor.blocks() {
            Some((multiple, bytes)) => Grain { blocks: rows.div_ceil(multiple), rows: multiple, bytes },
            None => Grain { blocks: rows.min(1), rows: rows.max(1), bytes: tensor.plane_bytes() },
        }
    }

    fn block_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }
}

/// Whether some block of a tensor may not fit a slot of `floor` bytes, so that the tensor cannot go round the ring.
pub(crate) fn is_too_coarse(tensor: &PlannedTensor, floor: usize) -> bool {
    let grain = Grain::of(tensor);
    tensor.device_bytes > floor as u64 && grain.block_bytes() + ALIGN * grain.bytes.len() > floor
}

/// Walks over the wanted tensors and packs them into slots.
pub(crate) struct Packer<'a> {
    tensors: &'a [PlannedTensor],
    wanted: &'a [usize],
    /// Index into `wanted`, and blocks of that tensor that are packed.
    at: usize,
    block: usize,
    /// Pieces are made so small that this many readers have something to do in a slot.
    readers: usize,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(tensors: &'a [PlannedTensor], wanted: &'a [usize], readers: usize) -> Self {
        Packer { tensors, wanted, at: 0, block: 0, readers }
    }

    /// Whether all is packed.
    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.wanted.len()
    }

    /// Fills a slot: the jobs to read it, and the copies to make of it once they are done.
    pub(crate) fn pack(&mut self, slot: &mut StagingSlot) -> (Vec<Job>, Vec<Transfer>) {
        let mut packed = (Vec::new(), Vec::new());
        let piece = (slot.len() / (2 * self.readers.max(1))).clamp(PIECE / 16, PIECE);
        while let Some(&index) = self.wanted.get(self.at) {
            let Some(tensor) = self.tensors.get(index) else { break };
            let grain = Grain::of(tensor);
            slot.align(ALIGN);
            let (whole, room) = (tensor.device_bytes as usize, slot.room());
            let blocks = if self.block == 0 && whole <= room {
                grain.blocks
            } else {
                let fit = room.saturating_sub(ALIGN * grain.bytes.len()) / grain.block_bytes().max(1);
                fit.min(grain.blocks - self.block)
            };
            if blocks == 0 && grain.blocks > 0 {
                break;
            }
            self.segment(slot, index, &grain, blocks, piece, &mut packed);
            self.block += blocks;
            if self.block >= grain.blocks {
                (self.at, self.block) = (self.at + 1, 0);
            }
        }
        packed
    }

    /// The next `blocks` blocks of a tensor: plane after plane, so that each plane is one copy, in pieces for the
    /// readers.
    fn segment(
        &self,
        slot: &mut StagingSlot,
        index: usize,
        grain: &Grain,
        blocks: usize,
        piece: usize,
        (jobs, transfers): &mut (Vec<Job>, Vec<Transfer>),
    ) {
        let Some(tensor) = self.tensors.get(index) else { return };
        let (rows, first_job, start) = (tensor.rows.rows(), jobs.len(), slot.align(ALIGN));
        let step = (piece / grain.block_bytes().max(1)).max(1);
        for first in (self.block..self.block + blocks).step_by(step) {
            let end = (first + step).min(self.block + blocks);
            let (first, end) = (first * grain.rows, (end * grain.rows).min(rows));
            jobs.push(Job { tensor: index, first, rows: end - first, parts: Vec::new() });
        }
        let offsets = plane_offsets(&tensor.plane_bytes());
        for (bytes, plane) in grain.bytes.iter().zip(offsets) {
            let src = slot.align(ALIGN);
            for job in jobs.iter_mut().skip(first_job) {
                job.parts.extend(slot.carve(bytes * job.rows.div_ceil(grain.rows)));
            }
            let (offset, len) = (plane + bytes * self.block, bytes * blocks);
            transfers.push(Transfer { src, item: index, offset, len });
        }
        if blocks == grain.blocks {
            // All of it, laid out as in the arena: one copy, which joins those of its neighbours.
            transfers.truncate(transfers.len().saturating_sub(grain.bytes.len()));
            let len = tensor.device_bytes as usize;
            transfers.push(Transfer { src: start, item: index, offset: 0, len });
        }
    }
}
