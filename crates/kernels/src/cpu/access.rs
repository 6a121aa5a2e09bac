//! From a launch to the memory that a CPU kernel reads and writes.
//!
//! All of the `unsafe` that the plain kernels need stands here. It rests on three facts. The planner placed every
//! buffer, and [`crate::Launch`] promises that inputs and outputs never overlap. A step runs its launches one
//! after another, so nothing writes an input while a kernel reads it. And [`Rows::row_mut`] hands a row to
//! one thread, since a kernel cuts its work by rows.

use std::marker::PhantomData;

use portolan_device::Slice;
use portolan_weights::{Planes, WeightTensor};

/// Reads a slice as plain elements.
///
/// # Panics
/// When the host cannot see the slice, or it is shorter than `len` elements: the launch was not checked.
pub(crate) fn read<T: bytemuck::AnyBitPattern>(slice: &Slice, len: usize) -> &[T] {
    // SAFETY: inputs, weights and step buffers are not written while a launch that reads them runs.
    let bytes = unsafe { slice.host_bytes() }.expect("memory that the host sees");
    bytemuck::cast_slice(&bytes[..len * size_of::<T>()])
}

/// The planes of a weight.
pub(crate) fn planes(weight: &WeightTensor) -> Planes<'_> {
    let mut planes: [&[u8]; 4] = [&[]; 4];
    for (to, from) in planes.iter_mut().zip(&weight.planes) {
        *to = read(from, from.len());
    }
    Planes { encoding: weight.encoding, k: weight.shape.last().copied().unwrap_or(1), planes }
}

/// Memory that several threads write, each its own rows.
pub(crate) struct Rows<'a, T> {
    ptr: *mut T,
    rows: usize,
    cols: usize,
    life: PhantomData<&'a mut T>,
}

// SAFETY: threads reach the memory only through `row_mut`, whose callers never share a row.
unsafe impl<T: Send> Sync for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Rows<'_, T> {}

impl<'a, T: bytemuck::AnyBitPattern> Rows<'a, T> {
    /// The first `rows * cols` elements of a slice that the running launch writes.
    ///
    /// # Panics
    /// As [`read`].
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
