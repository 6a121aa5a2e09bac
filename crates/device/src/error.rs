use crate::DeviceId;

/// What can go wrong between Portolan and a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An allocation did not fit.
    #[error("{device}: out of memory: asked for {asked} bytes of {pool} memory{hint}", hint = available_hint(*.available))]
    OutOfMemory {
        /// The device that refused.
        device: DeviceId,
        /// `device`, `pinned` or `host`.
        pool: &'static str,
        /// Bytes asked for.
        asked: usize,
        /// Bytes that the device says are free, where it says so.
        available: Option<u64>,
    },
    /// A tensor finds no place among the weights.
    #[error("{device}: out of memory: weight '{tensor}' takes {asked} bytes of {pool} memory, after {reserved} bytes for the weights before it{hint}. Take a smaller quantization of the model, or choose another --device", hint = available_hint(*.available))]
    NoRoom {
        /// The device that refused.
        device: DeviceId,
        /// The tensor.
        tensor: String,
        /// Its bytes.
        asked: usize,
        /// `device`, `pinned` or `host`.
        pool: &'static str,
        /// Bytes that the device says are free, where it says so.
        available: Option<u64>,
        /// Bytes that the weights before it took.
        reserved: u64,
    },
    /// The device or its runtime cannot be used at all.
    #[error("{kind} cannot be used: {reason}. {advice}")]
    Unavailable {
        /// `cuda`, `rocm`.
        kind: crate::DeviceKind,
        /// What was found missing or too old.
        reason: String,
        /// What to install or to choose instead.
        advice: String,
    },
    /// The device was lost (reset, unplugged, a kernel that faulted). Its sessions end; others go on. After a fault CUDA
    /// takes no more work from the process, whatever is closed and opened again.
    #[error("{device} was lost: {reason}. Start the program again, or choose another --device")]
    Lost {
        /// The device that is gone.
        device: DeviceId,
        /// What the driver said.
        reason: String,
    },
    /// Device code that the compiler refuses: a fault of ours, or a compiler too old for the device.
    #[error("{device}: {kernel} does not compile with {compiler}: {log}")]
    Compile {
        /// The device that it is for.
        device: DeviceId,
        /// Entry point and file.
        kernel: String,
        /// The compiler, its version and its target.
        compiler: String,
        /// What it said.
        log: String,
    },
    /// A copy or a view goes beyond its buffer.
    #[error("{device}: {what}: range {offset}..{end} is outside a buffer of {len} bytes")]
    OutOfRange {
        /// Whose memory.
        device: DeviceId,
        /// The call that was asked for.
        what: &'static str,
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// The size of the buffer.
        len: usize,
    },
    /// The device does not offer this.
    #[error("{device} does not offer {what}")]
    Unsupported {
        /// The device that was asked.
        device: DeviceId,
        /// What it lacks.
        what: &'static str,
    },
    /// Any other failure that the runtime reported.
    #[error("{device}: {call} failed: {reason}")]
    Failed {
        /// The device that was asked.
        device: DeviceId,
        /// The call.
        call: &'static str,
        /// What the runtime said.
        reason: String,
    },
    /// A `--device` that cannot be read.
    #[error("unknown device '{given}': expected auto, cpu, cuda, cuda:N, rocm or rocm:N")]
    UnknownDevice {
        /// As it was typed.
        given: String,
    },
}

fn available_hint(available: Option<u64>) -> String {
    available.map_or_else(String::new, |free| format!(", {free} bytes are free"))
}
