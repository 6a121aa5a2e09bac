//! Rotary position embedding, alone and with the append to the cache.
//!
//! Products and differences are rounded one by one, as in the plain kernel, so the two agree bit for bit.

use half::{bf16, f16};
use portolan_device::{DType, DeviceCaps, cpu::Team};

use super::{
    by_rows, fast,
    isa::NAMES,
    lanes::{F32x8, add8, in_unzip_order8, load8, mul8, store8, sub8, unzip8, zip8},
    paged::Pages,
    rows_inline,
    simd::{Lanes, takes_floats},
};
use crate::{
    CacheKind, Decline, Launch, Op, OpSpec, PAGE_TOKENS, RopeStyle, StepShape, Variant,
    cpu::access::{Rows, output, read, values},
};

pub(super) const ROPE: Variant =
    fast(NAMES.floats, takes_rope, "both styles; rotated elements a multiple of 16", rope);

pub(super) const ROPE_APPEND: Variant = fast(
    NAMES.floats,
    takes_append,
    "both styles; rotated elements a multiple of 16; head sizes a multiple of 8; f32, f16 or bf16 pages",
    rope_append,
);

fn takes_rope(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let Op::Rope { heads, head_dim, rot, .. } = *spec.op else { return Err(Decline::NoPort) };
    let fits = rot.is_multiple_of(16) && rot <= head_dim && heads * head_dim == spec.input_cols;
    if fits { Ok(()) } else { Err(Decline::Shape) }
}

fn takes_append(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Result<(), Decline> {
    takes_floats(spec, caps)?;
    let Op::RopeAppend { heads, rot, .. } = *spec.op else { return Err(Decline::NoPort) };
    let Some((CacheKind::Paged { k_dim, v_dim, .. }, dtype)) = spec.cache else { return Err(Decline::Shape) };
    if !dtype.is_float() {
        return Err(Decline::Dtype);
    }
    let fits = rot.is_multiple_of(16)
        && rot <= k_dim
        && k_dim.is_multiple_of(8)
        && v_dim.is_multiple_of(8)
        && heads * k_dim == spec.input_cols;
    if fits { Ok(()) } else { Err(Decline::Shape) }
}

/// Eight pairs as two vectors: of halves as they lie, of neighbours sorted into first and second elements. The
/// order of pairs within a vector is that of [`put_pairs`] and of [`angles`].
///
/// # Safety
/// `rot` elements can be read at `x`; `i` is a multiple of 8 below `rot / 2`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn pairs(style: RopeStyle, x: *const f32, i: usize, rot: usize) -> (F32x8, F32x8) {
    // SAFETY: the caller's promise.
    unsafe {
        match style {
            RopeStyle::Halves => (load8(x.add(i)), load8(x.add(i + rot / 2))),
            RopeStyle::Interleaved => {
                let (low, high) = (load8(x.add(2 * i)), load8(x.add(2 * i + 8)));
                unzip8(low, high)
            }
        }
    }
}

/// The inverse of [`pairs`]: the two vectors of eight, and where they go.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn put_pairs(style: RopeStyle, a: F32x8, b: F32x8, i: usize, rot: usize) -> [(usize, F32x8); 2] {
    match style {
        RopeStyle::Halves => [(i, a), (i + rot / 2, b)],
        RopeStyle::Interleaved => {
            let (low, high) = zip8(a, b);
            [(2 * i, low), (2 * i + 8, high)]
        }
    }
}

/// Eight cosines or sines in the order of [`pairs`].
///
/// # Safety
/// Eight elements can be read at `table + i`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn angles(style: RopeStyle, table: *const f32, i: usize) -> F32x8 {
    // SAFETY: the caller's promise.
    let v = unsafe { load8(table.add(i)) };
    match style {
        RopeStyle::Halves => v,
        RopeStyle::Interleaved => in_unzip_order8(v),
    }
}

/// One head; `table` is `rot/2` cosines and as many sines.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn rotate<T: Lanes>(style: RopeStyle, x: &[f32], table: &[f32], y: &mut [T]) {
    let rot = table.len();
    assert!(rot.is_multiple_of(16) && rot <= x.len() && x.len() == y.len());
    let (cos, sin) = (table.as_ptr(), table[rot / 2..].as_ptr());
    for i in (0..rot / 2).step_by(8) {
        // SAFETY: pairs `i..i + 8` of `rot / 2`, whose elements are below `rot`.
        unsafe {
            let (a, b) = pairs(style, x.as_ptr(), i, rot);
            let (cos, sin) = (angles(style, cos, i), angles(style, sin, i));
            let first = sub8(mul8(a, cos), mul8(b, sin));
            let second = add8(mul8(b, cos), mul8(a, sin));
            for (at, v) in put_pairs(style, first, second, i, rot) {
                store8(y.as_mut_ptr().add(at), v);
            }
        }
    }
    convert(&x[rot..], &mut y[rot..]);
}

/// Elements rounded to the type; the lengths are one.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn convert<T: Lanes>(x: &[f32], y: &mut [T]) {
    let (eights, rest) = y.as_chunks_mut::<8>();
    let (x_eights, x_rest) = x.as_chunks::<8>();
    for (y, x) in eights.iter_mut().zip(x_eights) {
        // SAFETY: arrays of eight.
        unsafe { store8(y.as_mut_ptr(), load8(x.as_ptr())) };
    }
    for (y, x) in rest.iter_mut().zip(x_rest) {
        *y = T::from_f32(*x);
    }
}

fn rope(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Rope { head_dim, rot, style, .. } = launch.op else { return };
    let (rows, cols) = (shape.of(launch.inputs[0].rows), launch.inputs[0].cols);
    let (x, table) = (values(&launch.inputs[0], shape), values(&launch.inputs[1], shape));
    let y = output::<f32>(&launch.outputs[0], shape);
    by_rows(team, rows, cols, |row| {
        let table = &table[row * rot..(row + 1) * rot];
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        let x = &x[row * cols..(row + 1) * cols];
        for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
            // SAFETY: `takes` saw the features.
            unsafe { rotate(style, x, table, y) };
        }
    });
}

fn rope_append(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.cache.as_ref().map(|c| c.dtype) {
        Some(DType::F32) => append_of::<f32>(launch, shape, team),
        Some(DType::F16) => append_of::<f16>(launch, shape, team),
        Some(DType::BF16) => append_of::<bf16>(launch, shape, team),
        _ => {}
    }
}

fn append_of<T: Lanes>(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::RopeAppend { heads, rot, style } = launch.op else { return };
    let Some(cache) = &launch.cache else { return };
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { return };
    let [q, k, v, table] = [0, 1, 2, 3].map(|i| values(&launch.inputs[i], shape));
    let y = output::<f32>(&launch.outputs[0], shape);
    let positions: &[i32] = read(&launch.step.positions, shape.rows);
    let row_seq: &[i32] = read(&launch.step.row_seq, shape.rows);
    let pages = Pages::new(launch, cache.pages, kv_heads, shape);
    let memory_rows = cache.pages * kv_heads * PAGE_TOKENS;
    let keys = Rows::<T>::new(&cache.k, memory_rows, k_dim);
    let vals = Rows::<T>::new(&cache.v, memory_rows, v_dim);
    let rotate_q = |row: usize| {
        let table = &table[row * rot..(row + 1) * rot];
        // SAFETY: the row belongs to this chunk alone.
        let y = unsafe { y.row_mut(row) };
        let q = &q[row * heads * k_dim..(row + 1) * heads * k_dim];
        for (q, y) in q.chunks_exact(k_dim).zip(y.chunks_exact_mut(k_dim)) {
            // SAFETY: `takes` saw the features.
            unsafe { rotate(style, q, table, y) };
        }
    };
    let append = |head: usize| {
        for row in 0..shape.rows {
            let Ok(position) = usize::try_from(positions[row]) else { continue };
            let Some(page) = pages.first_row(row_seq[row], position / PAGE_TOKENS, head) else { continue };
            let at = page + position % PAGE_TOKENS;
            let from = row * kv_heads + head;
            let table = &table[row * rot..(row + 1) * rot];
            // SAFETY: the cache's rows of a head belong to this chunk alone; `takes` saw the features.
            unsafe {
                rotate(style, &k[from * k_dim..(from + 1) * k_dim], table, keys.row_mut(at));
                convert(&v[from * v_dim..(from + 1) * v_dim], vals.row_mut(at));
            }
        }
    };
    // The cache is cut by heads: even a page table that names a page twice cannot make two threads write one row.
    let rows_each = rows_inline(heads * k_dim);
    if shape.rows <= rows_each {
        (0..shape.rows).for_each(rotate_q);
        (0..kv_heads).for_each(append);
        return;
    }
    team.run(kv_heads + shape.rows.div_ceil(rows_each), |chunk| match chunk.checked_sub(kv_heads) {
        None => append(chunk),
        Some(i) => (i * rows_each..shape.rows.min((i + 1) * rows_each)).for_each(rotate_q),
    });
}
