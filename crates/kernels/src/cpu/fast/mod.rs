//! The kernels that a user's tokens go through, for x86-64 with AVX2, FMA and F16C and for aarch64 with NEON.
//!
//! They are written once, with vectors of eight f32 that `lanes` has for each of the two: a vector there, two here. What
//! the two do differently (unpacking codes, products of integers, rounding to them) stands in a folder of its own. Every
//! operation of `lanes` rounds the same way, so results are the same bits; `tests/golden.rs` holds them to it. On any other
//! processor, and on one that lacks the features, the plain kernels serve.
#![allow(clippy::needless_range_loop, reason = "register tiles are addressed by index")]

use std::sync::Arc;

use portolan_device::{DeviceCaps, cpu::Team};
use portolan_weights::{Encoding, Layout, Repack};

use super::variant as fast;
use crate::{OpKind, chart::Variant};

mod argmax;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod blocks;
mod decode;
mod dense;
mod elementwise;
mod embed;
mod integer;
mod kind;
#[cfg(target_arch = "aarch64")]
mod neon;
mod norm;
mod paged;
mod quantize;
mod repack;
mod rope;
mod rows8;
mod scales;
mod simd;
mod tile;
mod vector;

#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
use avx2 as isa;
use isa::lanes;
#[cfg(target_arch = "aarch64")]
use neon as isa;

/// What the variants of an instruction set are called.
struct Names {
    /// Of f32 values alone.
    floats: &'static str,
    /// Matmuls of f32 rows and dense weights.
    dense: &'static str,
    /// Matmuls of f32 rows and decoded weights.
    decoded: &'static str,
    /// Matmuls of rows of 15 bits.
    int15: &'static str,
    /// Matmuls of int8 rows.
    int8: &'static str,
}

/// The fast variants of an op, best first; what they decline is left to the plain version.
pub(super) fn variants(op: OpKind) -> &'static [Variant] {
    match op {
        OpKind::Embed => &[embed::EMBED],
        OpKind::RmsNorm => &[norm::RMS_NORM],
        OpKind::Matmul => &[
            #[cfg(target_arch = "x86_64")]
            integer::MATMUL_VNNI,
            integer::MATMUL,
            #[cfg(target_arch = "x86_64")]
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
            #[cfg(target_arch = "x86_64")]
            integer::GATE_UP_VNNI,
            integer::GATE_UP,
            #[cfg(target_arch = "x86_64")]
            integer::GATE_UP_VNNI_INT8,
            integer::GATE_UP_INT8,
            dense::GATE_UP,
        ],
        OpKind::RopeAppend => &[rope::ROPE_APPEND],
        // Moving rows, and a table a step, cost next to nothing: the plain kernels serve.
        _ => &[],
    }
}

/// Layouts that these kernels would like for a weight, best first.
pub(super) fn layouts(encoding: Encoding, shape: &[usize], caps: &DeviceCaps) -> Vec<Layout> {
    let fits = match shape {
        &[_, k] => rows8::Format::of(encoding).is_some() && k.is_multiple_of(encoding.row_multiple()),
        _ => false,
    };
    if fits && simd::available(caps).is_ok() { vec![Layout::Packed(rows8::NAME)] } else { Vec::new() }
}

/// What makes a layout.
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
