//! Rows rounded to int8 in groups of 32.

use std::arch::x86_64::*;

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    rows8::SUB,
    simd::{available, max8, sum8},
};
use crate::{
    Decline, Launch, OpSpec, StepShape, ValueType, Variant,
    chart::Entry,
    cpu::access::{Rows, values},
};

pub(super) const QUANTIZE_ROWS: Variant = Variant {
    name: "avx2",
    rows: (1, usize::MAX),
    exact: false,
    batch_invariant: true,
    rounds_weights: false,
    opt_in: false,
    takes,
    describe: "f32; rows of a multiple of 32",
    entry: Entry::Cpu(quantize_rows),
};

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    available(caps)?;
    if !matches!(spec.input, ValueType::Activation | ValueType::F32) {
        return Err(Decline::Dtype);
    }
    if spec.input_cols.is_multiple_of(SUB) { Ok(()) } else { Err(Decline::Shape) }
}

fn quantize_rows(launch: &Launch, shape: StepShape, team: &Team) {
    let x = &launch.inputs[0];
    let (rows, cols) = (shape.of(x.rows), x.cols);
    let x = values(x, shape);
    let y = Rows::<u8>::new(&launch.outputs[0].slice, rows, cols / SUB * 40);
    super::by_rows(team, rows, cols, |row| {
        // SAFETY: the row belongs to this chunk alone; `takes` saw the features.
        unsafe { quantize_row(&x[row * cols..(row + 1) * cols], y.row_mut(row)) };
    });
}

/// One row: all codes, then all scales, then all sums. The codes are those of the plain kernel, bit for bit.
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_row(x: &[f32], out: &mut [u8]) {
    let groups = x.len() / SUB;
    let (codes, floats) = out.split_at_mut(groups * SUB);
    let (scales, sums) = floats.split_at_mut(groups * 4);
    let magnitude = _mm256_set1_ps(-0.0);
    let (x, _) = x.as_chunks::<SUB>();
    let (codes, _) = codes.as_chunks_mut::<SUB>();
    let (scales, _) = scales.as_chunks_mut::<4>();
    let (sums, _) = sums.as_chunks_mut::<4>();
    for (((x, codes), scale), sum) in x.iter().zip(codes).zip(scales).zip(sums) {
        // SAFETY: four times eight elements of 32.
        let v: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) });
        let abs = v.map(|v| _mm256_andnot_ps(magnitude, v));
        let max = _mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3]));
        // A maximum may lose a NaN.
        let nan = v.map(|v| _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let nan = _mm256_or_ps(_mm256_or_ps(nan[0], nan[1]), _mm256_or_ps(nan[2], nan[3]));
        let d = if _mm256_movemask_ps(nan) != 0 { f32::NAN } else { max8(max) / 127.0 };
        let by = _mm256_set1_ps(d);
        // Without a scale all codes are 0: a quotient of 0/0 is cleared, and one of a tiny x by 0 as well.
        let some = _mm256_cmp_ps::<_CMP_NEQ_OQ>(by, _mm256_setzero_ps());
        let q = v.map(|v| _mm256_cvtps_epi32(_mm256_and_ps(_mm256_div_ps(v, by), some)));
        // The packs work within halves: put the eight groups of four in order again.
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes) };
        *scale = d.to_le_bytes();
        let ones = _mm256_set1_epi16(1);
        // At most 32 * 127: exact in f32.
        let codes = words.map(|w| _mm256_madd_epi16(w, ones));
        let codes = sum8(_mm256_cvtepi32_ps(_mm256_add_epi32(codes[0], codes[1])));
        *sum = (d * codes).to_le_bytes();
    }
}
