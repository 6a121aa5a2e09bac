//! Memory for weights: few large allocations, cut into one range a tensor.

use crate::{Buffer, Device, DeviceCaps, DeviceError, DeviceId, DeviceKind, MemoryKind, Result, Slice, env};

/// Alignment of every range: whole cache lines, and what wide loads of a GPU want.
const ALIGN: usize = 256;

/// What drivers round an allocation up to.
const GRANULE: u64 = 2 << 20;

/// The switch that keeps weights in the device's own pool.
const FORCE_DEVICE: &str = "PORTOLAN_ROCM_FORCE_DEVICE_MEM";

/// The kind of memory that a device's weights are kept in. The one place where this is chosen.
///
/// An integrated AMD GPU takes host memory that its kernels reach: its own pool is the part that the firmware set
/// aside, often the smaller one, and the memory chips are the same. `PORTOLAN_ROCM_FORCE_DEVICE_MEM=1` keeps to the pool.
pub fn weight_memory_kind(caps: &DeviceCaps) -> MemoryKind {
    let forced = env::switch(FORCE_DEVICE).unwrap_or_else(|error| {
        tracing::warn!("{error}; it counts as off");
        None
    });
    kind_for(caps, forced.unwrap_or(false))
}

fn kind_for(caps: &DeviceCaps, force_device: bool) -> MemoryKind {
    match caps.kind() {
        DeviceKind::Rocm if caps.integrated && !force_device => MemoryKind::Mapped,
        _ => MemoryKind::Device,
    }
}

/// Says where the weights of an integrated GPU go, and whether its own pool would do as well.
fn tell(device: &Device, bytes: u64) {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let id = device.id();
    tracing::info!("{id}: {:.2} GiB of weights go to host memory that the GPU reaches directly", gib(bytes));
    if let Ok(own) = device.memory_info()
        && own.free >= bytes
    {
        tracing::info!(
            "{id}: its own pool has {:.2} GiB free and would hold them: {FORCE_DEVICE}=1 would be somewhat faster",
            gib(own.free)
        );
    }
}

/// A tensor's place.
#[derive(Clone, Copy, Debug)]
struct Item {
    chunk: usize,
    offset: usize,
    len: usize,
}

/// Device memory for weights, taken once, in chunks. Its ranges have numbers, and their addresses never change.
///
/// Who may touch the memory when: an arena that is borrowed mutably is the only *safe* way to write to it
/// ([`crate::StagingPool::submit`], [`WeightArena::host_mut`]). Everything else that reaches the memory goes through
/// a [`Slice`], and every call that reads or writes through one is `unsafe`: whoever makes it promises that it is
/// ordered after the upload (it runs on the stream of the upload, or after a wait) or that no load is going on.
pub struct WeightArena {
    device: DeviceId,
    kind: MemoryKind,
    chunks: Vec<Buffer>,
    items: Vec<Item>,
}

/// Index one past the last tensor that shares a chunk with tensor `first`, and the chunk's bytes.
fn group(sizes: &[usize], first: usize, limit: usize) -> (usize, usize) {
    let (mut end, mut bytes) = (first, 0usize);
    for size in sizes.iter().skip(first) {
        let sum = bytes.saturating_add(padded(*size));
        if end > first && sum > limit {
            break;
        }
        (end, bytes) = (end + 1, sum);
    }
    (end, bytes)
}

/// Rounded up to the alignment; a size that overflows stays one that no device has.
fn padded(size: usize) -> usize {
    size.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

impl WeightArena {
    /// Bytes of a chunk, where it does not hold one tensor that is larger.
    pub const CHUNK_BYTES: usize = 512 << 20;

    /// Takes memory for all of `tensors`, each a name (for errors) and its bytes. Tensors that follow one another
    /// share a chunk of at most `chunk_bytes`; a chunk that is refused is halved, down to a single tensor.
    ///
    /// # Errors
    /// [`DeviceError::NoRoom`] with the first tensor that finds no place; any other error of the device as it is.
    /// What was taken before is given back.
    pub fn reserve(device: &Device, tensors: &[(&str, usize)], chunk_bytes: usize) -> Result<Self> {
        let kind = weight_memory_kind(device.caps());
        let mut arena = WeightArena { device: device.id(), kind, chunks: Vec::new(), items: Vec::new() };
        let sizes: Vec<usize> = tensors.iter().map(|t| t.1).collect();
        if kind == MemoryKind::Mapped {
            tell(device, Self::planned_bytes(&sizes, chunk_bytes));
        }
        let mut limit = chunk_bytes.max(ALIGN);
        while let Some(&(tensor, asked)) = tensors.get(arena.items.len()) {
            let first = arena.items.len();
            let (end, bytes) = group(&sizes, first, limit);
            match device.alloc(bytes, kind) {
                Ok(chunk) => arena.push(chunk, sizes.get(first..end).unwrap_or(&[])),
                Err(DeviceError::OutOfMemory { .. }) if end - first > 1 => limit = bytes / 2,
                Err(DeviceError::OutOfMemory { device, pool, available, .. }) => {
                    let (tensor, reserved) = (tensor.to_owned(), arena.bytes());
                    return Err(DeviceError::NoRoom { device, tensor, asked, pool, available, reserved });
                }
                Err(other) => return Err(other),
            }
        }
        Ok(arena)
    }

    fn push(&mut self, chunk: Buffer, sizes: &[usize]) {
        let mut offset = 0;
        for &len in sizes {
            self.items.push(Item { chunk: self.chunks.len(), offset, len });
            offset += padded(len);
        }
        self.chunks.push(chunk);
    }

    /// Bytes that [`WeightArena::reserve`] takes for tensors of these sizes, with what a driver rounds up.
    pub fn planned_bytes(sizes: &[usize], chunk_bytes: usize) -> u64 {
        let (mut first, mut total) = (0, 0u64);
        while first < sizes.len() {
            let (end, bytes) = group(sizes, first, chunk_bytes.max(ALIGN));
            let taken = (bytes as u64).checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
            (first, total) = (end, total.saturating_add(taken));
        }
        total
    }

    /// The device it lies on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// What its chunks are.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Whether the host sees all of it, so that it is filled in place.
    pub fn host_visible(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.host_ptr().is_some())
    }

    /// `len` bytes from `offset` of tensor `item`, counted as in [`WeightArena::reserve`].
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], for an item that does not exist as well. The padding up to the alignment counts
    /// as a part of the tensor.
    pub fn slice(&self, item: usize, offset: usize, len: usize) -> Result<Slice> {
        let end = offset.checked_add(len);
        let outside = |room: usize| DeviceError::OutOfRange {
            device: self.device,
            what: "weight arena",
            offset,
            end: end.unwrap_or(usize::MAX),
            len: room,
        };
        let place = self.items.get(item).ok_or_else(|| outside(0))?;
        let room = padded(place.len);
        let chunk = self.chunks.get(place.chunk).ok_or_else(|| outside(0))?;
        if len == 0 && end.is_some_and(|end| end <= room) {
            // Where every tensor is empty the chunk is one byte, whatever the place.
            return chunk.slice(0, 0);
        }
        match end {
            Some(end) if end <= room => chunk.slice(place.offset + offset, len),
            _ => Err(outside(room)),
        }
    }

    /// The bytes of each tensor, in order, to be filled in place; none where the host does not see the memory.
    pub fn host_mut(&mut self) -> Option<Vec<&mut [u8]>> {
        let bytes = |item: &Item| -> Option<&mut [u8]> {
            if item.len == 0 {
                return Some(&mut []);
            }
            let chunk = self.chunks.get(item.chunk)?.slice(item.offset, item.len).ok()?;
            let host = chunk.host_ptr()?;
            // SAFETY: the range lies within a chunk that lives as long as the arena, which stays borrowed mutably
            // while the result lives; memory that the host sees is handed out initialised. The ranges of the items
            // do not overlap, so neither do the results. No safe code reaches the memory by another way, and the
            // unsafe ways (kernels, `Slice::host_bytes`) promise that no load goes on meanwhile.
            Some(unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), item.len) })
        };
        self.items.iter().map(bytes).collect()
    }
}

impl std::fmt::Debug for WeightArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tensors, chunks, bytes) = (self.items.len(), self.chunks.len(), self.bytes());
        write!(
            f,
            "WeightArena({tensors} tensors in {chunks} chunks, {bytes} bytes of {} memory)",
            self.kind.name()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: DeviceKind, integrated: bool, force_device: bool, expected: MemoryKind) {
        let caps = DeviceCaps {
            id: DeviceId { kind, ordinal: 0 },
            name: String::new(),
            arch: "gfx1151".to_owned(),
            features: Vec::new(),
            wave_width: 32,
            integrated,
            units: 40,
        };
        assert_eq!(kind_for(&caps, force_device), expected);
    }

    #[test]
    fn an_integrated_amd_gpu_keeps_weights_in_host_memory() {
        check(DeviceKind::Rocm, true, false, MemoryKind::Mapped);
        check(DeviceKind::Rocm, true, true, MemoryKind::Device);
        check(DeviceKind::Rocm, false, false, MemoryKind::Device);
        check(DeviceKind::Rocm, false, true, MemoryKind::Device);
        check(DeviceKind::Cuda, true, false, MemoryKind::Device);
        check(DeviceKind::Cpu, true, false, MemoryKind::Device);
    }
}
