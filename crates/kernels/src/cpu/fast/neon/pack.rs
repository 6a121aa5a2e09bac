//! The layout `rows8`: from planes nothing yet, from GGUF blocks without vectors, since there only words change places.

use portolan_weights::{
    Planes,
    gguf::{BlockFormat, bias_of},
};

use super::super::rows8::{BLOCK, Format, SUB};

/// As the function of this name for AVX2. It writes nothing and gives false: the plain code makes the layout.
pub(in crate::cpu::fast) fn pack_block(_: &Format, _: &Planes<'_>, _: usize, _: &mut [u8]) -> bool {
    false
}

/// As the function of this name for AVX2.
pub(in crate::cpu::fast) fn takes_blocks(format: BlockFormat) -> bool {
    matches!(format, BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q8_0)
}

/// As the function of this name for AVX2.
pub(in crate::cpu::fast) fn pack_blocks(from: BlockFormat, rows: &[&[u8]; BLOCK], block: &mut [u8]) -> bool {
    match from {
        BlockFormat::Q4_0 => pack::<18, 4>(rows, block, |b| bias_of(u16::from_le_bytes([b[0], b[1]]), 3)),
        BlockFormat::Q4_1 => pack::<20, 4>(rows, block, |b| Some(u16::from_le_bytes([b[2], b[3]]))),
        BlockFormat::Q8_0 => pack::<34, 8>(rows, block, |b| bias_of(u16::from_le_bytes([b[0], b[1]]), 7)),
        _ => false,
    }
}

/// Blocks of `BYTES` that begin with a scale and end with their codes.
fn pack<const BYTES: usize, const BITS: usize>(
    rows: &[&[u8]; BLOCK],
    block: &mut [u8],
    bias: impl Fn(&[u8; BYTES]) -> Option<u16>,
) -> bool {
    let (code_bytes, scales) = (SUB * BITS, 4 * BLOCK);
    let records = rows[0].len() / BYTES;
    if rows.iter().any(|row| row.len() != records * BYTES) || block.len() != records * (code_bytes + scales) {
        return false;
    }
    for (r, record) in block.chunks_exact_mut(code_bytes + scales).enumerate() {
        let (words, scales) = record.split_at_mut(code_bytes);
        let (scales, biases) = scales.split_at_mut(2 * BLOCK);
        for (lane, row) in rows.iter().enumerate() {
            let Some(from) = row.as_chunks::<BYTES>().0.get(r) else { return false };
            let Some(bias) = bias(from) else { return false };
            scales[2 * lane..2 * lane + 2].copy_from_slice(&from[..2]);
            biases[2 * lane..2 * lane + 2].copy_from_slice(&bias.to_le_bytes());
            let codes = from[BYTES - code_bytes / BLOCK..].as_chunks::<4>().0;
            for (to, word) in words.as_chunks_mut::<4>().0.iter_mut().skip(lane).step_by(BLOCK).zip(codes) {
                *to = *word;
            }
        }
    }
    true
}
