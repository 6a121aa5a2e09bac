//! Codes of a few bits: widening them to a byte each, and packing them as one stream.

/// `N` bytes from `at`. Every caller gives constants that lie within its block.
#[inline(always)]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Eight codes of `BITS` bits, one a byte, as `8 * BITS` bits. Neighbours are pushed together three times:
/// into pairs, fours and eights.
#[inline(always)]
pub(super) fn pack8<const BITS: u32>(x: u64) -> u64 {
    let x = (x & 0x00ff_00ff_00ff_00ff) | ((x & 0xff00_ff00_ff00_ff00) >> (8 - BITS));
    let x = (x & 0x0000_ffff_0000_ffff) | ((x & 0xffff_0000_ffff_0000) >> (16 - 2 * BITS));
    (x & 0x0000_0000_ffff_ffff) | ((x & 0xffff_ffff_0000_0000) >> (32 - 4 * BITS))
}

/// Packs codes, one a byte, into `out`, which has `BITS` bytes for each eight codes. Thirty-two codes at a
/// time, so that whole words are stored.
#[inline(always)]
pub(super) fn pack<const BITS: usize>(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<32>().0.iter().zip(out.chunks_exact_mut(4 * BITS)) {
        let word = |i: usize| u64::from_le_bytes(array(codes, 8 * i));
        let x = [word(0), word(1), word(2), word(3)];
        match BITS {
            2 => {
                let [a, b, c, d] = x.map(pack8::<2>);
                out.copy_from_slice(&(a | b << 16 | c << 32 | d << 48).to_le_bytes());
            }
            3 => {
                let [a, b, c, d] = x.map(pack8::<3>);
                out[..8].copy_from_slice(&(a | b << 24 | c << 48).to_le_bytes());
                out[8..].copy_from_slice(&((c >> 16 | d << 8) as u32).to_le_bytes());
            }
            4 => {
                let [a, b, c, d] = x.map(pack8::<4>);
                out[..8].copy_from_slice(&(a | b << 32).to_le_bytes());
                out[8..].copy_from_slice(&(c | d << 32).to_le_bytes());
            }
            5 => out.copy_from_slice(&fours_of_five(x.map(pack8::<5>))),
            _ => {
                let [a, b, c, d] = x.map(pack8::<6>);
                out[..8].copy_from_slice(&(a | b << 48).to_le_bytes());
                out[8..16].copy_from_slice(&(b >> 16 | c << 32).to_le_bytes());
                out[16..].copy_from_slice(&(c >> 32 | d << 16).to_le_bytes());
            }
        }
    }
}

/// Four times 40 bits.
#[inline(always)]
fn fours_of_five([a, b, c, d]: [u64; 4]) -> [u8; 20] {
    let mut out = [0; 20];
    out[..8].copy_from_slice(&(a | b << 40).to_le_bytes());
    out[8..16].copy_from_slice(&(b >> 24 | c << 16 | d << 56).to_le_bytes());
    out[16..].copy_from_slice(&((d >> 8) as u32).to_le_bytes());
    out
}

/// The low nibble of each byte.
const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;

/// Bytes whose low nibbles are the first half of the elements and whose high nibbles are the second, as a
/// stream of nibbles.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(q: [u8; N]) -> [u8; N] {
    let mut out = [0; N];
    let (low, high) = out.split_at_mut(N / 2);
    let halves = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
    for (q, (low, high)) in q.as_chunks::<8>().0.iter().zip(halves) {
        let x = u64::from_le_bytes(*q);
        *low = (pack8::<4>(x & LOW) as u32).to_le_bytes();
        *high = (pack8::<4>(x >> 4 & LOW) as u32).to_le_bytes();
    }
    out
}

/// Bit `i` of a byte as byte `i`, for every byte.
const SPREAD: [u64; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut i = 0;
        while i < 8 {
            table[bits] |= (bits as u64 >> i & 1) << (8 * i);
            i += 1;
        }
        bits += 1;
    }
    table
};

/// Nibbles as in [`nibbles`] with a fifth bit each, as a stream.
#[inline(always)]
pub(super) fn fives(high: [u8; 4], q: [u8; 16]) -> [u8; 20] {
    let (a, b) = (u64::from_le_bytes(array(&q, 0)), u64::from_le_bytes(array(&q, 8)));
    let five = |codes: u64, high: u8| pack8::<5>(codes & LOW | SPREAD[high as usize] << 4);
    fours_of_five([five(a, high[0]), five(b, high[1]), five(a >> 4, high[2]), five(b >> 4, high[3])])
}

/// Q2_K and Q3_K: of each 32 bytes, the lowest two bits are 32 elements, the next two the next 32, and so on.
#[inline(always)]
pub(super) fn widen_pairs(q: &[u8; 64]) -> [u8; 256] {
    let mut out = [0; 256];
    for (q, out) in q.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<128>().0) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *out = q.map(|q| q >> (2 * j) & 3);
        }
    }
    out
}

/// Q4_K and Q5_K: of each 32 bytes, the low nibbles are 32 elements, the high nibbles the next 32.
#[inline(always)]
pub(super) fn widen_nibbles(q: &[u8; 128]) -> [u8; 256] {
    let mut out = [0; 256];
    for (q, out) in q.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *out = q.map(|q| q >> (4 * j) & 15);
        }
    }
    out
}

/// Q3_K and Q5_K: bit `g` of the 32 bytes is bit `at` of the codes of group `g` of 32.
#[inline(always)]
pub(super) fn add_high_bit(codes: &mut [u8; 256], high: &[u8; 32], at: u32) {
    for (g, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, high) in codes.iter_mut().zip(high) {
            *code |= (high >> g & 1) << at;
        }
    }
}

/// Q6_K: of each 128 elements, four low bits in 64 bytes (low nibbles first), two high bits in 32 bytes.
#[inline(always)]
pub(super) fn widen_sixes(low: &[u8; 128], high: &[u8; 64]) -> [u8; 256] {
    let mut out = [0; 256];
    let halves = low.as_chunks::<64>().0.iter().zip(high.as_chunks::<32>().0);
    for ((low, high), out) in halves.zip(out.as_chunks_mut::<128>().0) {
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low: &[u8; 32] = &low.as_chunks::<32>().0[j % 2];
            for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                *out = low >> (4 * (j / 2)) & 15 | (high >> (2 * j) & 3) << 4;
            }
        }
    }
    out
}

/// Q4_K and Q5_K: eight scales and eight minima of six bits in 12 bytes.
#[inline(always)]
pub(super) fn scales_and_minima(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = s[j] & 63;
        minima[j] = s[j + 4] & 63;
        scales[j + 4] = s[j + 8] & 15 | s[j] >> 6 << 4;
        minima[j + 4] = s[j + 8] >> 4 | s[j + 4] >> 6 << 4;
    }
    (scales, minima)
}

/// Q3_K: sixteen scales of six bits in 12 bytes, less 32, as i8.
#[inline(always)]
pub(super) fn scales_of_q3(s: &[u8; 12]) -> [u8; 16] {
    let mut scales = [0; 16];
    for (i, scale) in scales.iter_mut().enumerate() {
        let low = s[i % 8] >> (4 * (i / 8)) & 15;
        let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
        *scale = (low | high << 4).wrapping_sub(32);
    }
    scales
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<const BITS: usize>() {
        let mut codes = [0u8; 256];
        for (i, code) in codes.iter_mut().enumerate() {
            *code = (i * 37 + i / 7) as u8 & ((1 << BITS) - 1);
        }
        let mut packed = vec![0; 32 * BITS];
        pack::<BITS>(&codes, &mut packed);
        for (i, &code) in codes.iter().enumerate() {
            let bit = |b: usize| packed[(i * BITS + b) / 8] >> ((i * BITS + b) % 8) & 1;
            let read = (0..BITS).fold(0, |sum, b| sum | bit(b) << b);
            assert_eq!(read, code, "{BITS} bits, element {i}");
        }
    }

    #[test]
    fn packing_is_one_stream_of_bits() {
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
    }

    #[test]
    fn spread_gives_each_bit_its_byte() {
        for bits in 0..=255u8 {
            let bytes = SPREAD[bits as usize].to_le_bytes();
            assert_eq!(bytes, std::array::from_fn(|i| bits >> i & 1), "{bits:08b}");
        }
    }
}
