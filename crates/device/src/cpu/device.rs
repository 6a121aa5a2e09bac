use std::sync::Arc;

use super::{
    Team,
    memory::{alloc_host, free_host, host_memory},
    stream::{CpuEvent, CpuStream},
};
use crate::{
    DeviceCaps, DeviceId, DeviceKind, MemoryInfo, MemoryKind, Result,
    backend::{Backend, EventBackend, RawMemory, StreamBackend},
};

/// How the CPU device is set up.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads of the team; 0 takes one for each core that the process may use.
    pub threads: usize,
}

/// The host's processor.
#[derive(Debug)]
pub struct CpuBackend {
    caps: DeviceCaps,
    team: Arc<Team>,
}

impl CpuBackend {
    /// Starts the team.
    pub fn new(options: &CpuOptions) -> Result<Self> {
        let threads = if options.threads == 0 { physical_cores() } else { options.threads };
        let id = DeviceId { kind: DeviceKind::Cpu, ordinal: 0 };
        let team = Arc::new(Team::new(threads).map_err(|e| crate::DeviceError::Failed {
            device: id,
            call: "starting the CPU threads",
            reason: e.to_string(),
        })?);
        let caps = DeviceCaps {
            id,
            name: processor_name(),
            arch: std::env::consts::ARCH.to_owned(),
            features: features(),
            wave_width: 1,
            integrated: true,
            units: team.threads(),
        };
        Ok(CpuBackend { caps, team })
    }
}

/// Cores that the process may use, by its affinity and its control group.
pub fn physical_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn processor_name() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn features() -> Vec<String> {
    #[allow(unused_mut)]
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let mut add = |there: bool, name: &str| {
            if there {
                found.push(name.to_owned());
            }
        };
        add(std::arch::is_x86_feature_detected!("avx2"), "avx2");
        add(std::arch::is_x86_feature_detected!("fma"), "fma");
        add(std::arch::is_x86_feature_detected!("f16c"), "f16c");
        add(std::arch::is_x86_feature_detected!("avx512f"), "avx512f");
        add(std::arch::is_x86_feature_detected!("avx512bw"), "avx512bw");
        add(std::arch::is_x86_feature_detected!("avx512vl"), "avx512vl");
        add(std::arch::is_x86_feature_detected!("avx512vnni"), "avx512vnni");
        add(std::arch::is_x86_feature_detected!("avxvnni"), "avxvnni");
    }
    #[cfg(target_arch = "aarch64")]
    {
        found.push("neon".to_owned());
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            found.push("dotprod".to_owned());
        }
    }
    found
}

impl Backend for CpuBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(host_memory())
    }

    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory> {
        alloc_host(self.caps.id, len, kind)
    }

    unsafe fn free(&self, raw: &RawMemory) {
        // SAFETY: the caller's promise: it came from `alloc_host` and is freed once.
        unsafe { free_host(raw) }
    }

    fn create_stream(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(CpuStream { device: self.caps.id }))
    }

    fn create_event(&self) -> Result<Box<dyn EventBackend>> {
        Ok(Box::new(CpuEvent))
    }

    fn team(&self) -> Option<&Arc<Team>> {
        Some(&self.team)
    }
}
