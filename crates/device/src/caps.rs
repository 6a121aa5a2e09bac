//! What a device is: its kind, its number, and what its kernels may count on.

use std::fmt;

/// Which runtime drives a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU through the CUDA driver.
    Cuda,
    /// An AMD GPU through ROCm's HIP runtime.
    Rocm,
}

impl DeviceKind {
    /// Every kind, in the order the port chart prints them.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Rocm];

    /// `cpu`, `cuda`, `rocm`: as in `--device`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Rocm => "rocm",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device's kind and its number among that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    /// The runtime.
    pub kind: DeviceKind,
    /// 0 for the first of that kind.
    pub ordinal: usize,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            kind => write!(f, "{kind}:{}", self.ordinal),
        }
    }
}

/// What kernels and planners may count on. Filled in from the device itself, never from a compiler macro.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCaps {
    /// Kind and number.
    pub id: DeviceId,
    /// The name the driver or the processor reports.
    pub name: String,
    /// Architecture without features: `x86_64`, `sm_90`, `gfx1151`.
    pub arch: String,
    /// Features of the architecture: `avx2`, `sramecc+`, ...
    pub features: Vec<String>,
    /// Lanes that run in step: 32 or 64 on a GPU, 1 on the CPU.
    pub wave_width: u32,
    /// The device's memory is the host's (a CPU, or an APU).
    pub integrated: bool,
    /// Threads of the CPU team, or compute units of a GPU.
    pub units: usize,
}

impl DeviceCaps {
    /// The kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.id.kind
    }

    /// Whether the architecture has a feature, by its lower-case name.
    pub fn has_feature(&self, feature: &str) -> bool {
        self.features.iter().any(|f| f == feature)
    }
}
