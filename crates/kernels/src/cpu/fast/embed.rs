//! Rows of an embedding table in the layout [`super::rows8`], which a tied output matrix asks for.

use half::{bf16, f16};
use portolan_device::{DType, DeviceCaps, cpu::Team};
use portolan_weights::{Encoding, Layout};

use super::{
    by_rows, fast,
    rows8::{BLOCK, Format, NAME, SUB, Scales, parts, place},
    simd::available,
};
use crate::{
    Decline, Launch, OpSpec, StepShape, Variant,
    cpu::access::{output, read},
};

pub(super) const EMBED: Variant =
    fast("rows8", takes, "affine 2-6 and 8 bits, two-level, E2M1 in rows8", embed);

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    available(caps)?;
    let [table] = spec.weights else { return Err(Decline::Shape) };
    if table.layout != Layout::Packed(NAME) || Format::of(table.encoding).is_none() {
        return Err(Decline::Dtype);
    }
    match table.shape[..] {
        [_, k] if k.is_multiple_of(table.encoding.row_multiple()) => Ok(()),
        _ => Err(Decline::Shape),
    }
}

fn embed(launch: &Launch, shape: StepShape, team: &Team) {
    let table = &launch.weights[0];
    let (Some(format), &[rows, k]) = (Format::of(table.encoding), &table.shape[..]) else { return };
    let block_bytes = format.block_bytes(k);
    let bytes: &[u8] = read(&table.planes[0], rows.div_ceil(BLOCK) * block_bytes);
    let ids: &[i32] = read(&launch.step.ids, shape.rows);
    let y = output::<f32>(&launch.outputs[0], shape);
    by_rows(team, shape.rows, 8 * k, |row| {
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        match usize::try_from(ids[row]).ok().filter(|&id| id < rows) {
            Some(id) => {
                let block = &bytes[id / BLOCK * block_bytes..(id / BLOCK + 1) * block_bytes];
                decode_lane(&format, table.encoding, block, id % BLOCK, y);
            }
            None => y.fill(f32::NAN),
        }
    });
}

/// One row out of a block.
pub(super) fn decode_lane(format: &Format, encoding: Encoding, block: &[u8], lane: usize, y: &mut [f32]) {
    let (low, high) = parts(format.bits);
    for (record, y) in block.chunks_exact(format.record_bytes()).zip(y.chunks_mut(format.elements())) {
        let (codes, tail) = record.split_at(format.code_bytes());
        let subs = codes.chunks_exact(SUB * format.bits);
        for ((s, y), sub) in y.chunks_mut(SUB).enumerate().zip(subs) {
            for (half, y) in y.chunks_mut(format.group.min(SUB)).enumerate() {
                let first = half * format.group;
                let group = (s * SUB + first) / format.group;
                let (scale, bias) = scale_and_bias(format, tail, group, lane);
                for (e, y) in y.iter_mut().enumerate() {
                    let (j, byte) = ((first + e) / 4, lane * 4 + (first + e) % 4);
                    let code = if format.bits == 8 {
                        u32::from(sub[j * 32 + byte] ^ 0x80)
                    } else {
                        let (at, shift) = place(low, j, byte);
                        let code = u32::from(sub[at] >> shift) & ((1 << low) - 1);
                        match high {
                            0 => code,
                            _ => {
                                let (at, shift) = place(high, j, byte);
                                code | (u32::from(sub[SUB * low + at] >> shift) & ((1 << high) - 1)) << low
                            }
                        }
                    };
                    *y = scale * number(encoding, code) + bias;
                }
            }
        }
    }
}

/// What a code stands for, before scale and bias.
fn number(encoding: Encoding, code: u32) -> f32 {
    match encoding {
        Encoding::FloatBlock { .. } => {
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(code & 7) as usize];
            if code & 8 != 0 { -magnitude } else { magnitude }
        }
        Encoding::TwoLevel { bits, minima: false, .. } => (code as i32 - (1 << (bits - 1))) as f32,
        _ => code as f32,
    }
}

/// Scale and bias of a lane in group `g` of the record whose scales are `tail`.
fn scale_and_bias(format: &Format, tail: &[u8], g: usize, lane: usize) -> (f32, f32) {
    let word = |i: usize| [tail[2 * i], tail[2 * i + 1]];
    let half = |i: usize| f16::from_le_bytes(word(i)).to_f32();
    match format.scales {
        Scales::Affine(DType::F16) => (half(lane), half(BLOCK + lane)),
        Scales::Affine(DType::BF16) => {
            let value = |i: usize| bf16::from_le_bytes(word(i)).to_f32();
            (value(lane), value(BLOCK + lane))
        }
        Scales::Affine(_) => {
            let value = |i: usize| {
                f32::from_le_bytes([tail[4 * i], tail[4 * i + 1], tail[4 * i + 2], tail[4 * i + 3]])
            };
            (value(lane), value(BLOCK + lane))
        }
        Scales::Minima => {
            let at = 4 * BLOCK + g * 2 * BLOCK + lane;
            (half(lane) * f32::from(tail[at]), -(half(BLOCK + lane) * f32::from(tail[at + BLOCK])))
        }
        Scales::Centred => (half(lane) * f32::from(tail[2 * BLOCK + g * BLOCK + lane] as i8), 0.0),
        Scales::E8M0 => (e8m0(tail[lane]), 0.0),
        Scales::E4M3 => (e4m3(tail[g * BLOCK + lane]), 0.0),
    }
}

/// `2^(code - 127)`; 255 is NaN.
fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        n => f32::from_bits(u32::from(n) << 23),
    }
}

/// Sign, four bits of exponent with a bias of 7, three of mantissa; 127 and 255 are NaN.
fn e4m3(code: u8) -> f32 {
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        bits => f32::from_bits(u32::from(bits) << 20) * f32::from_bits((127 + 120) << 23),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}
