//! Rows rounded to integers in groups of 32.

use std::arch::x86_64::*;

use portolan_device::{DeviceCaps, cpu::Team};

use super::{
    rows8::SUB,
    simd::{available, max8, sum8},
};
use crate::{
    Decline, Launch, Op, OpSpec, RowCodes, StepShape, ValueType, Variant,
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
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_row<const PLANES: usize>(x: &[f32], out: &mut [u8]) {
    let how = if PLANES == 1 { RowCodes::Int8 } else { RowCodes::Int15 };
    let groups = x.len() / SUB;
    let (codes, floats) = out.split_at_mut(groups * SUB * PLANES);
    let (scales, sums) = floats.split_at_mut(groups * 4);
    let magnitude = _mm256_set1_ps(-0.0);
    let largest = how.largest() as f32;
    let most = _mm256_set1_epi16(how.largest() as i16);
    let least = _mm256_set1_epi16(-how.largest() as i16);
    let (x, _) = x.as_chunks::<SUB>();
    let (scales, _) = scales.as_chunks_mut::<4>();
    let (sums, _) = sums.as_chunks_mut::<4>();
    for (((x, codes), scale), sum) in x.iter().zip(codes.chunks_exact_mut(SUB * PLANES)).zip(scales).zip(sums)
    {
        // SAFETY: four times eight elements of 32.
        let v: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) });
        let abs = v.map(|v| _mm256_andnot_ps(magnitude, v));
        let max = _mm256_max_ps(_mm256_max_ps(abs[0], abs[1]), _mm256_max_ps(abs[2], abs[3]));
        // A maximum may lose a NaN.
        let nan = v.map(|v| _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let nan = _mm256_or_ps(_mm256_or_ps(nan[0], nan[1]), _mm256_or_ps(nan[2], nan[3]));
        let d = if _mm256_movemask_ps(nan) != 0 { f32::NAN } else { max8(max) / largest };
        let by = _mm256_set1_ps(d);
        // Without a scale all codes are 0: a quotient of 0/0 is cleared, and one of a tiny x by 0 as well. What is no number
        // becomes the least of integers and is cleared too.
        let some = _mm256_cmp_ps::<_CMP_NEQ_OQ>(by, _mm256_setzero_ps());
        let q = v.map(|v| {
            let q = _mm256_and_ps(_mm256_div_ps(v, by), some);
            let number = _mm256_cmp_ps::<_CMP_ORD_Q>(q, q);
            _mm256_cvtps_epi32(_mm256_and_ps(q, number))
        });
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        let words = words.map(|w| _mm256_max_epi16(_mm256_min_epi16(w, most), least));
        if PLANES == 1 {
            // SAFETY: 32 bytes.
            unsafe { store_bytes(words, codes.as_mut_ptr()) };
        } else {
            let high = words.map(|w| _mm256_srai_epi16::<7>(_mm256_add_epi16(w, _mm256_set1_epi16(64))));
            let low = [0, 1].map(|i| _mm256_sub_epi16(words[i], _mm256_slli_epi16::<7>(high[i])));
            // SAFETY: twice 32 bytes.
            unsafe {
                store_bytes(high, codes.as_mut_ptr());
                store_bytes(low, codes.as_mut_ptr().add(SUB));
            }
        }
        *scale = d.to_le_bytes();
        let ones = _mm256_set1_epi16(1);
        // At most 32 * 16256: exact in f32.
        let codes = words.map(|w| _mm256_madd_epi16(w, ones));
        let codes = sum8(_mm256_cvtepi32_ps(_mm256_add_epi32(codes[0], codes[1])));
        *sum = (d * codes).to_le_bytes();
    }
}

/// Writes 32 numbers, as two packs of words left them, as bytes in their order.
///
/// # Safety
/// 32 bytes can be written at `to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_bytes(words: [__m256i; 2], to: *mut u8) {
    // The packs work within halves: put the eight groups of four in order again.
    let bytes = _mm256_packs_epi16(words[0], words[1]);
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), bytes) }
}
