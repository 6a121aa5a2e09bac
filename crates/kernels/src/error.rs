use portolan_device::DeviceKind;

use crate::{Decline, OpKind};

/// What can go wrong between a graph and its kernels.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No port of a primitive op serves this use.
    #[error("{scope}: no {device} kernel for {op} ({spec}): {decline}")]
    NoPort {
        /// Where in the model.
        scope: String,
        /// The op.
        op: OpKind,
        /// The device.
        device: DeviceKind,
        /// What was asked of it.
        spec: String,
        /// Why the last candidate said no.
        decline: Decline,
    },
    /// The parts of a launch do not fit together: a fault in Portolan, found before the kernel runs.
    #[error("{scope}: {op}: {what} is {found}, expected {expected}")]
    Shape {
        /// Where in the model.
        scope: String,
        /// The op.
        op: OpKind,
        /// What does not fit.
        what: &'static str,
        /// What it is.
        found: usize,
        /// What it should be.
        expected: usize,
    },
    /// A part of a launch has another type than its op asks for: a fault in Portolan, as above.
    #[error("{scope}: {op}: {what} is {found}, expected {expected}")]
    Type {
        /// Where in the model.
        scope: String,
        /// The op.
        op: OpKind,
        /// What does not fit.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An output lies over memory that the same launch reads or writes: a fault in Portolan, as above.
    #[error("{scope}: {op}: the memory of output {output} overlaps that of {other}")]
    Overlap {
        /// Where in the model.
        scope: String,
        /// The op.
        op: OpKind,
        /// Which output.
        output: usize,
        /// What it lies over.
        other: &'static str,
    },
    /// The host cannot see memory that a CPU kernel was given.
    #[error("{scope}: {op}: the CPU cannot see its memory")]
    NotHostMemory {
        /// Where in the model.
        scope: String,
        /// The op.
        op: OpKind,
    },
    /// A variable is set to something that cannot be read.
    #[error(transparent)]
    Variable(#[from] portolan_device::env::BadVariable),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] portolan_device::DeviceError),
}
