//! Every primitive in its plainest form: f32, row by row. The oracle of all other kernels.
//!
//! None of them depends on the number of threads or on the other rows of a step. None can fail: what a launch
//! is made of has been checked by [`crate::Launch::check`], and a token id, a row or a page that is out of range
//! (a fault of whoever filled in the step) makes a row of NaN, so that it shows.

mod attention;
mod cache;
mod dot;
mod elementwise;
mod matmul;
mod norm;
mod quantize;
mod rope;
mod rows;

pub(crate) use quantize::quantize_row;

use super::{Takes, variant};
use crate::{
    OpKind, RowCodes,
    chart::{CpuKernel, Entry, Variant},
    takes,
};

const fn plain(takes: Takes, describe: &'static str, kernel: CpuKernel) -> Variant {
    Variant { rows: (0, usize::MAX), exact: true, ..variant("plain", takes, describe, kernel) }
}

const PLANES: &str = "weights of any encoding as planes";
const ANY: &str = "any size";

static EMBED: [Variant; 1] = [plain(takes::embed, PLANES, rows::embed)];
static RMS_NORM: [Variant; 1] = [plain(takes::rms_norm, ANY, norm::rms_norm)];
static MATMUL: [Variant; 1] = [plain(takes::matmul, PLANES, matmul::matmul)];
/// The reference of kernels over rounded rows. It is in no slot: where no fast kernel takes a weight, rows are not rounded.
static MATMUL_INTEGERS: Variant = Variant {
    name: "plain_integers",
    exact: false,
    ..plain(
        takes::matmul_integers,
        "rounded rows, made f32 again; weights as planes",
        matmul::matmul_integers,
    )
};
static ROPE_TABLE: [Variant; 1] = [plain(takes::rope_table, "any scaling", rope::rope_table)];
static ROPE: [Variant; 1] = [plain(takes::rope, "both styles, whole or partial", rope::rope)];
static CACHE_APPEND: [Variant; 1] =
    [plain(takes::cache_append, "pages of f32, f16 or bf16", cache::cache_append)];
static ATTENTION: [Variant; 1] =
    [plain(takes::attention, "pages of f32, f16 or bf16; any head size; windows", attention::attention)];
static ACTIVATE: [Variant; 1] = [plain(takes::floats, "every function", elementwise::activate)];
static ADD: [Variant; 1] = [plain(takes::floats, ANY, elementwise::add)];
static MUL: [Variant; 1] = [plain(takes::floats, ANY, elementwise::mul)];
static SELECT_ROWS: [Variant; 1] = [plain(takes::floats, ANY, rows::select_rows)];
static QUANTIZE_ROWS: [Variant; 1] = [plain(takes::floats, ANY, quantize::quantize_rows)];
static ARGMAX: [Variant; 1] = [plain(takes::floats, ANY, rows::argmax)];

/// The plain variants of an op; none for a fused one, which is defined by its decomposition.
pub(crate) fn variants(op: OpKind) -> &'static [Variant] {
    match op {
        OpKind::Embed => &EMBED,
        OpKind::RmsNorm => &RMS_NORM,
        OpKind::Matmul => &MATMUL,
        OpKind::RopeTable => &ROPE_TABLE,
        OpKind::Rope => &ROPE,
        OpKind::CacheAppend => &CACHE_APPEND,
        OpKind::Attention => &ATTENTION,
        OpKind::Activate => &ACTIVATE,
        OpKind::Add => &ADD,
        OpKind::Mul => &MUL,
        OpKind::SelectRows => &SELECT_ROWS,
        OpKind::QuantizeRows => &QUANTIZE_ROWS,
        OpKind::Argmax => &ARGMAX,
        OpKind::AddRmsNorm | OpKind::GateUp | OpKind::RopeAppend | OpKind::Qkv | OpKind::NormRopeAppend => {
            &[]
        }
    }
}

/// The plain variant of a primitive for a use: that of rounded rows where the input is such.
pub fn reference(op: OpKind, input: crate::ValueType) -> Option<&'static Variant> {
    match RowCodes::of(input) {
        Some(_) => (op == OpKind::Matmul).then_some(&MATMUL_INTEGERS),
        None => variants(op).first(),
    }
}

/// The kernel of [`reference`].
pub(crate) fn kernel(op: OpKind, input: crate::ValueType) -> Option<CpuKernel> {
    let variant = reference(op, input)?;
    match variant.entry {
        Entry::Cpu(kernel) => Some(kernel),
        Entry::Gpu(_) => None,
    }
}
