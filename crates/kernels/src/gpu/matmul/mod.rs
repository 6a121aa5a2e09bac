//! matmul, gate_up and qkv: `kernels-cuda/matmul_*.cu`, and what `kernels-hip` has for them.

mod dot4;
mod gemv;
mod joined;
mod units;
mod units_rocm;

use bytemuck::{Pod, Zeroable};
use portolan_device::{DType, DeviceCaps, DeviceKind};
use portolan_weights::Encoding;

use super::{
    ArgBytes, Call, Defines, GpuKernel,
    args::{WeightArgs, address},
    no_scratch,
    simt::number,
    takes::{self, Answer, check, value_dtype},
    type_name,
    weights::{chunk, weight_defines},
};
use crate::{
    Activation, Decline, Launch, Op, OpKind, StepShape, ValueType,
    chart::{Entry, OpSpec, Variant},
};

/// `Args` of matmul.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    w: [WeightArgs; 2],
    x: u64,
    y: u64,
    bias: u64,
    n: u32,
    k: u32,
    rows: u32,
    function: u32,
}

/// Threads of a block of matmul_gemv.cu and of matmul_gemm.cu.
const THREADS: usize = 256;

static GEMV: [GpuKernel; 4] = [
    kernel("matmul_gemv", gemv::defines::<1>, gemv::launch::<1>),
    kernel("matmul_gemv", gemv::defines::<2>, gemv::launch::<2>),
    kernel("matmul_gemv", gemv::defines::<4>, gemv::launch::<4>),
    kernel("matmul_gemv", gemv::defines::<8>, gemv::launch::<8>),
];

static GEMM: GpuKernel = kernel("matmul_gemm", gemm_defines, gemm_call);

static THIN: [GpuKernel; 3] = [
    kernel("matmul_thin", units::thin_defines::<8>, units::thin_call::<8>),
    kernel("matmul_thin", units::thin_defines::<16>, units::thin_call::<16>),
    kernel("matmul_thin", units::thin_defines::<32>, units::thin_call::<32>),
];

static MMA: [GpuKernel; 2] = [
    kernel("matmul_mma", units::mma_defines::<64>, units::mma_call::<64>),
    kernel("matmul_mma", units::mma_defines::<128>, units::mma_call::<128>),
];

type DefinesOf = fn(&Launch, &DeviceCaps) -> Defines;
type CallOf = fn(&Launch, StepShape, &DeviceCaps) -> Call;

/// A file's entry point has the file's name.
const fn kernel(file: &'static str, defines: DefinesOf, call: CallOf) -> GpuKernel {
    GpuKernel { file, entry: file, args_size: size_of::<Args>(), defines, call, scratch: no_scratch }
}

pub(super) fn variants(op: OpKind, kind: DeviceKind) -> Vec<Variant> {
    match op {
        OpKind::Matmul | OpKind::GateUp => {}
        OpKind::Qkv => return joined::variants(),
        _ => return Vec::new(),
    }
    // Every gemv sums in one order, so that a row is the same to the last bit in all of them. That is what
    // "batch-invariant" asks of a slot; the other kernels sum in orders of their own.
    let simt = |name, rows, batch_invariant, describe, kernel| Variant {
        name,
        rows,
        exact: true,
        batch_invariant,
        rounds_weights: false,
        opt_in: false,
        takes,
        describe,
        entry: Entry::Gpu(kernel),
    };
    let units = |name, rows, takes, describe, kernel| Variant {
        name,
        rows,
        exact: false,
        batch_invariant: false,
        rounds_weights: true,
        opt_in: false,
        takes,
        describe,
        entry: Entry::Gpu(kernel),
    };
    const ONCE: &str = "f16 or bf16 activations, whole chunks: matrix units, each weight read once";
    let thin = |name, rows, kernel| units(name, rows, takes_thin, ONCE, kernel);
    const TILES: &str = "f16 or bf16 activations, whole chunks: matrix units, tiles in shared memory";
    let mma = |name, rows, kernel| units(name, rows, takes_mma, TILES, kernel);
    const FEW: &str = "any size and encoding: each weight read once";
    let gemv = |name, rows, kernel| simt(name, rows, true, FEW, kernel);
    let mut variants = vec![gemv("gemv1", (1, 1), &GEMV[0]), gemv("gemv2", (2, 2), &GEMV[1])];
    match kind {
        DeviceKind::Cuda => variants.extend([
            thin("thin8", (3, 8), &THIN[0]),
            thin("thin16", (9, 16), &THIN[1]),
            thin("thin32", (17, 32), &THIN[2]),
            mma("mma64", (9, 384), &MMA[0]),
            mma("mma128", (385, usize::MAX), &MMA[1]),
        ]),
        DeviceKind::Rocm => variants.extend([
            units("thin16", (3, 16), units_rocm::takes_thin, ONCE, &units_rocm::THIN[0]),
            units("thin32", (17, 32), units_rocm::takes_thin, ONCE, &units_rocm::THIN[1]),
            units("mma64", (9, 384), units_rocm::takes_mma, TILES, &units_rocm::MMA[0]),
            units("mma128", (385, usize::MAX), units_rocm::takes_mma, TILES, &units_rocm::MMA[1]),
        ]),
        DeviceKind::Cpu => {}
    }
    if kind == DeviceKind::Rocm {
        variants.extend(dot4::variants());
    }
    variants.extend([
        gemv("gemv4", (3, 4), &GEMV[2]),
        gemv("gemv8", (5, 8), &GEMV[3]),
        simt("gemm", (9, usize::MAX), false, "any size and encoding: tiles in shared memory", &GEMM),
        simt("gemv_rows", (1, usize::MAX), true, "any size and encoding: eight rows at a time", &GEMV[3]),
    ]);
    variants
}

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::matmul(spec, caps)?;
    operands(spec)
}

/// What a launch multiplies, and what it may add.
fn operands(spec: &OpSpec<'_>) -> Answer {
    match (spec.op, spec.weights) {
        (Op::Matmul, [_]) => Ok(()),
        (Op::Matmul, [_, bias]) => check(matches!(bias.encoding, Encoding::Dense(_)), Decline::Dtype),
        // One text decodes both matrices; others are taken apart.
        (Op::GateUp(_), [gate, up]) => {
            check(gate.shape == up.shape, Decline::Shape)?;
            check(gate.encoding == up.encoding, Decline::Dtype)
        }
        _ => Err(Decline::Shape),
    }
}

fn takes_mma(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes(spec, caps)?;
    let halves = matches!(spec.activation, DType::F16 | DType::BF16);
    check(spec.input == ValueType::Activation && halves, Decline::Dtype)?;
    let Some(weight) = spec.weights.first() else { return Err(Decline::Shape) };
    let fits = whole_chunks(weight.encoding, spec.input_cols) && spec.input_cols.is_multiple_of(8);
    check(fits, Decline::Shape)
}

fn takes_thin(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes_mma(spec, caps)?;
    check(spec.weights.first().is_some_and(|w| chunk(w.encoding) >= 8), Decline::Dtype)
}

fn whole_chunks(encoding: Encoding, k: usize) -> bool {
    k.is_multiple_of(chunk(encoding))
}

/// What a launch multiplies.
struct Product {
    /// Rows of each matrix, which are columns of y.
    n: usize,
    k: usize,
    matrices: usize,
    encoding: Encoding,
}

impl Product {
    fn new(launch: &Launch) -> Self {
        let encoding = launch.weights.first().map_or(Encoding::Dense(DType::F32), |w| w.encoding);
        let matrices = if launch.op.kind() == OpKind::GateUp { 2 } else { 1 };
        // Products that are joined count as one.
        let n = launch.outputs.iter().map(|y| y.cols).sum();
        Product { n, k: launch.inputs[0].cols, matrices, encoding }
    }
}

fn shared_defines(launch: &Launch) -> Defines {
    let product = Product::new(launch);
    let mut defines = weight_defines(product.encoding);
    defines.push(("X_T", type_name(value_dtype(&launch.inputs[0], launch))));
    defines.push(("Y_T", type_name(value_dtype(&launch.outputs[0], launch))));
    defines.push(number("GATE_UP", product.matrices - 1));
    if let Some(Encoding::Dense(dtype)) = bias(launch).map(|b| b.encoding) {
        defines.extend([number("HAS_BIAS", 1), ("B_T", type_name(dtype))]);
    }
    defines
}

fn bias(launch: &Launch) -> Option<&portolan_weights::WeightTensor> {
    match launch.op {
        Op::Matmul => launch.weights.get(1),
        // The first of three, which are of one type.
        Op::Qkv => launch.weights.get(3),
        _ => None,
    }
}

/// The number that `activate` of common.cuh has for a function.
fn function(op: &Op) -> u32 {
    match op {
        Op::GateUp(Activation::Silu) => 0,
        Op::GateUp(Activation::Gelu) => 1,
        Op::GateUp(Activation::GeluTanh) => 2,
        _ => 3,
    }
}

/// A launch of tiles of `rows` x `columns` elements of y, tiles of the same columns next to each other.
fn call(launch: &Launch, shape: StepShape, tile: [usize; 2], threads: usize, shared: usize) -> Call {
    let product = Product::new(launch);
    let rows = shape.of(launch.inputs[0].rows);
    let mut args = Args {
        x: address(&launch.inputs[0]),
        y: address(&launch.outputs[0]),
        bias: bias(launch).and_then(|b| b.planes.first()).map_or(0, |plane| plane.device_addr()),
        n: product.n as u32,
        k: product.k as u32,
        rows: rows as u32,
        function: function(&launch.op),
        ..Args::default()
    };
    for (to, from) in args.w.iter_mut().zip(launch.weights.iter().take(product.matrices)) {
        *to = WeightArgs::new(from);
    }
    let blocks = rows.div_ceil(tile[0]).saturating_mul(product.n.div_ceil(tile[1]));
    let grid = [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1];
    Call { grid, block: threads as u32, shared: shared as u32, args: ArgBytes::new(&args) }
}

fn gemm_defines(launch: &Launch, _: &DeviceCaps) -> Defines {
    shared_defines(launch)
}

fn gemm_call(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    call(launch, shape, [64, 64], THREADS, 0)
}

#[cfg(test)]
mod tests {
    use portolan_device::DeviceId;

    use super::*;

    pub(super) fn caps(arch: &str) -> DeviceCaps {
        let id = DeviceId { kind: DeviceKind::Cuda, ordinal: 0 };
        let (name, features) = (String::new(), Vec::new());
        let arch = arch.to_owned();
        DeviceCaps { id, name, arch, features, wave_width: 32, integrated: false, units: 132 }
    }

    pub(super) fn product(n: usize, matrices: usize) -> Product {
        let encoding = Encoding::Affine { bits: 4, group: 64, meta: DType::BF16 };
        Product { n, k: 4096, matrices, encoding }
    }
}
