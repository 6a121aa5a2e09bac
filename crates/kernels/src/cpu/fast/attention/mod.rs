//! Softmax attention over page tables.
//!
//! Positions are cut into fixed *segments* of 128. Within a segment a row's softmax is plain: all scores, their
//! maximum, exponentials, the weighted sum of the values. Segments are then merged one after the other. How the
//! work is shared out (a few rows: a segment of a kv head at a time, `split`; many rows of a sequence: a block of
//! rows of a kv head, `tiled`) changes neither that order nor any other sum, so a row's result depends on its
//! own query and on its sequence's cache alone, bit for bit.

use half::{bf16, f16};
use portolan_device::{DType, DeviceCaps, cpu::Team};

use super::{
    fast,
    isa::NAMES,
    paged::Pages,
    simd::{Lanes, takes_floats},
};
use crate::{
    CacheKind, Decline, Launch, Op, OpSpec, PAGE_TOKENS, StepShape, Variant,
    cpu::access::{Rows, output, read, values},
};

mod inner;
mod split;
mod tiled;

pub(super) const ATTENTION: Variant =
    fast(NAMES.floats, takes, "head sizes a multiple of 8; f32, f16 or bf16 pages; windows", attention);

/// Pages of a segment.
const SEGMENT_PAGES: usize = 4;
/// Positions of a segment.
const SEGMENT: usize = SEGMENT_PAGES * PAGE_TOKENS;

fn takes(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let Op::Attention { heads, .. } = *spec.op else { return Err(Decline::NoPort) };
    let Some((CacheKind::Paged { kv_heads, k_dim, v_dim, .. }, dtype)) = spec.cache else {
        return Err(Decline::Shape);
    };
    if !dtype.is_float() {
        return Err(Decline::Dtype);
    }
    let fits = kv_heads > 0
        && heads.is_multiple_of(kv_heads)
        && heads * k_dim == spec.input_cols
        && k_dim.is_multiple_of(8)
        && v_dim.is_multiple_of(8);
    if fits { Ok(()) } else { Err(Decline::Shape) }
}

fn attention(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.cache.as_ref().map(|c| c.dtype) {
        Some(DType::F32) => of::<f32>(launch, shape, team),
        Some(DType::F16) => of::<f16>(launch, shape, team),
        Some(DType::BF16) => of::<bf16>(launch, shape, team),
        _ => {}
    }
}

fn of<T: Lanes>(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Attention { heads, scale, window } = launch.op else { return };
    let Some(cache) = &launch.cache else { return };
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { return };
    let memory_rows = cache.pages * kv_heads * PAGE_TOKENS;
    let task = Task::<T> {
        q: values(&launch.inputs[0], shape),
        y: output(&launch.outputs[0], shape),
        keys: read(&cache.k, memory_rows * k_dim),
        values: read(&cache.v, memory_rows * v_dim),
        positions: read(&launch.step.positions, shape.rows),
        row_seq: read(&launch.step.row_seq, shape.rows),
        pages: Pages::new(launch, cache.pages, kv_heads, shape),
        rows: shape.rows,
        kv_heads,
        group: heads / kv_heads,
        k_dim,
        v_dim,
        scale,
        window,
    };
    // A block of rows pays where a sequence has several of them.
    let changes = task.row_seq.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if shape.rows >= 4 * (changes + 1) { tiled::run(&task, team) } else { split::run(&task, team) }
}

/// One launch.
struct Task<'a, T> {
    q: &'a [f32],
    y: Rows<'a, f32>,
    keys: &'a [T],
    values: &'a [T],
    positions: &'a [i32],
    row_seq: &'a [i32],
    pages: Pages<'a>,
    rows: usize,
    kv_heads: usize,
    /// Query heads a kv head.
    group: usize,
    k_dim: usize,
    v_dim: usize,
    scale: f32,
    window: Option<usize>,
}

impl<'a, T> Task<'a, T> {
    /// The positions that a row sees: first and one past the last. None for a row whose position is none, or is
    /// beyond the page table.
    fn sees(&self, row: usize) -> Option<(usize, usize)> {
        let position = usize::try_from(self.positions[row]).ok().filter(|&p| p < self.pages.positions())?;
        Some((self.window.map_or(0, |w| (position + 1).saturating_sub(w)), position + 1))
    }

    /// The queries of a row for a kv head: `[group, k_dim]`.
    fn queries(&self, row: usize, kv_head: usize) -> &'a [f32] {
        let len = self.group * self.k_dim;
        let first = (row * self.kv_heads + kv_head) * len;
        &self.q[first..first + len]
    }

    /// Keys and values of a page of a row's sequence.
    fn page(&self, row: usize, index: usize, kv_head: usize) -> Option<(&'a [T], &'a [T])> {
        let first = self.pages.first_row(self.row_seq[row], index, kv_head)?;
        let part = |dim: usize| first * dim..(first + PAGE_TOKENS) * dim;
        Some((&self.keys[part(self.k_dim)], &self.values[part(self.v_dim)]))
    }

    /// The results of a row for a kv head: `[group, v_dim]`.
    ///
    /// # Safety
    /// No other reference to them is alive.
    #[allow(clippy::mut_from_ref)]
    unsafe fn results(&self, row: usize, kv_head: usize) -> &mut [f32] {
        let len = self.group * self.v_dim;
        // SAFETY: the caller's promise.
        unsafe { self.y.part_mut(row, kv_head * len, len) }
    }
}

/// Running softmax of the heads of a row and kv head, over the segments so far.
struct State<'a> {
    /// The largest score a head.
    max: &'a mut [f32],
    /// The sum of the exponentials a head.
    sum: &'a mut [f32],
    /// `[group, v_dim]`: the weighted sums of the values.
    acc: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Floats that a state takes.
    const fn len(group: usize, v_dim: usize) -> usize {
        group * (v_dim + 2)
    }

    /// A state in so many floats.
    fn of(memory: &'a mut [f32], group: usize) -> Self {
        let (max, rest) = memory.split_at_mut(group);
        let (sum, acc) = rest.split_at_mut(group);
        State { max, sum, acc }
    }

    /// Nothing seen.
    fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }

    /// A page was not there: the result shows it.
    fn poison(&mut self) {
        self.sum.fill(f32::NAN);
        self.acc.fill(f32::NAN);
    }
}
