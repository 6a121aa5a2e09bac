//! Device code: what is compiled, and how it is launched.

use std::fmt;

use crate::{DeviceId, backend::KernelBackend};

/// The text of a kernel with what it is compiled with.
#[derive(Clone, Debug)]
pub struct KernelSource<'a> {
    /// The name of the file, for messages: `norm.cu`.
    pub file: &'a str,
    /// Its text.
    pub text: &'a str,
    /// What it includes: names and texts.
    pub headers: &'a [(&'a str, &'a str)],
    /// The function to launch, `extern "C"`.
    pub entry: &'a str,
    /// Names and values that are defined for it.
    pub defines: &'a [(&'a str, String)],
}

impl fmt::Display for KernelSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.entry, self.file)
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks: x up to 2^31 - 1, y and z up to 65,535.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Blocks of a cluster, in x; 1 for none. Hopper and later.
    pub cluster: u32,
    /// Lets the kernel begin before the one ahead of it has ended (programmatic dependent launch): it waits by itself
    /// before it reads what that one wrote. Hopper and later; elsewhere it is not heeded, which is always right.
    pub overlap: bool,
}

impl LaunchConfig {
    /// A plain launch.
    pub const fn new(grid: [u32; 3], block: u32, shared: u32) -> Self {
        LaunchConfig { grid, block: [block, 1, 1], shared, cluster: 1, overlap: false }
    }
}

/// A function of device code, loaded and ready to launch. Dropping it unloads the code.
pub struct Kernel {
    pub(crate) device: DeviceId,
    pub(crate) backend: Box<dyn KernelBackend>,
}

impl Kernel {
    /// The device it was loaded for.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Registers a thread, static shared bytes and spilled bytes a thread, as the driver says.
    pub fn resources(&self) -> KernelResources {
        self.backend.resources()
    }
}

/// What a kernel takes of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers a thread.
    pub registers: u32,
    /// Shared memory of a block that is known when it is compiled, in bytes.
    pub shared: u32,
    /// Local memory of a thread, in bytes: spills and arrays that registers could not hold.
    pub local: u32,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:?} on {})", self.backend, self.device)
    }
}
