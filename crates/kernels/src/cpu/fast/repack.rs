//! From planes to the layout `rows8`.

use portolan_weights::{BlockRows, Encoding, Layout, Plane, Planes, Repack, gguf::BlockFormat};

use super::{
    isa::pack::{pack_block, pack_blocks, takes_blocks},
    rows8::{BLOCK, Format, NAME, SUB, Scales, parts, place},
};

/// Makes [`super::rows8`].
#[derive(Debug)]
pub(super) struct Rows8;

impl Repack for Rows8 {
    fn layout(&self) -> Layout {
        Layout::Packed(NAME)
    }

    fn plane_bytes(&self, encoding: Encoding, rows: usize, k: usize) -> Vec<usize> {
        Format::of(encoding).map(|f| vec![rows.div_ceil(BLOCK) * f.block_bytes(k)]).unwrap_or_default()
    }

    fn row_multiple(&self) -> usize {
        BLOCK
    }

    fn by_blocks(&self) -> bool {
        true
    }

    fn run(&self, src: &Planes<'_>, first: usize, n: usize, out: &mut [&mut [u8]]) {
        let (Some(format), Some(out)) = (Format::of(src.encoding), out.first_mut()) else { return };
        let bytes = format.block_bytes(src.k);
        for at in (0..n).step_by(BLOCK) {
            let block = (first + at) / BLOCK;
            let out = &mut out[block * bytes..(block + 1) * bytes];
            if n - at >= BLOCK && pack_block(&format, src, at, out) {
                continue;
            }
            out.fill(0);
            for lane in 0..BLOCK.min(n - at) {
                pack_row(&format, src, at + lane, lane, out);
            }
        }
    }

    fn takes_blocks(&self, format: BlockFormat) -> bool {
        takes_blocks(format)
    }

    fn run_blocks(&self, src: &BlockRows<'_>, first: usize, out: &mut [&mut [u8]]) -> bool {
        let (Some(format), Some(out)) = (Format::of(src.format.encoding()), out.first_mut()) else {
            return false;
        };
        let (eights, rest) = src.rows.as_chunks::<BLOCK>();
        let blocks = out.chunks_exact_mut(format.block_bytes(src.k).max(1)).skip(first / BLOCK);
        rest.is_empty()
            && eights.len() <= blocks.len()
            && eights.iter().zip(blocks).all(|(rows, out)| pack_blocks(src.format, rows, out))
    }
}

/// One row into its lane of a block of zeros.
fn pack_row(format: &Format, src: &Planes<'_>, row: usize, lane: usize, block: &mut [u8]) {
    let codes = src.row(Plane::Codes, row);
    match format.bits {
        2 => pack_codes::<2>(format, codes, lane, block),
        3 => pack_codes::<3>(format, codes, lane, block),
        4 => pack_codes::<4>(format, codes, lane, block),
        5 => pack_codes::<5>(format, codes, lane, block),
        6 => pack_codes::<6>(format, codes, lane, block),
        _ => pack_codes::<8>(format, codes, lane, block),
    }
    pack_scales(format, src, row, lane, block);
}

fn pack_codes<const BITS: usize>(format: &Format, codes: &[u8], lane: usize, block: &mut [u8]) {
    // A row ends with whole groups of 16.
    let mut eights = codes.as_chunks::<BITS>().0.iter();
    for record in block.chunks_exact_mut(format.record_bytes()) {
        for sub in record[..format.code_bytes()].chunks_exact_mut(SUB * BITS) {
            let fours = sub.as_chunks_mut::<4>().0;
            for i in 0..SUB / 8 {
                let Some(eight) = eights.next() else { return };
                let eight = spread(eight);
                put_quad::<BITS>(fours, 2 * i, lane, eight as u32);
                put_quad::<BITS>(fours, 2 * i + 1, lane, (eight >> 32) as u32);
            }
        }
    }
}

/// Four codes, a byte each, to their place in a sub-group of zeros.
#[inline]
fn put_quad<const BITS: usize>(sub: &mut [[u8; 4]], j: usize, lane: usize, codes: u32) {
    let mut put = |from: usize, bits: usize, codes: u32| {
        let (at, shift) = place(bits, j, lane * 4);
        let four = &mut sub[(from + at) / 4];
        *four = (u32::from_le_bytes(*four) | codes << shift).to_le_bytes();
    };
    if BITS == 8 {
        return put(0, 8, codes ^ 0x8080_8080);
    }
    let (low, high) = parts(BITS);
    let mask = |bits: usize| 0x0101_0101 * ((1u32 << bits) - 1);
    put(0, low, codes & mask(low));
    if high > 0 {
        put(SUB * low, high, codes >> low & mask(high));
    }
}

/// Eight codes of a stream of bits, a byte each.
#[inline]
fn spread<const BITS: usize>(stream: &[u8; BITS]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..BITS].copy_from_slice(stream);
    let packed = u64::from_le_bytes(bytes);
    match BITS {
        8 => packed,
        4 => {
            let v = (packed | packed << 16) & 0x0000_ffff_0000_ffff;
            let v = (v | v << 8) & 0x00ff_00ff_00ff_00ff;
            (v | v << 4) & 0x0f0f_0f0f_0f0f_0f0f
        }
        _ => (0..8).fold(0, |codes, i| codes | (packed >> (i * BITS) & ((1 << BITS) - 1)) << (8 * i)),
    }
}

fn pack_scales(format: &Format, src: &Planes<'_>, row: usize, lane: usize, block: &mut [u8]) {
    let scales = src.row(Plane::Scales, row);
    let biases = src.row(Plane::Biases, row);
    let supers = src.row(Plane::Super, row);
    let groups = format.groups();
    for (r, record) in block.chunks_exact_mut(format.record_bytes()).enumerate() {
        let tail = &mut record[format.code_bytes()..];
        // Entry `index` of a row into an array of eight lanes of `size` bytes that begins at `base`.
        let mut put = |base: usize, size: usize, from: &[u8], index: usize| {
            if let Some(value) = from.get(index * size..(index + 1) * size) {
                tail[base + lane * size..base + (lane + 1) * size].copy_from_slice(value);
            }
        };
        match format.scales {
            Scales::Affine(meta) => {
                put(0, meta.size(), scales, r);
                put(BLOCK * meta.size(), meta.size(), biases, r);
            }
            Scales::Minima => {
                put(0, 2, supers, 2 * r);
                put(2 * BLOCK, 2, supers, 2 * r + 1);
                for g in 0..groups {
                    put(4 * BLOCK + g * 2 * BLOCK, 1, scales, r * groups + g);
                    put(5 * BLOCK + g * 2 * BLOCK, 1, biases, r * groups + g);
                }
            }
            Scales::Centred => {
                put(0, 2, supers, r);
                for g in 0..groups {
                    put(2 * BLOCK + g * BLOCK, 1, scales, r * groups + g);
                }
            }
            Scales::E8M0 | Scales::E4M3 => {
                for g in 0..groups {
                    put(g * BLOCK, 1, scales, r * groups + g);
                }
            }
        }
    }
}
