//! What a tensor's bytes are made of.
//!
//! Every filler is a rule for one *unit* of a few bytes, from random bits that the unit's number picks. So any
//! part of a tensor can be made by any thread.

use half::{bf16, f16};

use super::random::{QUANTILES, at, normal_quantiles};

/// Scales of a quantized tensor lie between 1 - `SPREAD` and 1 + `SPREAD` of their middle.
const SPREAD: f32 = 0.25;
/// Root mean square of a uniform distribution between 1 - `SPREAD` and 1 + `SPREAD`, squared.
const SPREAD_SQUARE: f32 = 1.0 + SPREAD * SPREAD / 3.0;

/// The 16-bit floats of a safetensors checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Half {
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Half {
    fn bits(self, value: f32) -> u16 {
        match self {
            Half::Bf16 => bf16::from_f32(value).to_bits(),
            Half::F16 => f16::from_f32(value).to_bits(),
        }
    }
}

/// Plain numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// Normal, with this standard deviation.
    Normal(f32),
    /// Uniform from, to.
    Uniform(f32, f32),
}

impl Values {
    /// The value for each of the [`QUANTILES`] equally likely cases.
    fn table(self) -> impl Iterator<Item = f32> {
        normal_quantiles().iter().zip(0..).map(move |(&z, i)| match self {
            Values::Normal(std) => z * std,
            Values::Uniform(low, high) => low + (high - low) * share(i, QUANTILES),
        })
    }
}

/// The middle of part `i` of `parts` of the unit interval.
fn share(i: usize, parts: usize) -> f32 {
    (i as f32 + 0.5) / parts as f32
}

/// How the bytes of a tensor are made.
#[derive(Debug)]
pub(super) enum Fill {
    /// Random bits.
    Bits,
    /// Bytes from a table of 256.
    Table8(Vec<u8>),
    /// 16-bit elements from a table of [`QUANTILES`].
    Table16(Vec<u16>),
    /// 32-bit elements from a table of [`QUANTILES`].
    Table32(Vec<f32>),
    /// Blocks of GGUF: a head (scale, and minimum) from a table of 256, then `codes` random bytes.
    Blocks {
        /// The heads; the first `head` bytes of each count.
        heads: Vec<[u8; 4]>,
        /// Bytes of a head.
        head: usize,
        /// Bytes of the codes: a multiple of 8.
        codes: usize,
        /// Codes are `i8`, of which -128 is none: quantizers never write it.
        signed: bool,
    },
    /// These bytes.
    Literal(Vec<u8>),
}

impl Fill {
    /// Plain 16-bit floats.
    pub(super) fn half(dtype: Half, values: Values) -> Self {
        Fill::Table16(values.table().map(|v| dtype.bits(v)).collect())
    }

    /// Plain 32-bit floats.
    pub(super) fn single(values: Values) -> Self {
        Fill::Table32(values.table().collect())
    }

    /// MLX's affine scales and biases, for uniform codes of `bits` bits that shall have the root mean square
    /// `rms`. The two must be filled from the same stream: a group's bias is the negative middle of its codes.
    pub(super) fn affine(bits: u8, dtype: Half, rms: f32) -> [Self; 2] {
        let codes = (1u32 << bits) as f32;
        // The variance of the integers 0 to n - 1, all equally likely, is (n^2 - 1) / 12.
        let middle = rms / ((codes * codes - 1.0) / 12.0 * SPREAD_SQUARE).sqrt();
        let scales: Vec<u16> =
            Values::Uniform(1.0 - SPREAD, 1.0 + SPREAD).table().map(|m| dtype.bits(m * middle)).collect();
        let value = |bits: u16| match dtype {
            Half::Bf16 => bf16::from_bits(bits).to_f32(),
            Half::F16 => f16::from_bits(bits).to_f32(),
        };
        let biases = scales.iter().map(|&s| dtype.bits(-value(s) * (codes - 1.0) / 2.0)).collect();
        [Fill::Table16(scales), Fill::Table16(biases)]
    }

    /// E8M0 scales for uniform E2M1 codes that shall have the root mean square `rms`.
    pub(super) fn e8m0(rms: f32) -> Self {
        Fill::Table8(e8m0_table(rms))
    }

    /// Q4_0: f16 scale, 32 codes of 4 bits less 8. The sign of the scale is random: the codes' mean is -1/2, and
    /// a mean that all weights share would grow from layer to layer.
    pub(super) fn q4_0(rms: f32) -> Self {
        // E[(q - 8)^2] over 0 to 15 is 21.5.
        Fill::Blocks { heads: signed_scales(rms / 21.5f32.sqrt()), head: 2, codes: 16, signed: false }
    }

    /// Q4_1: f16 scale and minimum, 32 codes of 4 bits.
    pub(super) fn q4_1(rms: f32) -> Self {
        // The variance of 0 to 15 is 21.25.
        let middle = rms / (21.25 * SPREAD_SQUARE).sqrt();
        let head = |i| {
            let scale = f16::from_f32(middle * (1.0 - SPREAD + 2.0 * SPREAD * share(i, 256)));
            let [a, b] = scale.to_le_bytes();
            let [c, d] = f16::from_f32(scale.to_f32() * -7.5).to_le_bytes();
            [a, b, c, d]
        };
        Fill::Blocks { heads: (0..256).map(head).collect(), head: 4, codes: 16, signed: false }
    }

    /// Q8_0: f16 scale, 32 codes of 8 bits.
    pub(super) fn q8_0(rms: f32) -> Self {
        // E[q^2] over -127 to 127, where -127 stands for -128 too.
        let square = (690_880.0 * 2.0 + 127.0 * 127.0) / 256.0f32;
        Fill::Blocks { heads: signed_scales(rms / square.sqrt()), head: 2, codes: 32, signed: true }
    }

    /// GGUF's MXFP4: E8M0 scale, 32 codes of E2M1.
    pub(super) fn mxfp4_blocks(rms: f32) -> Self {
        let heads = e8m0_table(rms).into_iter().map(|e| [e, 0, 0, 0]).collect();
        Fill::Blocks { heads, head: 1, codes: 16, signed: false }
    }

    /// Bytes of a unit. A part of a tensor must begin at a multiple of it.
    pub(super) fn unit(&self) -> usize {
        match self {
            Fill::Bits | Fill::Table8(_) | Fill::Table16(_) => 8,
            Fill::Table32(_) => 16,
            Fill::Blocks { head, codes, .. } => head + codes,
            Fill::Literal(_) => 1,
        }
    }

    /// Makes the bytes of a tensor from unit `first` on.
    pub(super) fn write(&self, stream: u64, first: u64, out: &mut [u8]) {
        match self {
            Fill::Bits => units::<8>(first, out, |u| at(stream, u).to_le_bytes()),
            Fill::Table8(table) => {
                units::<8>(first, out, |u| at(stream, u).to_le_bytes().map(|b| table[b as usize]))
            }
            Fill::Table16(table) => units::<8>(first, out, |u| {
                let bits = at(stream, u);
                let [[a, b], [c, d], [e, f], [g, h]] =
                    [4, 20, 36, 52].map(|from| table[(bits >> from) as usize % QUANTILES].to_le_bytes());
                [a, b, c, d, e, f, g, h]
            }),
            Fill::Table32(table) => units::<16>(first, out, |u| {
                let bits = at(stream, u);
                let mut unit = [0; 16];
                for (bytes, from) in unit.chunks_exact_mut(4).zip([4, 20, 36, 52]) {
                    bytes.copy_from_slice(&table[(bits >> from) as usize % QUANTILES].to_le_bytes());
                }
                unit
            }),
            Fill::Blocks { heads, head, codes, signed } => {
                let draws = (codes / 8 + 1) as u64;
                for (block, out) in (first..).zip(out.chunks_mut(head + codes)) {
                    let mut draw = block * draws;
                    let (front, body) = out.split_at_mut(*head);
                    front.copy_from_slice(&heads[at(stream, draw) as usize % 256][..*head]);
                    for bytes in body.chunks_exact_mut(8) {
                        draw += 1;
                        bytes.copy_from_slice(&at(stream, draw).to_le_bytes());
                    }
                    if *signed {
                        body.iter_mut().for_each(|byte| *byte = (*byte as i8).max(-127) as u8);
                    }
                }
            }
            Fill::Literal(bytes) => out.copy_from_slice(&bytes[first as usize..first as usize + out.len()]),
        }
    }
}

/// Fills `out` unit by unit; the last may be cut.
#[inline]
fn units<const N: usize>(first: u64, out: &mut [u8], unit: impl Fn(u64) -> [u8; N]) {
    let whole = (out.len() / N) as u64;
    let mut chunks = out.chunks_exact_mut(N);
    for (u, chunk) in (first..).zip(&mut chunks) {
        chunk.copy_from_slice(&unit(u));
    }
    let rest = chunks.into_remainder();
    let last = unit(first + whole);
    rest.copy_from_slice(&last[..rest.len()]);
}

/// f16 scales of both signs whose root mean square is `rms`.
fn signed_scales(rms: f32) -> Vec<[u8; 4]> {
    let middle = rms / SPREAD_SQUARE.sqrt();
    let head = |i: usize| {
        let sign = if i.is_multiple_of(2) { 1.0 } else { -1.0 };
        let [a, b] =
            f16::from_f32(sign * middle * (1.0 - SPREAD + 2.0 * SPREAD * share(i / 2, 128))).to_le_bytes();
        [a, b, 0, 0]
    };
    (0..256).map(head).collect()
}

/// Two neighbouring powers of two, as often as gives the mean square that is wanted.
fn e8m0_table(rms: f32) -> Vec<u8> {
    // E[x^2] over the 16 values of E2M1 is (0 + 1/4 + 1 + 9/4 + 4 + 9 + 16 + 36) / 8.
    let scale = rms / 8.5625f32.sqrt();
    let exponent = scale.log2().floor();
    let low = exponent.exp2();
    let often = ((scale / low).powi(2) - 1.0) / 3.0;
    let code = (exponent as i32 + 127).clamp(0, 253) as u8;
    (0..256).map(|i| if share(i, 256) < often { code + 1 } else { code }).collect()
}
