//! The plan of memory: what will be taken from which pool, before a byte is read.

use std::fmt;

use crate::{Result, WeightError};

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

impl MemoryPlan {
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
