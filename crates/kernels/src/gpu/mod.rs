//! Kernels of GPUs: how a launch of the graph becomes a text to compile and a grid to launch.
//!
//! A GPU's variant is a [`GpuKernel`]: a file of device code, an entry point, the defines that make it serve a launch,
//! and the grid and arguments of a step. CUDA and ROCm share these; what differs is the text (`sources.rs`).
//! Arguments are one `#[repr(C)]` struct, whose size the device code asserts against `ARGS_SIZE`. Nothing in them
//! changes from step to step but the numbers of rows, which a captured graph fixes: it is kept by [`StepShape`].

mod args;
mod attention;
mod elementwise;
mod gather;
mod matmul;
mod matrix;
mod norm;
mod norm_rope;
pub mod offline;
mod prepare;
mod rope;
mod simt;
mod sources;
mod takes;
mod weights;

use std::sync::LazyLock;

use portolan_device::{DType, DeviceCaps, DeviceKind};

pub use args::{ArgBytes, Call};
pub use prepare::{GpuPrograms, Prepared};

use crate::{Launch, OpKind, StepShape, chart::Variant};

/// A kernel of a GPU.
#[derive(Debug)]
pub struct GpuKernel {
    /// The file of device code, without its extension.
    pub file: &'static str,
    /// The entry point.
    pub entry: &'static str,
    /// Bytes of the argument struct.
    pub args_size: usize,
    /// What the text is compiled with for a launch.
    pub defines: fn(&Launch, &DeviceCaps) -> Defines,
    /// Grid and arguments for a step of this shape. A step without work for it is never asked for.
    pub call: fn(&Launch, StepShape, &DeviceCaps) -> Call,
    /// Bytes of scratch for the largest step. It is zeroed when the program is built, and a kernel that counts in
    /// it leaves zeros behind.
    pub scratch: fn(&Launch, StepShape, &DeviceCaps) -> usize,
}

impl GpuKernel {
    /// All that its text is compiled with for a launch: its own defines, and those that every text counts on.
    pub(crate) fn all_defines(&self, launch: &Launch, caps: &DeviceCaps) -> Defines {
        let mut defines = (self.defines)(launch, caps);
        defines.push(("ARGS_SIZE", self.args_size.to_string()));
        defines.push(("LANES", caps.wave_width.to_string()));
        defines
    }
}

/// Bytes of scratch that the kernels of a program ask for at most, all together.
pub const MOST_SCRATCH: u64 = 96 << 20;

/// `-D` names and values.
pub type Defines = Vec<(&'static str, String)>;

/// For kernels that need no scratch.
pub(crate) fn no_scratch(_: &Launch, _: StepShape, _: &DeviceCaps) -> usize {
    0
}

/// The device code's name of a type.
pub(crate) fn type_name(dtype: DType) -> String {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "float",
    }
    .to_owned()
}

/// By device: by op, best first.
static SLOTS: LazyLock<[Vec<Vec<Variant>>; 2]> = LazyLock::new(|| {
    [DeviceKind::Cuda, DeviceKind::Rocm].map(|kind| {
        let slot = |op| {
            let all: Vec<Variant> = match op {
                OpKind::Matmul | OpKind::GateUp | OpKind::Qkv => matmul::variants(op, kind),
                OpKind::Attention => attention::variants(kind),
                OpKind::RmsNorm | OpKind::AddRmsNorm => norm::variants(op),
                OpKind::RopeTable | OpKind::Rope | OpKind::CacheAppend | OpKind::RopeAppend => {
                    rope::variants(op)
                }
                OpKind::NormRopeAppend => norm_rope::variants(),
                OpKind::Embed | OpKind::SelectRows | OpKind::Argmax => gather::variants(op),
                OpKind::Activate | OpKind::Add | OpKind::Mul | OpKind::QuantizeRows => {
                    elementwise::variants(op)
                }
            };
            all.into_iter().filter(|v| sources::has(kind, v)).collect()
        };
        OpKind::ALL.into_iter().map(slot).collect()
    })
});

/// A GPU's slot for an op, best first.
pub(crate) fn variants(op: OpKind, kind: DeviceKind) -> &'static [Variant] {
    let slots = match kind {
        DeviceKind::Cuda => &SLOTS[0],
        DeviceKind::Rocm => &SLOTS[1],
        DeviceKind::Cpu => return &[],
    };
    // `OpKind::ALL` is in the order of the enum.
    slots.get(op as usize).map_or(&[], Vec::as_slice)
}
