//! From a launch to the memory that a CPU kernel reads and writes.
//!
//! All of the `unsafe` that the plain kernels need stands here. It rests on three facts. The planner placed every
//! buffer, and [`crate::Launch::check`] has seen that outputs overlap nothing and that the host sees all of it. A
//! step runs its launches one after another, so nothing writes an input while a kernel reads it. And
//! [`Rows::row_mut`] hands a row to one thread, since a kernel cuts its work by rows.

use std::{cell::RefCell, marker::PhantomData};

use bytemuck::Pod;
use portolan_device::Slice;
use portolan_weights::{Planes, WeightTensor, decode_row};

use crate::{
    StepShape, View,
    row_codes::{GROUP, RowCodes},
};

/// Reads the first `len` elements of a slice.
///
/// # Panics
/// When the host cannot see the slice, or it is shorter than that: the launch was not checked.
#[expect(clippy::expect_used, reason = "Launch::check has seen that the host sees it")]
pub(crate) fn read<T: Pod>(slice: &Slice, len: usize) -> &[T] {
    // SAFETY: inputs, weights and step buffers are not written while a launch that reads them runs.
    let bytes = unsafe { slice.host_bytes() }.expect("memory that the host sees");
    bytemuck::cast_slice(&bytes[..len * size_of::<T>()])
}

/// The f32 rows of a value in this step.
pub(crate) fn values(view: &View, shape: StepShape) -> &[f32] {
    read(&view.slice, shape.of(view.rows) * view.cols)
}

/// The rows of a value that this step writes.
pub(crate) fn output<T: Pod>(view: &View, shape: StepShape) -> Rows<'_, T> {
    Rows::new(&view.slice, shape.of(view.rows), view.cols)
}

/// The planes of a weight.
pub(crate) fn planes(weight: &WeightTensor) -> Planes<'_> {
    let mut planes: [&[u8]; 4] = [&[]; 4];
    for (to, from) in planes.iter_mut().zip(&weight.planes) {
        *to = read(from, from.len());
    }
    Planes { encoding: weight.encoding, k: weight.shape.last().copied().unwrap_or(1), planes }
}

/// Runs `f` with the values of a weight of one dimension: a norm's factors, a bias.
pub(crate) fn with_vector<R>(weight: Option<&WeightTensor>, f: impl FnOnce(&[f32]) -> R) -> R {
    let Some(weight) = weight else { return f(&[]) };
    let planes = planes(weight);
    with_scratch(planes.k, |values| {
        decode_row(&planes, 0, values);
        f(values)
    })
}

/// Runs `f` with `len` floats of the thread's own memory, of undefined content. It is kept from call to call, so
/// that a step allocates nothing once its sizes have been met. Calls may nest.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
    }
    let mut scratch = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if scratch.len() < len {
        scratch.resize(len, 0.0);
    }
    let result = f(&mut scratch[..len]);
    FREE.with_borrow_mut(|free| free.push(scratch));
    result
}

/// A row of codes in groups of 32, as [`RowCodes`] lays it out.
#[derive(Clone, Copy)]
pub(crate) struct IntRow<'a> {
    /// Planes of codes, padded to whole groups.
    planes: &'a [i8],
    how: RowCodes,
    /// One a group.
    pub(crate) scales: &'a [f32],
    /// The sum of each group: its scale times the sum of its codes.
    pub(crate) sums: &'a [f32],
}

impl<'a> IntRow<'a> {
    /// Row `row` of `[_, cols]` rows in `bytes`.
    pub(crate) fn new(bytes: &'a [u8], row: usize, cols: usize, how: RowCodes) -> Self {
        let groups = cols.div_ceil(GROUP);
        let row = &bytes[row * how.row_bytes(cols)..][..how.row_bytes(cols)];
        let (planes, floats) = row.split_at(groups * GROUP * how.planes());
        let (scales, sums) = bytemuck::cast_slice(floats).split_at(groups);
        IntRow { planes: bytemuck::cast_slice(planes), how, scales, sums }
    }

    /// The code of an element, or of the padding.
    pub(crate) fn code(&self, i: usize) -> i32 {
        let at = i / GROUP * GROUP * self.how.planes() + i % GROUP;
        let high = i32::from(self.planes[at]);
        match self.how {
            RowCodes::Int8 => high,
            RowCodes::Int15 => 128 * high + i32::from(self.planes[at + GROUP]),
        }
    }
}

/// The rounded rows of a value in this step, as bytes for [`IntRow::new`].
pub(crate) fn integer_values(view: &View, how: RowCodes, shape: StepShape) -> &[u8] {
    read(&view.slice, shape.of(view.rows) * how.row_bytes(view.cols))
}

/// Memory that several threads write, each its own rows.
pub(crate) struct Rows<'a, T> {
    ptr: *mut T,
    rows: usize,
    cols: usize,
    life: PhantomData<&'a mut T>,
}

// SAFETY: threads reach the memory only through `row_mut` and `part_mut`, whose callers never share an element.
unsafe impl<T: Send> Sync for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Rows<'_, T> {}

impl<'a, T: Pod> Rows<'a, T> {
    /// The first `rows * cols` elements of a slice that the running launch writes.
    ///
    /// # Panics
    /// As [`read`].
    #[expect(clippy::expect_used, reason = "Launch::check has seen that the host sees it")]
    pub(crate) fn new(slice: &'a Slice, rows: usize, cols: usize) -> Self {
        let ptr = slice.host_ptr().expect("memory that the host sees").as_ptr();
        assert!(slice.len() >= rows * cols * size_of::<T>(), "a slice of {} bytes", slice.len());
        assert!(ptr.addr().is_multiple_of(align_of::<T>()), "an aligned slice");
        Rows { ptr: ptr.cast(), rows, cols, life: PhantomData }
    }

    /// One row, to write.
    ///
    /// # Safety
    /// No other reference to this row is alive: a kernel gives each row to one chunk of its work.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row_mut(&self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: the row is within the slice (checked in `new`), and the caller is alone with it.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(row * self.cols), self.cols) }
    }

    /// Columns `from..from + len` of a row, to write: for kernels that cut their work by columns too.
    ///
    /// # Safety
    /// No other reference to these elements is alive.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part_mut(&self, row: usize, from: usize, len: usize) -> &mut [T] {
        assert!(row < self.rows && from + len <= self.cols);
        // SAFETY: within the slice (checked in `new` and above), and the caller is alone with it.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(row * self.cols + from), len) }
    }
}
