//! Taking blocks apart into planes.
//!
//! The layouts are those of ggml's `ggml-common.h`. What differs from the block is how a value is written,
//! not what it is: `d * (q - 8)` becomes `d * q + (-8 * d)`. Both products are exact in f32 (11 bits times at
//! most 8), and so is their sum, so the decoded value is the same float. `-8 * d` itself is exact in f16
//! unless it overflows, which is a [`BadBlock`].

use half::f16;

use super::{
    BlockFormat,
    bits::{
        add_high_bit, array, fives, nibbles, pack, scales_and_minima, scales_of_q3, widen_nibbles,
        widen_pairs, widen_sixes,
    },
};

/// A block whose bias does not fit f16: its scale is beyond what any weight has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadBlock {
    /// The block, counted from the first that was given.
    pub block: usize,
    /// Its scale.
    pub scale: f32,
}

/// Takes whole blocks apart into the planes of [`BlockFormat::encoding`], in the order of
/// [`crate::Encoding::planes`].
///
/// `blocks` are `n * format.bytes()` bytes, and each of `out` is as long as that plane is for `n` blocks. A
/// row is a whole number of blocks, so any number of whole rows may be given.
///
/// # Panics
/// When there are fewer planes than the encoding has, or when one is too short.
pub fn split_blocks(format: BlockFormat, blocks: &[u8], out: &mut [&mut [u8]]) -> Result<(), BadBlock> {
    match (format, out) {
        (BlockFormat::Q4_0, [codes, scales, biases, ..]) => {
            affine::<18, 16>(blocks, codes, scales, biases, |b| (nibbles(array(b, 2)), times(b, 3)))
        }
        (BlockFormat::Q4_1, [codes, scales, biases, ..]) => {
            affine::<20, 16>(blocks, codes, scales, biases, |b| (nibbles(array(b, 4)), Some(array(b, 2))))
        }
        (BlockFormat::Q5_0, [codes, scales, biases, ..]) => {
            affine::<22, 20>(blocks, codes, scales, biases, |b| {
                (fives(array(b, 2), array(b, 6)), times(b, 4))
            })
        }
        (BlockFormat::Q5_1, [codes, scales, biases, ..]) => {
            affine::<24, 20>(blocks, codes, scales, biases, |b| {
                (fives(array(b, 4), array(b, 8)), Some(array(b, 2)))
            })
        }
        (BlockFormat::Q8_0, [codes, scales, biases, ..]) => {
            // The top bit turned over is 128 added to an i8.
            affine::<34, 32>(blocks, codes, scales, biases, |b| {
                (array::<32>(b, 2).map(|q| q ^ 0x80), times(b, 7))
            })
        }
        (BlockFormat::Q2_K, [codes, scales, minima, supers]) => {
            for (i, b) in blocks.as_chunks::<84>().0.iter().enumerate() {
                let bytes: [u8; 16] = array(b, 0);
                *part(scales, i) = bytes.map(|s| s & 15);
                *part(minima, i) = bytes.map(|s| s >> 4);
                *part(supers, i) = array::<4>(b, 80);
                pack::<2>(&widen_pairs(&array(b, 16)), part::<64>(codes, i));
            }
            Ok(())
        }
        (BlockFormat::Q3_K, [codes, scales, supers, ..]) => {
            for (i, b) in blocks.as_chunks::<110>().0.iter().enumerate() {
                *part(scales, i) = scales_of_q3(&array(b, 96));
                *part(supers, i) = array::<2>(b, 108);
                let mut q = widen_pairs(&array(b, 32));
                add_high_bit(&mut q, &array(b, 0), 2);
                pack::<3>(&q, part::<96>(codes, i));
            }
            Ok(())
        }
        (BlockFormat::Q4_K, [codes, scales, minima, supers]) => {
            for (i, b) in blocks.as_chunks::<144>().0.iter().enumerate() {
                *part(supers, i) = array::<4>(b, 0);
                (*part(scales, i), *part(minima, i)) = scales_and_minima(&array(b, 4));
                pack::<4>(&widen_nibbles(&array(b, 16)), part::<128>(codes, i));
            }
            Ok(())
        }
        (BlockFormat::Q5_K, [codes, scales, minima, supers]) => {
            for (i, b) in blocks.as_chunks::<176>().0.iter().enumerate() {
                *part(supers, i) = array::<4>(b, 0);
                (*part(scales, i), *part(minima, i)) = scales_and_minima(&array(b, 4));
                let mut q = widen_nibbles(&array(b, 48));
                add_high_bit(&mut q, &array(b, 16), 4);
                pack::<5>(&q, part::<160>(codes, i));
            }
            Ok(())
        }
        (BlockFormat::Q6_K, [codes, scales, supers, ..]) => {
            for (i, b) in blocks.as_chunks::<210>().0.iter().enumerate() {
                *part(scales, i) = array::<16>(b, 192);
                *part(supers, i) = array::<2>(b, 208);
                pack::<6>(&widen_sixes(&array(b, 0), &array(b, 128)), part::<192>(codes, i));
            }
            Ok(())
        }
        (BlockFormat::MXFP4, [codes, scales, ..]) => {
            for (i, b) in blocks.as_chunks::<17>().0.iter().enumerate() {
                scales[i] = b[0];
                *part(codes, i) = nibbles(array::<16>(b, 1));
            }
            Ok(())
        }
        (BlockFormat::NVFP4, [codes, scales, ..]) => {
            for (i, b) in blocks.as_chunks::<36>().0.iter().enumerate() {
                // Their sign is not looked at, and what would be NaN counts as 0.
                *part(scales, i) = array::<4>(b, 0).map(|s| if s & 0x7f == 0x7f { 0 } else { s & 0x7f });
                for (group, out) in part::<32>(codes, i).as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    *out = nibbles(array(b, 4 + 8 * group));
                }
            }
            Ok(())
        }
        (format, out) => {
            panic!("{} has {} planes, not {}", format.name(), format.encoding().planes().len(), out.len())
        }
    }
}

/// The part of a plane that belongs to block `i`.
#[inline(always)]
fn part<const N: usize>(plane: &mut [u8], i: usize) -> &mut [u8; N] {
    &mut plane.as_chunks_mut::<N>().0[i]
}

/// Blocks of 32 elements under an f16 scale, which stands first. `one` gives the codes and the bias.
#[inline(always)]
fn affine<const BYTES: usize, const CODES: usize>(
    blocks: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
    one: impl Fn(&[u8; BYTES]) -> ([u8; CODES], Option<[u8; 2]>),
) -> Result<(), BadBlock> {
    for (block, b) in blocks.as_chunks::<BYTES>().0.iter().enumerate() {
        let scale: [u8; 2] = array(b, 0);
        let (q, bias) = one(b);
        let Some(bias) = bias else {
            return Err(BadBlock { block, scale: f16::from_le_bytes(scale).to_f32() });
        };
        *part(codes, block) = q;
        *part(scales, block) = scale;
        *part(biases, block) = bias;
    }
    Ok(())
}

/// The bias for the scale that a block begins with.
#[inline(always)]
fn times(block: &[u8], log2: u16) -> Option<[u8; 2]> {
    bias_of(u16::from_le_bytes(array(block, 0)), log2).map(u16::to_le_bytes)
}

/// The bias that centres a block's codes on `2^log2`: minus that times its scale, both f16; none when that is not finite.
/// `log2` is at most 15.
#[inline(always)]
pub fn bias_of(scale: u16, log2: u16) -> Option<u16> {
    let exponent = scale >> 10 & 31;
    debug_assert!(log2 < 16, "2^{log2} is no f16");
    if exponent != 0 && exponent + log2 < 31 {
        return Some((scale ^ 0x8000) + (log2 << 10));
    }
    rare_bias(scale, log2)
}

/// As [`bias_of`], for zeros, subnormals and what overflows.
#[cold]
fn rare_bias(scale: u16, log2: u16) -> Option<u16> {
    let bias = f16::from_f32(-f16::from_bits(scale).to_f32() * f32::from(1u16 << log2));
    bias.is_finite().then(|| bias.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_exact_or_refused() {
        for d in 0..=u16::MAX {
            let expected = -f16::from_bits(d).to_f32() * 128.0;
            match bias_of(d, 7) {
                Some(bias) => assert_eq!(f16::from_bits(bias).to_f32(), expected, "{d:#06x}"),
                None => assert!(expected.is_nan() || expected.abs() > 65504.0, "{d:#06x}"),
            }
        }
    }
}
