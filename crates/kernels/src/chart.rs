//! The chart of kernel ports: for each op a slot for each device, and in a slot an ordered list of variants.
//!
//! Three questions, one table. [`has_kernel_port`] says what a device can do and ignores the environment.
//! [`select_port`] gives the variant that serves a use, or says why none does. Planner and launch both go
//! through it, so they cannot disagree.

use std::{collections::BTreeMap, fmt};

use portolan_device::{DType, DeviceCaps, DeviceKind, cpu::Team, env};
use portolan_weights::{Encoding, Layout};

use crate::{
    CacheKind, Launch, Op, OpKind, Result, StepShape, ValueType, cpu,
    gpu::{self, GpuKernel},
};

/// The use of an op that a port is sought for.
#[derive(Clone, Debug)]
pub struct OpSpec<'a> {
    /// The op with its attributes.
    pub op: &'a Op,
    /// Rows of the step.
    pub rows: usize,
    /// What [`ValueType::Activation`] is.
    pub activation: DType,
    /// Type of the first input.
    pub input: ValueType,
    /// Columns of the first input (0 without one).
    pub input_cols: usize,
    /// The weights that it reads: encoding, layout, shape.
    pub weights: &'a [WeightSpec],
    /// The cache, with its element type.
    pub cache: Option<(CacheKind, DType)>,
}

/// A weight as a port sees it before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// How it is stored.
    pub encoding: Encoding,
    /// How it is arranged.
    pub layout: Layout,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl fmt::Display for OpSpec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={} input={:?}x{}", self.rows, self.input, self.input_cols)?;
        for w in self.weights {
            write!(f, " weight={}{:?}", w.encoding, w.shape)?;
        }
        if let Some((kind, dtype)) = self.cache {
            write!(f, " cache={kind:?} of {dtype}")?;
        }
        Ok(())
    }
}

/// Why a port does not serve a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Decline {
    /// The slot is empty.
    NoPort,
    /// Closed by `PORTOLAN_PORT_<OP>=0`.
    Closed,
    /// Only taken when asked for by `PORTOLAN_PORT_<OP>=1`.
    OptIn,
    /// A GPU's port on a device that is none.
    NotGpu,
    /// Not for this width of wave.
    Wave,
    /// Not for this architecture, or it lacks a feature.
    Arch,
    /// Not for these types or encodings.
    Dtype,
    /// Not for these sizes.
    Shape,
    /// Not under `--exact`.
    NotExact,
    /// Not under `--deterministic`.
    NotBatchInvariant,
}

impl Decline {
    /// One word, as in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Decline::NoPort => "NoPort",
            Decline::Closed => "Closed",
            Decline::OptIn => "OptIn",
            Decline::NotGpu => "NotGpu",
            Decline::Wave => "Wave",
            Decline::Arch => "Arch",
            Decline::Dtype => "Dtype",
            Decline::Shape => "Shape",
            Decline::NotExact => "NotExact",
            Decline::NotBatchInvariant => "NotBatchInvariant",
        }
    }
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Decline::NoPort => "NoPort: there is none",
            Decline::Closed => "Closed: PORTOLAN_PORT_<OP>=0 is set",
            Decline::OptIn => "OptIn: it is taken only under PORTOLAN_PORT_<OP>=1",
            Decline::NotGpu => "NotGpu: the port is for a GPU",
            Decline::Wave => "Wave: not for this width of wave",
            Decline::Arch => "Arch: not for this architecture",
            Decline::Dtype => "Dtype: not for these types",
            Decline::Shape => "Shape: not for these sizes",
            Decline::NotExact => "NotExact: not under --exact",
            Decline::NotBatchInvariant => "NotBatchInvariant: not under --deterministic",
        })
    }
}

/// A CPU kernel. Everything has been checked when the launch was built, so it cannot fail.
pub type CpuKernel = fn(&Launch, StepShape, &Team);

/// How a variant is run.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Entry {
    /// A Rust function over the CPU's team.
    Cpu(CpuKernel),
    /// Device code.
    Gpu(&'static GpuKernel),
}

impl Entry {
    /// The device code, where it is that.
    pub fn gpu(&self) -> Option<&'static GpuKernel> {
        match self {
            Entry::Cpu(_) => None,
            Entry::Gpu(kernel) => Some(kernel),
        }
    }
}

/// One implementation of an op on one kind of device.
#[derive(Clone, Copy)]
pub struct Variant {
    /// `plain`, `avx2`, `int8`, ...
    pub name: &'static str,
    /// Fewest and most rows that it is for.
    pub rows: (usize, usize),
    /// A plain f32 kernel: the oracle of the others, and what `--exact` takes.
    pub exact: bool,
    /// A row's result does not depend on the other rows.
    pub batch_invariant: bool,
    /// Numbers that stand in f32 elsewhere (dequantized weights, probabilities) are rounded to a type of 16 bits before
    /// a matrix unit multiplies them.
    pub rounds_weights: bool,
    /// Only under `PORTOLAN_PORT_<OP>=1`.
    pub opt_in: bool,
    /// Whether it takes a use, beyond what the fields above say.
    pub takes: fn(&OpSpec<'_>, &DeviceCaps) -> Result<(), Decline>,
    /// What it takes, for the chart that people read.
    pub describe: &'static str,
    /// How it is run.
    pub entry: Entry,
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variant({})", self.name)
    }
}

/// The variants of an op on a kind of device, best first.
pub fn slot(op: OpKind, device: DeviceKind) -> &'static [Variant] {
    match device {
        DeviceKind::Cpu => cpu::variants(op),
        DeviceKind::Cuda | DeviceKind::Rocm => gpu::variants(op, device),
    }
}

/// Whether any kernel port of an op exists on a device. Ignores the environment.
pub fn has_kernel_port(op: OpKind, device: DeviceKind) -> bool {
    !slot(op, device).is_empty()
}

/// What the user asked of the choice of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    /// Plain f32 kernels only.
    pub exact: bool,
    /// Batch-invariant kernels only.
    pub deterministic: bool,
    /// By op: closed (false) or opened (true).
    pub switches: BTreeMap<OpKind, bool>,
}

impl PortPolicy {
    /// Reads `PORTOLAN_PORT_<OP>` of every op.
    pub fn from_env() -> Result<Self> {
        let mut policy = PortPolicy::default();
        for op in OpKind::ALL {
            let name = format!("PORTOLAN_PORT_{}", op.name().to_ascii_uppercase());
            if let Some(on) = env::switch(&name)? {
                policy.switches.insert(op, on);
            }
        }
        Ok(policy)
    }
}

/// The variant that serves a use on a device, or why none does: the reason of the last that declined.
pub fn select_port(
    spec: &OpSpec<'_>,
    caps: &DeviceCaps,
    policy: &PortPolicy,
) -> Result<&'static Variant, Decline> {
    select_among(slot(spec.op.kind(), caps.kind()), spec, caps, policy)
}

/// [`select_port`] over a slot that need not be the chart's.
pub fn select_among<'v>(
    slot: &'v [Variant],
    spec: &OpSpec<'_>,
    caps: &DeviceCaps,
    policy: &PortPolicy,
) -> Result<&'v Variant, Decline> {
    let switch = policy.switches.get(&spec.op.kind()).copied();
    if switch == Some(false) {
        return Err(Decline::Closed);
    }
    let mut decline = Decline::NoPort;
    for variant in slot {
        let answer = if policy.exact && !variant.exact {
            Err(Decline::NotExact)
        } else if policy.deterministic && !variant.batch_invariant {
            Err(Decline::NotBatchInvariant)
        } else if variant.opt_in && switch != Some(true) {
            Err(Decline::OptIn)
        } else if spec.rows < variant.rows.0 || spec.rows > variant.rows.1 {
            Err(Decline::Shape)
        } else {
            (variant.takes)(spec, caps)
        };
        match answer {
            Ok(()) => return Ok(variant),
            Err(reason) => decline = reason,
        }
    }
    Err(decline)
}

/// The layouts that the kernels of a device would like for a weight of an encoding, best first. The last is
/// always [`Layout::Planes`].
pub fn layouts(encoding: Encoding, shape: &[usize], caps: &DeviceCaps) -> Vec<Layout> {
    let mut layouts = match caps.kind() {
        DeviceKind::Cpu => cpu::layouts(encoding, shape, caps),
        DeviceKind::Cuda | DeviceKind::Rocm => Vec::new(),
    };
    layouts.push(Layout::Planes);
    layouts
}

/// What makes a layout; none for [`Layout::Planes`].
pub fn repack(layout: Layout) -> Option<std::sync::Arc<dyn portolan_weights::Repack>> {
    cpu::repack(layout)
}
