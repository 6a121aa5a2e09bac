//! The plan of memory: what will be taken from which pool, before a byte is read.
//!
//! A GPU with memory of its own has two pools: `cuda:0 device` for weights, caches and workspace, and `host` for what
//! loading takes: the staging ring and the readers' scratch. Where the device's memory is the host's (a CPU) there is
//! one, `host`, so that no byte of DRAM is promised twice.
//!
//! An integrated AMD GPU has three: `rocm:0 device`, where `hipMalloc` takes from; `rocm:0 mapped`, the host's memory
//! that kernels reach; and `host`. The mapped pool lies within the host's, and the device's lies within the mapped one
//! unless the firmware set it aside. What is taken from a pool is counted in each that it lies within, so each is held
//! to its own limit, and no two are added up or compared for the larger.

use std::fmt;

use portolan_device::{
    Device, DeviceKind, MemoryInfo, MemoryKind, StagingOptions, WeightArena, WorkingBytes, WorkingMemory,
    weight_memory_kind,
};

use crate::{LoadOptions, LoadPlan, Result, WeightError, memory_advice::Apu, pack::is_too_coarse};

/// One thing that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// `weights`, `kv cache`, `workspace`, ...
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Index into [`MemoryPlan::pools`].
    pub pool: usize,
}

/// A pool that memory is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// `host`, `cuda:0 device`, ...
    pub name: String,
    /// Bytes that can be taken; `u64::MAX` when nobody knows.
    pub available: u64,
    /// Bytes in all, taken or not.
    pub total: u64,
    /// Who said so.
    pub source: String,
    /// The pool that this one's memory is a part of, by its index: what is taken from here is taken from there too.
    pub within: Option<usize>,
}

/// What will be taken from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The pools.
    pub pools: Vec<Pool>,
    /// The items.
    pub items: Vec<MemoryItem>,
    /// Every count that was found, where there are several: no pool is the sum or the larger of two.
    pub sources: Vec<MemoryInfo>,
    /// What there is to say about a shortage of an integrated AMD GPU.
    pub(crate) apu: Option<Apu>,
}

/// Which of a plan's pools each kind of memory comes from; the same one where two are one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePools {
    /// Index of the pool of the device's own memory.
    pub device: usize,
    /// Index of the pool of the host's memory that the device copies from, or reaches directly.
    pub mapped: usize,
    /// Index of the pool of the host's memory.
    pub host: usize,
}

impl DevicePools {
    /// Index of the pool that a kind of memory comes from.
    pub const fn of(self, kind: MemoryKind) -> usize {
        match kind {
            MemoryKind::Device => self.device,
            MemoryKind::Pinned | MemoryKind::Mapped => self.mapped,
        }
    }
}

fn pool(name: String, info: &MemoryInfo, within: Option<usize>) -> Pool {
    Pool { name, available: info.free, total: info.total, source: info.source.to_owned(), within }
}

impl MemoryPlan {
    /// A plan with the pools of a device, and nothing in it yet.
    ///
    /// # Errors
    /// When the device does not say what memory it has.
    pub fn of_device(device: &Device) -> Result<(Self, DevicePools)> {
        let (caps, own) = (device.caps(), device.memory_info()?);
        let of_device = |what: &str| format!("{} {what}", device.id());
        let sources = device.memory_sources();
        let mut plan =
            MemoryPlan { sources: sources.map(|s| s.found()).unwrap_or_default(), ..Self::default() };
        let host = sources.map_or_else(Device::host_memory, |s| s.host);
        let pools = match caps.kind() {
            DeviceKind::Rocm if caps.integrated => {
                let pools = DevicePools { device: 0, mapped: 1, host: 2 };
                let mapped = device.pool_info(MemoryKind::Mapped)?;
                let shared = sources.is_none_or(|s| s.device_is_host_memory());
                plan.apu = sources.map(|s| Apu::new(weight_memory_kind(caps), &s));
                plan.pools = vec![
                    pool(of_device("device"), &own, shared.then_some(pools.mapped)),
                    pool(of_device("mapped"), &mapped, Some(pools.host)),
                    pool("host".to_owned(), &host, None),
                ];
                pools
            }
            kind if caps.integrated || kind == DeviceKind::Cpu => {
                plan.pools = vec![pool("host".to_owned(), &own, None)];
                DevicePools { device: 0, mapped: 0, host: 0 }
            }
            _ => {
                let own = pool(of_device("device"), &own, None);
                plan.pools = vec![own, pool("host".to_owned(), &host, None)];
                DevicePools { device: 0, mapped: 1, host: 1 }
            }
        };
        Ok((plan, pools))
    }

    /// Adds what loading takes: the weights, as an arena rounds them; staging, where the host does not see the
    /// device's memory; and the scratch of the readers.
    ///
    /// # Errors
    /// When `PORTOLAN_PINNED_LOAD` cannot be read.
    pub fn add_load(
        &mut self,
        load: &LoadPlan,
        device: &Device,
        pools: DevicePools,
        options: &LoadOptions,
    ) -> Result<()> {
        let sizes: Vec<usize> = load.tensors.iter().map(|t| t.device_bytes as usize).collect();
        let mut scratch = load.scratch_bytes;
        if device.caps().kind() == DeviceKind::Cpu {
            // Host memory comes by the page as it is touched.
            self.add("weights", load.device_bytes, pools.device);
        } else {
            let kind = weight_memory_kind(device.caps());
            self.add("weights", WeightArena::planned_bytes(&sizes, options.chunk_bytes), pools.of(kind));
            if kind == MemoryKind::Device {
                scratch += self.add_staging(load, pools, options)?;
            }
        }
        self.add("loading scratch", scratch, pools.host);
        Ok(())
    }

    /// Adds the staging ring; gives the scratch that it wants of the host.
    fn add_staging(&mut self, load: &LoadPlan, pools: DevicePools, options: &LoadOptions) -> Result<u64> {
        let staging = match options.staging {
            Some(staging) => staging,
            None => StagingOptions::from_env()?,
        };
        let need = staging.bytes_for(load.device_bytes);
        let pool = pools.of(MemoryKind::Pinned);
        self.add(if staging.pinned { "staging (pinned)" } else { "staging" }, need, pool);
        // A tensor that cannot go round the ring is made whole on the host first, one at a time.
        let coarse = load.tensors.iter().filter(|t| is_too_coarse(t, staging.floor()));
        Ok(coarse.map(|t| t.device_bytes).max().unwrap_or(0))
    }

    /// Where the working memory goes, once the weights are in the plan ([`WorkingMemory::place`]).
    pub fn working_memory(&self, device: &Device, pools: DevicePools, bytes: &WorkingBytes) -> WorkingMemory {
        let Some(own) = self.pools.get(pools.device) else { return WorkingMemory::default() };
        // Mapped memory may use up what the own pool lies within before the own pool is asked.
        let taken = self.need(own.within.unwrap_or(pools.device));
        let info = MemoryInfo { free: own.available, total: own.total, source: "the plan" };
        WorkingMemory::place(device.caps(), &info, taken, bytes)
    }

    /// Adds an item.
    pub fn add(&mut self, what: impl Into<String>, bytes: u64, pool: usize) {
        self.items.push(MemoryItem { what: what.into(), bytes, pool });
    }

    /// Bytes asked of a pool, and of those that lie within it.
    pub fn need(&self, pool: usize) -> u64 {
        let asked = self.items.iter().filter(|i| self.lies_within(i.pool, pool));
        asked.fold(0, |sum, i| sum.saturating_add(i.bytes))
    }

    /// Whether a pool is the other, or a part of it.
    fn lies_within(&self, pool: usize, outer: usize) -> bool {
        let next = |p: &usize| self.pools.get(*p)?.within;
        // No chain is longer than there are pools.
        std::iter::successors(Some(pool), next).take(self.pools.len()).any(|p| p == outer)
    }

    /// An error, with every item, when a pool cannot hold what is asked of it.
    pub fn check(&self) -> Result<()> {
        match self.shortage() {
            None => Ok(()),
            Some((pool, need, available)) => Err(WeightError::InsufficientMemory {
                pool: self.pools[pool].name.clone(),
                need,
                available,
                plan: self.to_string(),
            }),
        }
    }

    /// The first pool that cannot hold what is asked of it: its index, need and available bytes.
    pub fn shortage(&self) -> Option<(usize, u64, u64)> {
        (0..self.pools.len())
            .map(|p| (p, self.need(p), self.pools[p].available))
            .find(|(_, need, available)| need > available)
    }
}

/// Bytes as a person reads them: `1.50 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size {
            return format!("{:.2} {unit}", bytes as f64 / size as f64);
        }
    }
    format!("{bytes} B")
}

/// As [`human_bytes`]; `u64::MAX` is what nobody knows.
fn known(bytes: u64) -> String {
    if bytes == u64::MAX { "unknown".to_owned() } else { human_bytes(bytes) }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pool) in self.pools.iter().enumerate() {
            let available = known(pool.available);
            writeln!(f, "{}: {available} available ({})", pool.name, pool.source)?;
            for item in self.items.iter().filter(|i| i.pool == index) {
                writeln!(f, "  {:<24} {:>12}", item.what, human_bytes(item.bytes))?;
            }
            for (inner, part) in self.pools.iter().enumerate().filter(|(_, p)| p.within == Some(index)) {
                writeln!(f, "  {:<24} {:>12}", part.name, human_bytes(self.need(inner)))?;
            }
            writeln!(f, "  {:<24} {:>12}", "in all", human_bytes(self.need(index)))?;
        }
        for source in &self.sources {
            let (free, total) = (known(source.free), known(source.total));
            writeln!(f, "{}: {free} free of {total}", source.source)?;
        }
        self.advice().iter().try_for_each(|advice| writeln!(f, "{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(context: u64) -> MemoryPlan {
        let pool = |name: &str, available| {
            pool(name.to_owned(), &MemoryInfo { free: available, total: available, source: "test" }, None)
        };
        let pools = vec![pool("host", u64::MAX), pool("cuda:0 device", 1 << 30)];
        let mut plan = MemoryPlan { pools, ..MemoryPlan::default() };
        plan.add("weights", 600 << 20, 1);
        plan.add("kv cache", context * 4096, 1);
        plan.add("staging", u64::MAX, 0);
        plan
    }

    #[test]
    fn ds4_475_a_shortage_is_refused_with_the_numbers() {
        plan(1 << 10).check().unwrap();
        let error = plan(1 << 20).check().unwrap_err();
        let need = (600 << 20) + (4096 << 20);
        assert!(matches!(&error, WeightError::InsufficientMemory { pool, need: n, available, .. }
            if pool == "cuda:0 device" && *n == need && *available == 1 << 30));
        let text = error.to_string();
        for part in ["4.59 GiB", "weights", "600.00 MiB", "kv cache", "smaller context"] {
            assert!(text.contains(part), "'{text}' does not say '{part}'");
        }
    }

    #[test]
    fn llama_cpp_26432_need_grows_with_the_context() {
        let need = |context| plan(context).need(1);
        assert!(need(196_608) > need(131_072));
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(1536), "1.50 KiB");
        assert_eq!(human_bytes(3 << 30), "3.00 GiB");
    }
}
