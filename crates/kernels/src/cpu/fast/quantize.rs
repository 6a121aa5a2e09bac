//! Rows rounded to integers in groups of 32.

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    fast,
    isa::{NAMES, round::round32},
    lanes::{F32x8, abs8, any_nan32, larger8, load8, max8},
    rows8::SUB,
    simd::takes_floats,
};
use crate::{
    Decline, Launch, Op, OpSpec, RowCodes, StepShape, Variant,
    cpu::access::{Rows, values},
};

pub(super) const QUANTIZE_ROWS: Variant =
    fast(NAMES.floats, takes, "f32; rows of a multiple of 32", quantize_rows);

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    if spec.input_cols.is_multiple_of(SUB) { Ok(()) } else { Err(Decline::Shape) }
}

fn quantize_rows(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::QuantizeRows(how) = launch.op else { return };
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = Rows::<u8>::new(&launch.outputs[0].slice, rows, how.row_bytes(cols));
    super::by_rows(team, rows, cols, |row| {
        let x = &x[row * cols..(row + 1) * cols];
        // SAFETY: the row belongs to this chunk alone; `takes` saw the features.
        unsafe {
            match how {
                RowCodes::Int8 => quantize_row::<1>(x, y.row_mut(row)),
                RowCodes::Int15 => quantize_row::<2>(x, y.row_mut(row)),
            }
        }
    });
}

/// One row in `PLANES` planes: all codes, then all scales, then all sums. The codes are those of the plain kernel, bit for
/// bit.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn quantize_row<const PLANES: usize>(x: &[f32], out: &mut [u8]) {
    let how = if PLANES == 1 { RowCodes::Int8 } else { RowCodes::Int15 };
    let groups = x.len() / SUB;
    let (codes, floats) = out.split_at_mut(groups * SUB * PLANES);
    let (scales, sums) = floats.split_at_mut(groups * 4);
    let (x, _) = x.as_chunks::<SUB>();
    let (scales, _) = scales.as_chunks_mut::<4>();
    let (sums, _) = sums.as_chunks_mut::<4>();
    for (((x, codes), scale), sum) in x.iter().zip(codes.chunks_exact_mut(SUB * PLANES)).zip(scales).zip(sums)
    {
        // SAFETY: four times eight elements of 32.
        let v: [F32x8; 4] = std::array::from_fn(|i| unsafe { load8(x.as_ptr().add(8 * i)) });
        let abs = v.map(|v| abs8(v));
        let max = larger8(larger8(abs[0], abs[1]), larger8(abs[2], abs[3]));
        // A maximum may lose a NaN.
        let d = if any_nan32(&v) { f32::NAN } else { max8(max) / how.largest() as f32 };
        // SAFETY: `PLANES` times 32 bytes.
        let total = unsafe { round32::<PLANES>(&v, d, how.largest() as i16, codes.as_mut_ptr()) };
        *scale = d.to_le_bytes();
        // At most 32 * 16256: exact in f32.
        *sum = (d * total as f32).to_le_bytes();
    }
}
