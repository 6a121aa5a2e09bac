//! The layout `rows8` of affine codes of 4 and 8 bits, made with AVX2: loading a model is to cost little more than reading
//! its file.

use std::arch::x86_64::*;

use portolan_weights::{Plane, Planes};

use super::super::rows8::{BLOCK, Format, SUB, Scales};

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
    // Where a plane's rows lie is asked once: eight rows of a model's width take no longer than the asking.
    let rows = |plane: Plane| -> [&[u8]; BLOCK] {
        let bytes = src.encoding.row_bytes(plane, src.k);
        let index = src.encoding.planes().iter().position(|&p| p == plane);
        let all =
            index.and_then(|i| src.planes[i].get(row * bytes..(row + BLOCK) * bytes)).unwrap_or_default();
        std::array::from_fn(|lane| all.get(lane * bytes..(lane + 1) * bytes).unwrap_or_default())
    };
    let (codes, scales, biases) = (rows(Plane::Codes), rows(Plane::Scales), rows(Plane::Biases));
    let (records, sub) = (format.records(src.k), SUB * format.bits / 8);
    let whole = |rows: &[&[u8]; BLOCK], bytes: usize| rows.iter().all(|row| row.len() == bytes);
    if !whole(&codes, records * format.subs * sub)
        || !whole(&scales, records * 2)
        || !whole(&biases, records * 2)
        || block.len() != records * format.record_bytes()
    {
        return false;
    }
    let (record_bytes, code_bytes) = (format.record_bytes(), format.code_bytes());
    for (rows, at) in [(&scales, code_bytes), (&biases, code_bytes + 2 * BLOCK)] {
        pack_scales(rows, records, &mut block[at..], record_bytes);
    }
    for (r, record) in block.chunks_exact_mut(record_bytes).enumerate() {
        let (to, _) = record.split_at_mut(format.code_bytes());
        for (s, to) in to.chunks_exact_mut(sub * BLOCK).enumerate() {
            let at = (r * format.subs + s) * sub;
            // SAFETY: AVX2 is there; the rows were seen to be whole, and `to` has eight times as many bytes.
            unsafe {
                let from = codes.map(|row| row.as_ptr().add(at));
                if format.bits == 4 { fours(from, to.as_mut_ptr()) } else { eights(from, to.as_mut_ptr()) }
            }
        }
    }
    true
}

/// A scale of each record and row: eight of 16 bits at the begin of `to`, the next eight `stride` bytes on.
fn pack_scales(rows: &[&[u8]; BLOCK], records: usize, to: &mut [u8], stride: usize) {
    let whole = records / BLOCK * BLOCK;
    for first in (0..whole).step_by(BLOCK) {
        let out = &mut to[first * stride..][..7 * stride + 2 * BLOCK];
        // SAFETY: AVX2 implies SSE2; each row has eight records from `first` on, and `out` their places.
        unsafe {
            eight_by_eight(rows.map(|row| row[2 * first..][..2 * BLOCK].as_ptr()), out.as_mut_ptr(), stride)
        };
    }
    for r in whole..records {
        for (row, to) in rows.iter().zip(to[r * stride..][..2 * BLOCK].as_chunks_mut::<2>().0) {
            to.copy_from_slice(&row[2 * r..2 * r + 2]);
        }
    }
}

/// Eight numbers of 16 bits of each of eight rows, turned about: the n-th of each row go together.
///
/// # Safety
/// 16 bytes can be read at each of `from`, and written at `to` and at seven places `stride` bytes further each.
#[target_feature(enable = "avx2")]
unsafe fn eight_by_eight(from: [*const u8; BLOCK], to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise.
    let v = from.map(|p| unsafe { _mm_loadu_si128(p.cast()) });
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

/// 32 codes of 4 bits of each row. Vector `i` of the result has quads `i` and `i + 4` in its nibbles.
///
/// # Safety
/// 16 bytes can be read at each of `from`, and 128 written at `to`.
#[target_feature(enable = "avx2")]
unsafe fn fours(from: [*const u8; BLOCK], to: *mut u8) {
    let low = _mm256_set1_epi8(0x0f);
    let quads: [__m256i; 4] = std::array::from_fn(|r| {
        // SAFETY: the caller's promise.
        let both = unsafe { _mm256_loadu2_m128i(from[r + 4].cast(), from[r].cast()) };
        // Byte `b` of a row has elements `2b` and `2b + 1`; eight bytes on are those 16 further.
        let far = _mm256_srli_si256::<8>(both);
        let even =
            _mm256_or_si256(_mm256_and_si256(both, low), _mm256_slli_epi16::<4>(_mm256_and_si256(far, low)));
        let odd = _mm256_or_si256(
            _mm256_and_si256(_mm256_srli_epi16::<4>(both), low),
            _mm256_andnot_si256(low, far),
        );
        // Four elements of each quad, and of the one four further, as 32 bits: a row a half.
        _mm256_unpacklo_epi8(even, odd)
    });
    for (i, out) in transposed(quads).into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.add(32 * i).cast(), out) };
    }
}

/// 32 codes of 8 bits of each row, as signed ones.
///
/// # Safety
/// 32 bytes can be read at each of `from`, and 256 written at `to`.
#[target_feature(enable = "avx2")]
unsafe fn eights(from: [*const u8; BLOCK], to: *mut u8) {
    let centre = _mm256_set1_epi8(-128);
    for half in 0..2 {
        let quads: [__m256i; 4] = std::array::from_fn(|r| {
            // SAFETY: the caller's promise.
            let both = unsafe {
                _mm256_loadu2_m128i(from[r + 4].add(16 * half).cast(), from[r].add(16 * half).cast())
            };
            _mm256_xor_si256(both, centre)
        });
        for (i, out) in transposed(quads).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_si256(to.add(128 * half + 32 * i).cast(), out) };
        }
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
