//! Kernels for x86-64 with AVX2, FMA and F16C.
#![allow(clippy::needless_range_loop, reason = "register tiles are addressed by index")]

use std::sync::Arc;

use portolan_device::{DeviceCaps, cpu::Team};
use portolan_weights::{Encoding, Layout, Repack};

use crate::{OpKind, chart::Variant};

mod argmax;
mod attention;
mod codes;
mod decode;
mod dense;
mod elementwise;
mod embed;
mod integer;
mod kind;
mod norm;
mod pack;
mod paged;
mod quantize;
mod repack;
mod rope;
mod rows8;
mod scales;
mod simd;
mod tile;
mod vector;
mod vnni;

#[cfg(test)]
mod tests;

pub(super) fn variants(op: OpKind) -> &'static [Variant] {
    match op {
        OpKind::Embed => &[embed::EMBED],
        OpKind::RmsNorm => &[norm::RMS_NORM],
        OpKind::Matmul => &[
            integer::MATMUL_VNNI,
            integer::MATMUL,
            integer::MATMUL_VNNI_INT8,
            integer::MATMUL_INT8,
            dense::MATMUL,
            dense::MATMUL_DECODED,
        ],
        OpKind::Rope => &[rope::ROPE],
        OpKind::Attention => &[attention::ATTENTION],
        OpKind::Activate => &[elementwise::ACTIVATE],
        OpKind::Add => &[elementwise::ADD],
        OpKind::Mul => &[elementwise::MUL],
        OpKind::QuantizeRows => &[quantize::QUANTIZE_ROWS],
        OpKind::Argmax => &[argmax::ARGMAX],
        OpKind::AddRmsNorm => &[norm::ADD_RMS_NORM],
        OpKind::GateUp => &[
            integer::GATE_UP_VNNI,
            integer::GATE_UP,
            integer::GATE_UP_VNNI_INT8,
            integer::GATE_UP_INT8,
            dense::GATE_UP,
        ],
        OpKind::RopeAppend => &[rope::ROPE_APPEND],
        // Moving rows, and a table a step, cost next to nothing: the plain kernels serve.
        _ => &[],
    }
}

pub(super) fn layouts(encoding: Encoding, shape: &[usize], caps: &DeviceCaps) -> Vec<Layout> {
    let fits = match shape {
        &[_, k] => rows8::Format::of(encoding).is_some() && k.is_multiple_of(encoding.row_multiple()),
        _ => false,
    };
    if fits && simd::available(caps).is_ok() { vec![Layout::Packed(rows8::NAME)] } else { Vec::new() }
}

pub(super) fn repack(layout: Layout) -> Option<Arc<dyn Repack>> {
    match layout {
        Layout::Packed(rows8::NAME) => Some(Arc::new(repack::Rows8)),
        _ => None,
    }
}

/// Rows of `cols` elements that are done before another thread is asked to help: below that many elements it
/// costs more than it brings.
fn rows_inline(cols: usize) -> usize {
    ((16 << 10) / cols.max(1)).max(1)
}

/// Runs `body` for each row of an op that does little an element: a few rows are not worth the team.
fn by_rows(team: &Team, rows: usize, cols: usize, body: impl Fn(usize) + Sync) {
    let each = rows_inline(cols);
    team.run(rows.div_ceil(each), |chunk| {
        let first = chunk * each;
        (first..rows.min(first + each)).for_each(&body);
    });
}
