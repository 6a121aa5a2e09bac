//! Rows in memory: moving them, decoding them.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use portolan_device::DType;

use crate::{Encoding, Planes, decode_row, resolve::Run};

/// Elements that are converted at a time, so that the f32 in between stay in the cache.
const CHUNK: usize = 2048;

/// Moves the rows of a run from whole planes to the planes of the result.
pub(crate) fn move_rows(encoding: Encoding, planes: &[&[u8]], run: &Run, out: &mut [&mut [u8]]) {
    for ((from, to), &plane) in planes.iter().zip(out).zip(encoding.planes()) {
        let row = encoding.row_bytes(plane, run.k);
        for i in 0..run.len {
            let at = (run.first + i * run.step) * row;
            to[i * row..(i + 1) * row].copy_from_slice(&from[at..at + row]);
        }
    }
}

/// Decodes the rows of a run into the one plane of the result.
pub(crate) fn decode_run(
    encoding: Encoding,
    planes: &[&[u8]],
    run: &Run,
    dtype: DType,
    out: &mut [&mut [u8]],
) {
    let [out] = out else { return };
    let mut all: [&[u8]; 4] = [&[]; 4];
    for (slot, plane) in all.iter_mut().zip(planes) {
        *slot = plane;
    }
    // Plain rows that follow one another are one long row, to be taken in pieces of any length.
    let (k, rows, step) = match encoding {
        Encoding::Dense(_) | Encoding::Foreign(_) if run.step == 1 || run.len == 1 => {
            let size = encoding.code_bits() / 8;
            all[0] = &all[0][run.first * run.k * size..(run.first + run.len) * run.k * size];
            return decode_plain(encoding, all[0], dtype, out);
        }
        _ => (run.k, run.len, run.step),
    };
    let mut values = vec![0.0; k];
    let row = k * dtype.size();
    for i in 0..rows {
        decode_row(&Planes { encoding, k, planes: all }, run.first + i * step, &mut values);
        store(dtype, &values, &mut out[i * row..(i + 1) * row]);
    }
}

fn decode_plain(encoding: Encoding, bytes: &[u8], dtype: DType, out: &mut [u8]) {
    let size = encoding.code_bits() / 8;
    let mut values = [0.0; CHUNK];
    for (bytes, out) in bytes.chunks(CHUNK * size).zip(out.chunks_mut(CHUNK * dtype.size())) {
        let values = &mut values[..bytes.len() / size];
        match encoding {
            Encoding::Dense(DType::F16) => {
                let mut halves = [f16::ZERO; CHUNK];
                let halves = &mut halves[..values.len()];
                for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                halves.convert_to_f32_slice(values);
            }
            _ => {
                let k = values.len();
                decode_row(&Planes { encoding, k, planes: [bytes, &[], &[], &[]] }, 0, values);
            }
        }
        store(dtype, values, out);
    }
}

/// Rounds to `dtype` (to nearest, ties to even), little-endian.
fn store(dtype: DType, values: &[f32], out: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
        DType::F16 => {
            let mut halves = [f16::ZERO; CHUNK];
            for (values, out) in values.chunks(CHUNK).zip(out.chunks_mut(2 * CHUNK)) {
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                for (out, half) in out.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
                    *out = half.to_le_bytes();
                }
            }
        }
        _ => {
            // An expression dequantizes to f32, f16 or bf16 and to nothing else.
            for (out, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *out = bf16::from_f32(*value).to_le_bytes();
            }
        }
    }
}
