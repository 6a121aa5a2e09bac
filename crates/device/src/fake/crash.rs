//! The real loss of a real GPU.

use crate::{Device, DeviceError, KernelSource, LaunchConfig, Result};

/// Writes where no memory is.
const TEXT: &str = r#"
struct Args { unsigned long long address; };
extern "C" __global__ void crash(Args args) { *reinterpret_cast<volatile int*>(args.address) = 1; }
"#;

/// Runs a kernel that the hardware stops, so that every handle of this process to the GPU is of no more use. For a test
/// with a process of its own.
///
/// # Errors
/// What the device says of it: [`DeviceError::Lost`].
pub fn crash(device: &Device) -> Result<()> {
    let kernel = device.kernel(&KernelSource {
        file: "crash.cu",
        text: TEXT,
        headers: &[],
        entry: "crash",
        defines: &[],
    })?;
    let stream = device.stream()?;
    let address: u64 = 256;
    // SAFETY: the struct is the kernel's. The address is of the first page, which no allocation has: the write is stopped
    // before it reaches anything. The kernel lives until the wait below.
    unsafe { stream.launch_kernel(&kernel, &LaunchConfig::new([1, 1, 1], 1, 0), &address.to_ne_bytes()) }?;
    stream.synchronize()?;
    Err(DeviceError::Failed {
        device: device.id(),
        call: "crash",
        reason: "a write to nowhere went well".to_owned(),
    })
}
