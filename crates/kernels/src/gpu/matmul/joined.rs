//! qkv: the products of a few rows with three matrices, as one launch of matmul_gemv.cu.
//!
//! A block is one of a matmul's, of one of the matrices, and sums as a matmul's does: to the last bit.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;
use portolan_weights::{Encoding, WeightTensor};

use super::{
    Answer, ArgBytes, Call, CallOf, Decline, Defines, DefinesOf, Entry, GpuKernel, Launch, OpSpec, Product,
    StepShape, THREADS, Variant, WeightArgs, address, check, gemv, no_scratch, number, takes,
};

/// `Joined` of matmul.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Joined {
    w: [WeightArgs; 3],
    x: u64,
    y: [u64; 3],
    bias: [u64; 3],
    n: [u32; 3],
    k: u32,
    rows: u32,
    unused: u32,
}

static GEMV: [GpuKernel; 2] =
    [kernel(defines::<1>, joined_call::<1>), kernel(defines::<2>, joined_call::<2>)];

const fn kernel(defines: DefinesOf, call: CallOf) -> GpuKernel {
    let (file, entry) = ("matmul_gemv", "matmul_gemv");
    GpuKernel { file, entry, args_size: size_of::<Joined>(), defines, call, scratch: no_scratch }
}

pub(super) fn variants() -> Vec<Variant> {
    let gemv = |name, rows, kernel| Variant {
        name,
        rows: (rows, rows),
        exact: true,
        batch_invariant: true,
        rounds_weights: false,
        opt_in: false,
        takes: takes_joined,
        describe: "any size, one encoding, biases of one type: each weight read once",
        entry: Entry::Gpu(kernel),
    };
    vec![gemv("gemv1", 1, &GEMV[0]), gemv("gemv2", 2, &GEMV[1])]
}

/// One text decodes all three; others are taken apart.
fn takes_joined(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::matmul(spec, caps)?;
    let (matrices, biases) = spec.weights.split_at_checked(3).ok_or(Decline::Shape)?;
    let alike = |w: &[crate::chart::WeightSpec]| w.windows(2).all(|w| w[0].encoding == w[1].encoding);
    check(alike(matrices) && alike(biases), Decline::Dtype)?;
    check(biases.iter().all(|b| matches!(b.encoding, Encoding::Dense(_))), Decline::Dtype)?;
    let columns = |w: &crate::chart::WeightSpec| w.shape.last().copied() == Some(spec.input_cols);
    check(matrices.iter().all(columns) && matches!(biases.len(), 0 | 3), Decline::Shape)
}

fn defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let mut defines = gemv::defines::<ROWS>(launch, caps);
    defines.push(number("JOINED", 1));
    defines
}

fn joined_call<const ROWS: usize>(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let waves = THREADS / caps.wave_width.max(1) as usize;
    let columns = gemv::wave_rows(&Product::new(launch), ROWS, caps) * waves;
    let rows = shape.of(launch.inputs[0].rows);
    let mut args = Joined {
        x: address(&launch.inputs[0]),
        k: launch.inputs[0].cols as u32,
        rows: rows as u32,
        ..Joined::default()
    };
    let plane = |w: &WeightTensor| w.planes.first().map_or(0, |plane| plane.device_addr());
    let mut blocks = 0usize;
    for (i, (y, weight)) in launch.outputs.iter().zip(&launch.weights).enumerate().take(3) {
        args.w[i] = WeightArgs::new(weight);
        args.y[i] = address(y);
        args.n[i] = y.cols as u32;
        args.bias[i] = launch.weights.get(i + 3).map_or(0, plane);
        blocks = blocks.saturating_add(rows.div_ceil(ROWS).saturating_mul(y.cols.div_ceil(columns)));
    }
    let grid = [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1];
    Call { grid, block: THREADS as u32, shared: 0, args: ArgBytes::new(&args) }
}
