//! Decoding a row of any [`Encoding`] to f32: the plain definition that everything else is held against.

use half::{bf16, f16};
use portolan_device::DType;

use crate::{
    BlockScale, Element, Encoding, Plane,
    encoding::{Foreign, SUPER_GROUP},
};

/// The planes of an encoded tensor of `rows` rows of `k` elements, in the order of [`Encoding::planes`].
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// How they are stored.
    pub encoding: Encoding,
    /// Elements a row.
    pub k: usize,
    /// The bytes of each plane; absent planes are empty.
    pub planes: [&'a [u8]; 4],
}

impl<'a> Planes<'a> {
    /// One row of a plane; empty where the encoding lacks it.
    pub fn row(&self, plane: Plane, row: usize) -> &'a [u8] {
        let bytes = self.encoding.row_bytes(plane, self.k);
        match self.encoding.planes().iter().position(|&p| p == plane) {
            Some(index) => &self.planes[index][row * bytes..(row + 1) * bytes],
            None => &[],
        }
    }
}

/// Element `i` of a dense little-endian array.
fn dense(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    match dtype {
        DType::F32 => {
            f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        }
        DType::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        DType::I32 => {
            i32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]) as f32
        }
        DType::U32 => {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]) as f32
        }
        DType::I8 => bytes[i] as i8 as f32,
        DType::U8 => bytes[i] as f32,
    }
}

/// Code `i` of a row's stream of bits.
fn code(bits: usize, bytes: &[u8], i: usize) -> u32 {
    let first = i * bits;
    let low = bytes[first / 8] as u32;
    let high = bytes.get(first / 8 + 1).copied().unwrap_or(0) as u32;
    ((low | high << 8) >> (first % 8)) & ((1 << bits) - 1)
}

/// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub(crate) fn e2m1(code: u32) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[(code & 7) as usize];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

/// E4M3 ("fn"): exponent bias 7, no infinity, 0x7f and 0xff are NaN.
pub(crate) fn e4m3(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = if exponent == 15 && mantissa == 7 {
        f32::NAN
    } else if exponent == 0 {
        mantissa as f32 / 512.0
    } else {
        (8 + mantissa) as f32 * f32::from_bits((exponent + 117) << 23)
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// E8M0: `2^(code - 127)`; 255 is NaN.
pub(crate) fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        n => f32::from_bits((n as u32) << 23),
    }
}

/// E5M2 is the upper half of an f16.
fn e5m2(code: u8) -> f32 {
    f16::from_bits((code as u16) << 8).to_f32()
}

/// One little-endian element; what f32 cannot hold is rounded.
fn foreign(kind: Foreign, bytes: &[u8]) -> f32 {
    let bits = bytes.iter().rev().fold(0u64, |bits, &byte| bits << 8 | byte as u64);
    match kind {
        Foreign::F64 => f64::from_bits(bits) as f32,
        Foreign::I64 => bits as i64 as f32,
        Foreign::U64 => bits as f32,
        Foreign::I16 => bits as i16 as f32,
        Foreign::U16 | Foreign::Bool => bits as f32,
        Foreign::F8E4M3 => e4m3(bits as u32),
        Foreign::F8E5M2 => e5m2(bits as u8),
        Foreign::F8E8M0 => e8m0(bits as u8),
    }
}

/// Decodes row `row` into `out`, whose length is `k`.
///
/// # Panics
/// When a plane is shorter than `k` and the encoding say. A [`crate::Checkpoint`] has checked that.
pub fn decode_row(w: &Planes<'_>, row: usize, out: &mut [f32]) {
    let codes = w.row(Plane::Codes, row);
    let scales = w.row(Plane::Scales, row);
    let biases = w.row(Plane::Biases, row);
    match w.encoding {
        Encoding::Dense(dtype) => {
            for (i, o) in out.iter_mut().enumerate() {
                *o = dense(dtype, codes, i);
            }
        }
        Encoding::Foreign(kind) => {
            for (o, bytes) in out.iter_mut().zip(codes.chunks_exact(kind.size())) {
                *o = foreign(kind, bytes);
            }
        }
        Encoding::Affine { bits, group, meta } => {
            for (g, out) in out.chunks_mut(group as usize).enumerate() {
                let (scale, bias) = (dense(meta, scales, g), dense(meta, biases, g));
                for (i, o) in out.iter_mut().enumerate() {
                    *o = scale * code(bits as usize, codes, g * group as usize + i) as f32 + bias;
                }
            }
        }
        Encoding::TwoLevel { bits, group, minima } => {
            let supers = w.row(Plane::Super, row);
            for (g, out) in out.chunks_mut(group as usize).enumerate() {
                let s = g * group as usize / SUPER_GROUP;
                let at = |i| code(bits as usize, codes, g * group as usize + i) as i32;
                if minima {
                    let scale = dense(DType::F16, supers, 2 * s) * scales[g] as f32;
                    let min = dense(DType::F16, supers, 2 * s + 1) * biases[g] as f32;
                    for (i, o) in out.iter_mut().enumerate() {
                        *o = scale * at(i) as f32 - min;
                    }
                } else {
                    let scale = dense(DType::F16, supers, s) * (scales[g] as i8) as f32;
                    let centre = 1 << (bits - 1);
                    for (i, o) in out.iter_mut().enumerate() {
                        *o = scale * (at(i) - centre) as f32;
                    }
                }
            }
        }
        Encoding::FloatBlock { element, group, scale } => {
            for (g, out) in out.chunks_mut(group as usize).enumerate() {
                let scale = match scale {
                    BlockScale::E8M0 => e8m0(scales[g]),
                    BlockScale::E4M3 => e4m3(scales[g] as u32),
                };
                for (i, o) in out.iter_mut().enumerate() {
                    let i = g * group as usize + i;
                    *o = scale
                        * match element {
                            Element::E2M1 => e2m1(code(4, codes, i)),
                            Element::E4M3 => e4m3(codes[i] as u32),
                        };
                }
            }
        }
    }
}

/// Decodes rows `first..first + out.len() / k` into `out`.
///
/// # Panics
/// As [`decode_row`].
pub fn decode_rows(w: &Planes<'_>, first: usize, out: &mut [f32]) {
    if w.k == 0 {
        return;
    }
    for (i, row) in out.chunks_mut(w.k).enumerate() {
        decode_row(w, first + i, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MI300 has another e4m3, of twice the bias, in which 0x80 is NaN: read as that, each value would be half.
    #[test]
    fn vllm_7210_all_codes_of_e4m3_are_of_the_kind_that_checkpoints_have() {
        for code in 0..=255u32 {
            let (sign, exponent, mantissa) = (code >> 7, code >> 3 & 15, f64::from(code & 7));
            let expected = match exponent {
                15 if code & 7 == 7 => f64::NAN,
                0 => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent as i32 - 7),
            };
            let expected = (if sign == 1 { -expected } else { expected }) as f32;
            let found = e4m3(code);
            let same = found == expected || found.is_nan() && expected.is_nan();
            assert!(same, "{code:#04x}: {found} instead of {expected}");
        }
        assert_eq!((e4m3(0x7e), e4m3(0x80), e4m3(0x01)), (448.0, 0.0, 2f32.powi(-9)));
        assert!(e4m3(0x80).is_sign_negative() && e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
