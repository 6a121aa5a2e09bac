//! Matrix units of AMD's GPUs: `matmul_thin.hip` for a few rows, `matmul_mma.hip` for many, of `kernels-hip`.

use portolan_device::DeviceCaps;

use super::{
    Answer, Call, CallOf, Defines, DefinesOf, GpuKernel, Launch, OpSpec, Product, StepShape, call, kernel,
    number, shared_defines,
};
use crate::gpu::matrix;

pub(super) static THIN: [GpuKernel; 2] = [thin::<16>(), thin::<32>()];
pub(super) static MMA: [GpuKernel; 2] = [mma::<64>(), mma::<128>()];

const fn thin<const ROWS: usize>() -> GpuKernel {
    kernel("matmul_thin", thin_defines::<ROWS> as DefinesOf, thin_call::<ROWS> as CallOf)
}

const fn mma<const ROWS: usize>() -> GpuKernel {
    kernel("matmul_mma", mma_defines::<ROWS> as DefinesOf, mma_call::<ROWS> as CallOf)
}

/// What CUDA's take, where there are matrix units.
pub(super) fn takes_mma(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    matrix::takes(caps)?;
    super::takes_mma(spec, caps)
}

pub(super) fn takes_thin(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    matrix::takes(caps)?;
    super::takes_thin(spec, caps)
}

/// Waves of a block of matmul_thin.hip, which divide the columns.
const WAVES: usize = 8;

/// Tiles of 16 lines of a block of matmul_thin.hip.
fn thin_tiles(product: &Product, caps: &DeviceCaps) -> usize {
    // Two tiles halve the reads of x, one makes more blocks; gate and up make a pair.
    if product.matrices == 2 || product.n >= 32 * caps.units { 2 } else { 1 }
}

fn thin_defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let tiles = thin_tiles(&Product::new(launch), caps);
    let mut defines = shared_defines(launch);
    let numbers =
        [number("NT", ROWS / 16), number("MT", tiles), number("WAVES", WAVES), matrix::define(caps)];
    defines.extend(numbers);
    defines
}

fn thin_call<const ROWS: usize>(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let product = Product::new(launch);
    let columns = thin_tiles(&product, caps) / product.matrices * 16;
    call(launch, shape, [ROWS, columns], WAVES * caps.wave_width as usize, 0)
}

/// Rows of x and rows of the matrices of a block, for steps of about `rows` rows or more.
fn tile(product: &Product, rows: usize) -> [usize; 2] {
    // Large tiles do more with what they read; small ones leave every compute unit something to do.
    match rows {
        128 if product.n * product.matrices >= 4096 => [128, 128],
        _ => [64, 64],
    }
}

fn mma_defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let [rows, lines] = tile(&Product::new(launch), ROWS);
    let mut defines = shared_defines(launch);
    defines.extend([number("BM", rows), number("BN", lines), matrix::define(caps)]);
    defines
}

fn mma_call<const ROWS: usize>(launch: &Launch, shape: StepShape, _: &DeviceCaps) -> Call {
    let product = Product::new(launch);
    let [rows, lines] = tile(&product, ROWS);
    call(launch, shape, [rows, lines / product.matrices], 2 * lines, 0)
}
