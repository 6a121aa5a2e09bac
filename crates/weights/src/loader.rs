//! Weights whose addresses are fixed and which become resident at once or one by one.

use std::time::Instant;

use portolan_device::{Device, DeviceKind, StagingOptions, Stream, WeightArena};

use crate::{
    Checkpoint, ConfigSource, LoadOptions, LoadPlan, LoadTransferStats, PlannedTensor, Result, WeightError,
    WeightTensor,
    file::WeightFile,
    fill::{add_tasks, is_direct, plane_offsets, run},
    staged::Staged,
};

/// A load in steps. [`Loader::new`] takes the memory and reads nothing; then [`Loader::load_all`] makes every weight
/// resident, or [`Loader::load_one`] each at its first use. Two weights that ask for the same bytes share them.
///
/// Where the host sees the memory, files are read into place. Where it does not, they go through the device's
/// [`StagingPool`](portolan_device::StagingPool).
///
/// All calls take one stream, that of the kernels: what reads a weight on it comes after the upload, and no stream
/// waits for another.
pub struct Loader {
    checkpoint: Checkpoint,
    tensors: Vec<PlannedTensor>,
    files: Vec<WeightFile>,
    device: Device,
    arena: WeightArena,
    /// Whether a weight's bytes are there, or on the way on the stream; by the first weight that asks for them.
    resident: Vec<bool>,
    readers: usize,
    staging: StagingOptions,
    stats: LoadTransferStats,
}

impl Loader {
    /// Takes device memory for a plan's weights and opens the checkpoint's files.
    ///
    /// # Errors
    /// [`WeightError::Device`] with [`DeviceError::NoRoom`](portolan_device::DeviceError::NoRoom), which names the
    /// first weight that finds no place; `NotFound` or `Io` for a file; `Variable` for a bad `PORTOLAN_PINNED_LOAD`.
    /// No memory is kept.
    pub fn new(
        checkpoint: &Checkpoint,
        plan: &LoadPlan,
        device: &Device,
        options: &LoadOptions,
    ) -> Result<Self> {
        let start = Instant::now();
        let staging = match options.staging {
            Some(staging) => staging,
            None => StagingOptions::from_env()?,
        };
        let files = checkpoint.open_files()?;
        let asked: Vec<(&str, usize)> =
            plan.tensors.iter().map(|t| (t.request.name.as_str(), t.device_bytes as usize)).collect();
        let arena = WeightArena::reserve(device, &asked, options.chunk_bytes)?;
        let mut stats = LoadTransferStats {
            unused_tensors: plan.unused.len(),
            unused_bytes: plan.unused_bytes,
            arena_bytes: arena.bytes(),
            ..Default::default()
        };
        stats.wall = start.elapsed();
        Ok(Loader {
            checkpoint: only_used(checkpoint, plan),
            tensors: plan.tensors.clone(),
            files,
            device: device.clone(),
            arena,
            resident: vec![false; plan.tensors.len()],
            readers: options.readers.max(1),
            staging: staging.for_need(plan.device_bytes),
            stats,
        })
    }

    /// The weights, in the order of the plan. Their addresses are final, whether or not they are resident.
    ///
    /// # Errors
    /// None that a plan of [`plan_load`](crate::plan_load) can cause.
    pub fn weights(&self) -> Result<Vec<WeightTensor>> {
        (0..self.tensors.len()).map(|index| self.weight(index)).collect()
    }

    fn weight(&self, index: usize) -> Result<WeightTensor> {
        let tensor = self.planned(index)?;
        let item = tensor.same_as.unwrap_or(index);
        let sizes = tensor.plane_bytes();
        let planes = plane_offsets(&sizes).into_iter().zip(sizes);
        let planes = planes.map(|(offset, len)| Ok(self.arena.slice(item, offset, len)?));
        Ok(WeightTensor {
            name: tensor.request.name.clone(),
            shape: tensor.resolved.shape.clone(),
            encoding: tensor.resolved.encoding,
            layout: tensor.layout(),
            planes: planes.collect::<Result<_>>()?,
        })
    }

    fn planned(&self, index: usize) -> Result<&PlannedTensor> {
        let weights = self.tensors.len();
        self.tensors.get(index).ok_or(WeightError::NoSuchWeight { index, weights })
    }

    /// Makes every weight resident that is not yet, and waits until it is. `progress` is called on this thread and is
    /// told the bytes done and the bytes in all.
    ///
    /// # Errors
    /// [`WeightError::ShortRead`] for a file that was cut since it was opened, [`WeightError::BlockScale`] for a
    /// damaged block, `Io`, `Device`. The first error stops all readers; the weights that were to be loaded count as
    /// not resident, and the call may be made again.
    pub fn load_all(&mut self, stream: &Stream, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let wanted: Vec<usize> = self
            .tensors
            .iter()
            .enumerate()
            .filter(|(i, t)| t.same_as.is_none() && !self.resident[*i])
            .map(|(i, _)| i)
            .collect();
        self.load(&wanted, stream, progress, true)
    }

    /// Makes a weight resident, if it is not yet: for the stream, not for the host, which does not wait for the copy.
    /// Says whether there was something to do.
    ///
    /// # Errors
    /// As [`Loader::load_all`], and [`WeightError::NoSuchWeight`].
    pub fn load_one(&mut self, index: usize, stream: &Stream) -> Result<bool> {
        let first = self.planned(index)?.same_as.unwrap_or(index);
        if self.is_resident(first) {
            return Ok(false);
        }
        self.load(&[first], stream, &mut |_, _| {}, false)?;
        Ok(true)
    }

    fn load(
        &mut self,
        wanted: &[usize],
        stream: &Stream,
        progress: &mut dyn FnMut(u64, u64),
        wait: bool,
    ) -> Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        if self.arena.host_visible() {
            self.load_in_place(wanted, progress)?;
        } else {
            self.load_staged(wanted, stream, progress, wait)?;
        }
        for &index in wanted {
            if let (Some(resident), Some(tensor)) = (self.resident.get_mut(index), self.tensors.get(index)) {
                *resident = true;
                self.stats.bytes += tensor.plane_bytes().iter().map(|&n| n as u64).sum::<u64>();
            }
        }
        if self.is_all_resident() {
            self.files.clear();
        }
        self.stats.wall += start.elapsed();
        Ok(())
    }

    fn load_in_place(&mut self, wanted: &[usize], progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut ranges: Vec<Option<&mut [u8]>> =
            self.arena.host_mut().into_iter().flatten().map(Some).collect();
        let mut tasks = Vec::new();
        for &index in wanted {
            if let (Some(tensor), Some(range)) =
                (self.tensors.get(index), ranges.get_mut(index).and_then(Option::take))
            {
                add_tasks(&mut tasks, index, tensor, range);
            }
        }
        // The CPU's memory comes from the kernel, zeroed.
        let how = (self.readers, self.device.caps().kind() != DeviceKind::Cpu);
        let read = run(&self.checkpoint, &self.tensors, &self.files, tasks, how, progress)?;
        self.stats.add_reads(&read, self.readers);
        for tensor in wanted.iter().filter_map(|&i| self.tensors.get(i)) {
            match is_direct(&self.checkpoint, tensor) {
                true => self.stats.direct_tensors += 1,
                false => self.stats.pageable_tensors += 1,
            }
        }
        Ok(())
    }

    fn load_staged(
        &mut self,
        wanted: &[usize],
        stream: &Stream,
        progress: &mut dyn FnMut(u64, u64),
        wait: bool,
    ) -> Result<()> {
        let mut pool = self.device.staging(&self.staging)?;
        // What others left uncounted is not this load's.
        pool.take_counters();
        let staged = Staged {
            checkpoint: &self.checkpoint,
            tensors: &self.tensors,
            files: &self.files,
            readers: self.readers,
        };
        let result = staged.run(wanted, &mut self.arena, &mut pool, stream, progress);
        // After an error nothing is left under way either: the caller may be about to free what it was for.
        let waited = if wait || result.is_err() { pool.drain() } else { Ok(()) };
        self.stats.add_copies(&pool.take_counters());
        let (read, pinned) = result?;
        waited?;
        self.stats.add_reads(&read, self.readers);
        match pinned {
            true => self.stats.pinned_tensors += wanted.len(),
            false => self.stats.pageable_tensors += wanted.len(),
        }
        Ok(())
    }

    /// Whether a weight's bytes are there for whatever runs on the stream next.
    pub fn is_resident(&self, index: usize) -> bool {
        let first = self.tensors.get(index).map(|t| t.same_as.unwrap_or(index));
        first.and_then(|first| self.resident.get(first)).copied().unwrap_or(false)
    }

    /// Whether every weight is.
    pub fn is_all_resident(&self) -> bool {
        (0..self.tensors.len()).all(|index| self.is_resident(index))
    }

    /// Bytes of the weights that are resident.
    pub fn resident_bytes(&self) -> u64 {
        self.stats.bytes
    }

    /// What was done so far.
    pub fn stats(&self) -> &LoadTransferStats {
        &self.stats
    }
}

impl Drop for Loader {
    /// Waits for the copies of weights that were loaded one by one, so that the staging ring holds none of the
    /// arena's memory any longer.
    fn drop(&mut self) {
        if self.arena.host_visible() {
            return;
        }
        if let Err(error) = self.device.staging(&self.staging).and_then(|mut pool| pool.drain()) {
            tracing::warn!("weights may not have arrived: {error}");
        }
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resident = self.resident.iter().filter(|r| **r).count();
        write!(f, "Loader({resident} of {} weights resident in {:?})", self.tensors.len(), self.arena)
    }
}

/// The checkpoint without what no weight of the plan reads, to be kept for as long as weights may be loaded.
fn only_used(checkpoint: &Checkpoint, plan: &LoadPlan) -> Checkpoint {
    let used = plan.tensors.iter().flat_map(|t| &t.resolved.sources);
    let tensors = used.filter_map(|name| Some((name.clone(), checkpoint.get(name)?.clone()))).collect();
    Checkpoint {
        path: checkpoint.path.clone(),
        files: checkpoint.files.clone(),
        dialect: checkpoint.dialect,
        tensors,
        config: ConfigSource::None,
        metadata: Default::default(),
    }
}
