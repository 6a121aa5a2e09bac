//! The devices that tests run on.

use portolan::device::{Device, cpu::CpuOptions};
use portolan_testkit::skipped;

/// The CPU, and the GPUs that are there.
pub(crate) fn devices() -> Vec<Device> {
    let gpus = [Device::cuda(0), Device::rocm(0)];
    let gpus = gpus.into_iter().filter_map(|gpu| gpu.map_err(|error| skipped(&error.to_string())).ok());
    std::iter::once(Device::cpu(&CpuOptions { threads: 2 }).unwrap()).chain(gpus).collect()
}
