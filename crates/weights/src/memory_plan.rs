//! The plan of memory: what will be taken from which pool, before a byte is read.
//!
//! A GPU with memory of its own has two pools: `cuda:0 device` for weights, caches and workspace, and `host` for what
//! loading takes: the staging ring and the readers' scratch. Where the device's memory is the host's (a CPU, an APU)
//! there is one, `host`, so that no byte of DRAM is promised twice.

use std::fmt;

use portolan_device::{Device, DeviceKind, MemoryInfo, StagingOptions, WeightArena};

use crate::{LoadOptions, LoadPlan, Result, WeightError, pack::is_too_coarse};

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
    /// Who said so.
    pub source: String,
}

/// What will be taken from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The pools.
    pub pools: Vec<Pool>,
    /// The items.
    pub items: Vec<MemoryItem>,
}

/// Which of a plan's pools a device's own memory and the host's are; the same one where they are one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePools {
    /// Index of the pool of the device's own memory.
    pub device: usize,
    /// Index of the pool of the host's memory.
    pub host: usize,
}

fn pool(name: String, info: &MemoryInfo) -> Pool {
    Pool { name, available: info.free, source: info.source.to_owned() }
}

impl MemoryPlan {
    /// A plan with the pools of a device, and nothing in it yet.
    ///
    /// # Errors
    /// When the device does not say what memory it has.
    pub fn of_device(device: &Device) -> Result<(Self, DevicePools)> {
        let own = device.memory_info()?;
        if device.caps().integrated || device.caps().kind() == DeviceKind::Cpu {
            let plan = MemoryPlan { pools: vec![pool("host".to_owned(), &own)], items: Vec::new() };
            return Ok((plan, DevicePools { device: 0, host: 0 }));
        }
        let host = pool("host".to_owned(), &Device::host_memory());
        let pools = vec![pool(format!("{} device", device.id()), &own), host];
        Ok((MemoryPlan { pools, items: Vec::new() }, DevicePools { device: 0, host: 1 }))
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
            self.add("weights", WeightArena::planned_bytes(&sizes, options.chunk_bytes), pools.device);
            let staging = match options.staging {
                Some(staging) => staging,
                None => StagingOptions::from_env()?,
            };
            let need = staging.bytes_for(load.device_bytes);
            self.add(if staging.pinned { "staging (pinned)" } else { "staging" }, need, pools.host);
            // A tensor that cannot go round the ring is made whole on the host first, one at a time.
            let coarse = load.tensors.iter().filter(|t| is_too_coarse(t, staging.floor()));
            scratch += coarse.map(|t| t.device_bytes).max().unwrap_or(0);
        }
        self.add("loading scratch", scratch, pools.host);
        Ok(())
    }

    /// Adds an item.
    pub fn add(&mut self, what: impl Into<String>, bytes: u64, pool: usize) {
        self.items.push(MemoryItem { what: what.into(), bytes, pool });
    }

    /// Bytes asked of a pool.
    pub fn need(&self, pool: usize) -> u64 {
        self.items.iter().filter(|i| i.pool == pool).fold(0, |sum, i| sum.saturating_add(i.bytes))
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

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pool) in self.pools.iter().enumerate() {
            let available = match pool.available {
                u64::MAX => "unknown".to_owned(),
                bytes => human_bytes(bytes),
            };
            writeln!(f, "{}: {available} available ({})", pool.name, pool.source)?;
            for item in self.items.iter().filter(|i| i.pool == index) {
                writeln!(f, "  {:<24} {:>12}", item.what, human_bytes(item.bytes))?;
            }
            writeln!(f, "  {:<24} {:>12}", "in all", human_bytes(self.need(index)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(context: u64) -> MemoryPlan {
        let pool = |name: &str, available| Pool { name: name.into(), available, source: "test".into() };
        let mut plan =
            MemoryPlan { pools: vec![pool("host", u64::MAX), pool("cuda:0 device", 1 << 30)], items: vec![] };
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
