//! The layout `rows8` made with AVX2, from affine codes of 4 and 8 bits and from the GGUF blocks that hold such: loading a
//! model is to cost little more than reading its file.
//!
//! Each block of eight rows is made in one function, into which all of the others are inlined: a call for every sub-group
//! takes as long as what it does.

use std::arch::x86_64::*;

use portolan_weights::{
    Plane, Planes,
    gguf::{BlockFormat, bias_of},
};

use super::super::rows8::{BLOCK, Format, SUB, Scales};

/// Where each of eight rows begins.
type Rows = [*const u8; BLOCK];

fn rows_of(plane: &[u8], bytes: usize) -> Rows {
    std::array::from_fn(|lane| plane[lane * bytes..].as_ptr())
}

/// Writes the block of rows `row..row + 8`; false where there is no such code for the format, and nothing is written.
pub(in crate::cpu::fast) fn pack_block(
    format: &Format,
    src: &Planes<'_>,
    row: usize,
    block: &mut [u8],
) -> bool {
    let Scales::Affine(meta) = format.scales else { return false };
    if !matches!(format.bits, 4 | 8) || meta.size() != 2 || !std::arch::is_x86_feature_detected!("avx2") {
        return false;
    }
    let records = format.records(src.k);
    // The eight rows of a plane, if that is what it has.
    let rows = |plane: Plane, bytes: usize| -> Option<Rows> {
        let index = src.encoding.planes().iter().position(|&p| p == plane)?;
        let all = src.planes[index].get(row * bytes..(row + BLOCK) * bytes)?;
        (bytes > 0 && bytes == src.encoding.row_bytes(plane, src.k)).then(|| rows_of(all, bytes))
    };
    let (Some(codes), Some(scales), Some(biases)) = (
        rows(Plane::Codes, records * format.subs * SUB * format.bits / 8),
        rows(Plane::Scales, records * 2),
        rows(Plane::Biases, records * 2),
    ) else {
        return false;
    };
    if block.len() != records * format.record_bytes() {
        return false;
    }
    // SAFETY: AVX2 is there; rows and block were seen to have what `records` records take.
    unsafe {
        match format.bits {
            4 => affine::<4>(format, records, [&codes, &scales, &biases], block.as_mut_ptr()),
            _ => affine::<8>(format, records, [&codes, &scales, &biases], block.as_mut_ptr()),
        }
    }
    true
}

/// # Safety
/// Each row of codes, scales and biases can be read for `records` records of the format, which has `BITS` bits and scales
/// of 16, and `block` can be written for them.
#[target_feature(enable = "avx2")]
unsafe fn affine<const BITS: usize>(
    format: &Format,
    records: usize,
    [codes, scales, biases]: [&Rows; 3],
    block: *mut u8,
) {
    let (record, sub) = (format.record_bytes(), SUB * BITS / 8);
    for r in 0..records {
        for s in 0..format.subs {
            // SAFETY: the sub-group lies within the record.
            unsafe {
                let (at, to) = ((r * format.subs + s) * sub, block.add(r * record + s * sub * BLOCK));
                if BITS == 4 { fours(codes, at, to) } else { eights::<-128>(codes, at, to) }
            }
        }
    }
    let whole = records / BLOCK * BLOCK;
    for (rows, base) in [(scales, format.code_bytes()), (biases, format.code_bytes() + 2 * BLOCK)] {
        for first in (0..whole).step_by(BLOCK) {
            // SAFETY: eight records of each row, and their places.
            unsafe { eight_by_eight(rows, 2 * first, block.add(first * record + base), record) };
        }
        for r in whole..records {
            for (lane, row) in rows.iter().enumerate() {
                // SAFETY: a scale of a record, and its place.
                unsafe {
                    let to = block.add(r * record + base + 2 * lane);
                    to.cast::<[u8; 2]>().write(row.add(2 * r).cast::<[u8; 2]>().read());
                }
            }
        }
    }
}

/// Whether [`pack_blocks`] can do anything with a format.
pub(in crate::cpu::fast) fn takes_blocks(format: BlockFormat) -> bool {
    matches!(format, BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q8_0)
        && std::arch::is_x86_feature_detected!("avx2")
}

/// Writes a block of eight rows, each of whole GGUF blocks; false where [`takes_blocks`] is, or where the bias that a scale
/// comes to does not fit f16; the block may be half written then.
pub(in crate::cpu::fast) fn pack_blocks(from: BlockFormat, rows: &[&[u8]; BLOCK], block: &mut [u8]) -> bool {
    let Some(format) = Format::of(from.encoding()).filter(|_| takes_blocks(from)) else { return false };
    let records = rows[0].len() / from.bytes();
    if rows.iter().any(|row| row.len() != records * from.bytes())
        || block.len() != records * format.record_bytes()
    {
        return false;
    }
    let (rows, block) = (rows.map(<[u8]>::as_ptr), block.as_mut_ptr());
    // SAFETY: AVX2 is there; rows and block were seen to have what `records` records take.
    unsafe {
        match from {
            BlockFormat::Q4_0 => ggml::<4, 18, 3>(&rows, records, block),
            BlockFormat::Q4_1 => ggml::<4, 20, 0>(&rows, records, block),
            _ => ggml::<8, 34, 7>(&rows, records, block),
        }
    }
}

/// Blocks of `BYTES`: a scale of 16 bits, the bias if there is one, 32 codes. Without a bias it is `-2^LOG2` times the scale.
///
/// ggml's nibbles are those of `rows8`: byte `b` has elements `b` and `b + 16`, so words of codes only change places. Its 8
/// bits are signed, as there.
///
/// # Safety
/// `records * BYTES` bytes can be read at each of `rows`, and as many records be written at `block`.
#[target_feature(enable = "avx2")]
unsafe fn ggml<const BITS: usize, const BYTES: usize, const LOG2: i16>(
    rows: &Rows,
    records: usize,
    block: *mut u8,
) -> bool {
    let (codes, code_bytes) = (BYTES - SUB * BITS / 8, SUB * BITS);
    let record = code_bytes + 4 * BLOCK;
    for r in 0..records {
        let at = r * BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            let to = block.add(r * record);
            if BITS == 4 {
                let mut quads = [_mm256_setzero_si256(); 4];
                for (i, quad) in quads.iter_mut().enumerate() {
                    *quad = two_rows(rows, i, at + codes);
                }
                put(transposed(quads), to);
            } else {
                eights::<0>(rows, at + codes, to);
            }
            let to = to.add(code_bytes);
            if codes == 4 {
                put_pairs(rows, at, to);
            } else if !put_scales::<LOG2>(rows, at, to) {
                return false;
            }
        }
    }
    true
}

/// A scale and a bias of each row, which lie together, to eight scales and eight biases.
///
/// # Safety
/// 4 bytes can be read at `at` of each row, and 32 be written at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn put_pairs(rows: &Rows, at: usize, to: *mut u8) {
    let mut pairs = [0u32; BLOCK];
    for (pair, row) in pairs.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *pair = unsafe { row.add(at).cast::<u32>().read_unaligned() };
    }
    let apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    // SAFETY: an array of 32 bytes; the caller's promise.
    unsafe {
        let pairs = _mm256_shuffle_epi8(_mm256_loadu_si256(pairs.as_ptr().cast()), apart);
        _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs));
    }
}

/// A scale of each row, and its bias. False where one does not fit.
///
/// # Safety
/// 2 bytes can be read at `at` of each row, and 32 be written at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn put_scales<const LOG2: i16>(rows: &Rows, at: usize, to: *mut u8) -> bool {
    let mut scales = [0u16; BLOCK];
    for (scale, row) in scales.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *scale = unsafe { row.add(at).cast::<u16>().read_unaligned() };
    }
    // SAFETY: an array of 16 bytes.
    let d = unsafe { _mm_loadu_si128(scales.as_ptr().cast()) };
    let exponent = _mm_and_si128(_mm_srli_epi16::<10>(d), _mm_set1_epi16(31));
    // Neither zero nor subnormal, and finite afterwards: then the exponent grows, and the sign turns.
    let usual = _mm_and_si128(
        _mm_cmpgt_epi16(exponent, _mm_setzero_si128()),
        _mm_cmpgt_epi16(_mm_set1_epi16(31 - LOG2), exponent),
    );
    let mut biases = _mm_add_epi16(_mm_xor_si128(d, _mm_set1_epi16(i16::MIN)), _mm_set1_epi16(LOG2 << 10));
    if _mm_movemask_epi8(usual) != 0xffff {
        let mut rare = [0u16; BLOCK];
        for (bias, scale) in rare.iter_mut().zip(scales) {
            let Some(fits) = bias_of(scale, LOG2 as u16) else { return false };
            *bias = fits;
        }
        // SAFETY: an array of 16 bytes.
        biases = unsafe { _mm_loadu_si128(rare.as_ptr().cast()) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        _mm_storeu_si128(to.cast(), d);
        _mm_storeu_si128(to.add(2 * BLOCK).cast(), biases);
    }
    true
}

/// Eight numbers of 16 bits of each of eight rows, turned about: the n-th of each row go together.
///
/// # Safety
/// 16 bytes can be read at `at` of each row, and written at `to` and at seven places `stride` bytes further each.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eight_by_eight(rows: &Rows, at: usize, to: *mut u8, stride: usize) {
    let mut v = [_mm_setzero_si128(); BLOCK];
    for (v, row) in v.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *v = unsafe { _mm_loadu_si128(row.add(at).cast()) };
    }
    let pairs = |a: usize, b: usize| (_mm_unpacklo_epi16(v[a], v[b]), _mm_unpackhi_epi16(v[a], v[b]));
    let (a, b, c, d) = (pairs(0, 1), pairs(2, 3), pairs(4, 5), pairs(6, 7));
    let fours = |a: __m128i, b: __m128i| (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (e, f, g, h) = (fours(a.0, b.0), fours(a.1, b.1), fours(c.0, d.0), fours(c.1, d.1));
    let out = [(e.0, g.0), (e.1, g.1), (f.0, h.0), (f.1, h.1)];
    for (i, (low, high)) in out.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            _mm_storeu_si128(to.add(2 * i * stride).cast(), _mm_unpacklo_epi64(low, high));
            _mm_storeu_si128(to.add((2 * i + 1) * stride).cast(), _mm_unpackhi_epi64(low, high));
        }
    }
}

/// 16 bytes of rows `i` and `i + 4`, a half each.
///
/// # Safety
/// They can be read at `at` of each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_rows(rows: &Rows, i: usize, at: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu2_m128i(rows[i + 4].add(at).cast(), rows[i].add(at).cast()) }
}

/// # Safety
/// 128 bytes can be written at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn put(vectors: [__m256i; 4], to: *mut u8) {
    for (i, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.add(32 * i).cast(), vector) };
    }
}

/// 32 codes of 4 bits of each row. Vector `i` of the result has quads `i` and `i + 4` in its nibbles.
///
/// # Safety
/// 16 bytes can be read at `at` of each row, and 128 written at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn fours(rows: &Rows, at: usize, to: *mut u8) {
    let low = _mm256_set1_epi8(0x0f);
    let mut quads = [_mm256_setzero_si256(); 4];
    for (i, quad) in quads.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let both = unsafe { two_rows(rows, i, at) };
        // Byte `b` of a row has elements `2b` and `2b + 1`; eight bytes on are those 16 further.
        let far = _mm256_srli_si256::<8>(both);
        let even =
            _mm256_or_si256(_mm256_and_si256(both, low), _mm256_slli_epi16::<4>(_mm256_and_si256(far, low)));
        let odd = _mm256_or_si256(
            _mm256_and_si256(_mm256_srli_epi16::<4>(both), low),
            _mm256_andnot_si256(low, far),
        );
        // Four elements of each quad, and of the one four further, as 32 bits: a row a half.
        *quad = _mm256_unpacklo_epi8(even, odd);
    }
    // SAFETY: the caller's promise.
    unsafe { put(transposed(quads), to) };
}

/// 32 codes of 8 bits of each row, as signed ones: with `-128` those whose top bit is to be turned over.
///
/// # Safety
/// 32 bytes can be read at `at` of each row, and 256 written at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eights<const CENTRE: i8>(rows: &Rows, at: usize, to: *mut u8) {
    for half in 0..2 {
        let mut quads = [_mm256_setzero_si256(); 4];
        for (i, quad) in quads.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *quad = _mm256_xor_si256(unsafe { two_rows(rows, i, at + 16 * half) }, _mm256_set1_epi8(CENTRE));
        }
        // SAFETY: the caller's promise.
        unsafe { put(transposed(quads), to.add(128 * half)) };
    }
}

/// From four pairs of rows (`r` and `r + 4`, a half each) of four words to four words of eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(rows: [__m256i; 4]) -> [__m256i; 4] {
    let a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    let b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    let c = _mm256_unpacklo_epi32(rows[2], rows[3]);
    let d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}
