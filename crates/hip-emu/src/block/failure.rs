//! Why a launch ended early.

/// Why a launch ended early.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) block: [u32; 3],
    /// The thread that ran, where one did.
    pub(crate) thread: Option<[u32; 3]>,
}

/// What went wrong in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A signal of the processor: its number, the address that was touched, the bytes of the instruction.
    Signal { number: i32, address: usize, code: [u8; 8] },
    /// Words.
    Stopped(String),
    /// Threads wait at different barriers.
    DivergentBarrier,
    /// A barrier that some threads of the block never reach because they wait for something else.
    Deadlock { at_barrier: usize, at_exchange: usize },
    /// Bytes behind the dynamic shared memory were written.
    DynamicOverrun { bytes: usize },
}
