//! Filling memory that the host sees: who reads what, and rows put into the layout that was asked for.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Instant,
};

use crate::{
    BlockRows, Checkpoint, Planes, PlannedTensor, Repack, Result,
    file::WeightFile,
    gguf::BlockFormat,
    load::ALIGN,
    reading::{ReadStats, RowReader},
};

/// A tensor larger than this is read in several tasks.
const TASK: usize = 4 << 20;

/// Progress is told after so many bytes of a reader: each time the thread that tells it takes a core from one that reads.
const TOLD: u64 = 8 << 20;

/// Bytes of a file that are repacked at a time: between the read and the repack they stay in a core's own cache.
const REPACK: usize = 256 << 10;

/// One piece of work: rows of a tensor, and the memory they go to.
pub(crate) struct Task<'m> {
    tensor: usize,
    first: usize,
    rows: usize,
    /// The planes' parts of those rows; the whole planes where the tensor is repacked.
    out: Vec<&'m mut [u8]>,
}

impl Task<'_> {
    fn bytes(&self) -> u64 {
        self.out.iter().map(|plane| plane.len() as u64).sum()
    }
}

/// Whether a tensor's bytes go from the file to their place with nothing in between.
pub(crate) fn is_direct(checkpoint: &Checkpoint, tensor: &PlannedTensor) -> bool {
    let stored = |run: &crate::resolve::Run| run.convert.is_none() && run.step == 1;
    let plain =
        |name: &String| checkpoint.get(name).is_some_and(|t| matches!(t.source, crate::Source::Planes(_)));
    tensor.request.repack.is_none()
        && tensor.rows.runs.iter().all(stored)
        && tensor.rows.sources.iter().all(plain)
}

/// First byte of each plane within its tensor's range.
pub(crate) fn plane_offsets(planes: &[usize]) -> Vec<usize> {
    let next = |at: &mut usize, bytes: &usize| {
        let offset = *at;
        *at += bytes.next_multiple_of(ALIGN);
        Some(offset)
    };
    planes.iter().scan(0, next).collect()
}

/// Cuts the range of tensor `index` into its planes, and a large tensor into blocks of rows.
pub(crate) fn add_tasks<'m>(
    tasks: &mut Vec<Task<'m>>,
    index: usize,
    tensor: &PlannedTensor,
    range: &'m mut [u8],
) {
    let (mut rest, mut at) = (range, 0);
    let sizes = tensor.plane_bytes();
    let mut planes = Vec::new();
    for (offset, len) in plane_offsets(&sizes).into_iter().zip(sizes) {
        let Some((plane, after)) = std::mem::take(&mut rest)
            .split_at_mut_checked(offset - at)
            .and_then(|(_, from)| from.split_at_mut_checked(len))
        else {
            return;
        };
        (at, rest) = (offset + len, after);
        planes.push(plane);
    }
    let (rows, k) = (tensor.rows.rows(), tensor.rows.k());
    let row = tensor.resolved.encoding.row_bytes_total(k);
    let Some((multiple, block)) = tensor.blocks().filter(|_| rows * row > TASK) else {
        tasks.push(Task { tensor: index, first: 0, rows, out: planes });
        return;
    };
    let most = (TASK / row.max(1)).max(1).next_multiple_of(multiple);
    for first in (0..rows).step_by(most) {
        let rows = most.min(rows - first);
        let cut = planes.iter_mut().zip(&block).map(|(plane, bytes)| {
            let (head, tail) = std::mem::take(plane).split_at_mut(bytes * rows.div_ceil(multiple));
            *plane = tail;
            head
        });
        tasks.push(Task { tensor: index, first, rows, out: cut.collect() });
    }
}

/// Runs the tasks on some threads; this one reports, or does it all where there is to be one. `used_before`: the memory
/// may begin with what its last user left, as a GPU's does, and not with zeros.
pub(crate) fn run(
    checkpoint: &Checkpoint,
    tensors: &[PlannedTensor],
    files: &[WeightFile],
    mut tasks: Vec<Task<'_>>,
    (readers, used_before): (usize, bool),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReadStats> {
    // What cannot be cut goes first, so that no thread is left alone with it at the end.
    tasks.sort_by_key(|task| task.bytes() <= 2 * TASK as u64);
    let total = tasks.iter().map(Task::bytes).sum();
    let threads = readers.clamp(1, tasks.len().max(1));
    let one = |reader: &mut RowReader<'_>, task: &mut Task<'_>| match tensors.get(task.tensor) {
        Some(tensor) => {
            // A layout may leave gaps, which in fresh memory are zero.
            if used_before && tensor.request.repack.is_some() {
                task.out.iter_mut().for_each(|plane| plane.fill(0));
            }
            perform(reader, tensor, task.first, task.rows, &mut task.out)
        }
        None => Ok(()),
    };
    let mut done = 0;
    if threads == 1 {
        let mut reader = RowReader::new(checkpoint, files);
        for mut task in tasks {
            one(&mut reader, &mut task)?;
            if task.bytes() > 0 {
                done += task.bytes();
                progress(done, total);
            }
        }
        return Ok(reader.stats);
    }
    let queue = Mutex::new(tasks.into_iter());
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel::<u64>();
    let reader = |sender: mpsc::Sender<u64>| -> Result<ReadStats> {
        let (mut reader, mut untold) = (RowReader::new(checkpoint, files), 0);
        while !stop.load(Ordering::Relaxed) {
            // Poisoned only if another reader panicked, which the scope passes on.
            let Some(mut task) = queue.lock().ok().and_then(|mut queue| queue.next()) else { break };
            if let Err(error) = one(&mut reader, &mut task) {
                stop.store(true, Ordering::Relaxed);
                let _ = sender.send(untold);
                return Err(error);
            }
            untold += task.bytes();
            if untold >= TOLD {
                // The receiver outlives every sender.
                let _ = sender.send(std::mem::take(&mut untold));
            }
        }
        let _ = sender.send(untold);
        Ok(reader.stats)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(|| reader(sender))
            })
            .collect();
        drop(sender);
        for bytes in receiver.into_iter().filter(|&bytes| bytes > 0) {
            done += bytes;
            progress(done, total);
        }
        let mut all = ReadStats::default();
        for handle in handles {
            match handle.join() {
                Ok(result) => all.add(&result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

/// Fills the planes' parts of rows `first..first + rows` of a tensor, repacked where that was asked for.
pub(crate) fn perform(
    reader: &mut RowReader<'_>,
    tensor: &PlannedTensor,
    first: usize,
    rows: usize,
    out: &mut [&mut [u8]],
) -> Result<()> {
    let Some(repack) = &tensor.request.repack else {
        return reader.fill(&tensor.rows, first, rows, out);
    };
    let most = repack_rows(repack.as_ref(), tensor.resolved.encoding.row_bytes_total(tensor.rows.k()));
    let blocks = reader.block_format(&tensor.rows).filter(|&format| repack.takes_blocks(format));
    // Kept from one task to the next: fresh memory would have to be cleared first, and would not be in the cache.
    let mut scratch = std::mem::take(&mut reader.scratch);
    for done in (0..rows).step_by(most) {
        let n = most.min(rows - done);
        let mut packed = 0;
        if let Some(format) = blocks {
            // Rows that fill no block of the layout are left to the planes.
            let whole = n - n % repack.row_multiple().max(1);
            let at = (first + done, whole, done);
            if from_blocks(reader, tensor, repack.as_ref(), format, at, out, &mut scratch)? {
                packed = whole;
            }
        }
        if packed < n {
            let at = (first + done + packed, n - packed, done + packed);
            from_planes(reader, tensor, repack.as_ref(), at, out, &mut scratch)?;
        }
    }
    reader.scratch = scratch;
    Ok(())
}

/// Rows `first..first + n` of a tensor, which are `done..` of those that `out` is for.
fn from_planes(
    reader: &mut RowReader<'_>,
    tensor: &PlannedTensor,
    repack: &dyn Repack,
    (first, n, done): (usize, usize, usize),
    out: &mut [&mut [u8]],
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let (encoding, k) = (tensor.resolved.encoding, tensor.rows.k());
    let bytes = encoding.row_bytes_total(k) * n;
    scratch.resize(scratch.len().max(bytes), 0);
    let mut planes: Vec<&mut [u8]> = Vec::new();
    let mut rest = &mut scratch[..bytes];
    for &plane in encoding.planes() {
        let (head, tail) = rest.split_at_mut(encoding.row_bytes(plane, k) * n);
        planes.push(head);
        rest = tail;
    }
    reader.fill(&tensor.rows, first, n, &mut planes)?;
    let start = Instant::now();
    let mut src = Planes { encoding, k, planes: [&[]; 4] };
    for (slot, plane) in src.planes.iter_mut().zip(planes) {
        *slot = plane;
    }
    repack.run(&src, done, n, out);
    reader.stats.convert_time += start.elapsed();
    Ok(())
}

/// As [`from_planes`], from blocks as they are in the file; false where that cannot be.
fn from_blocks(
    reader: &mut RowReader<'_>,
    tensor: &PlannedTensor,
    repack: &dyn Repack,
    format: BlockFormat,
    (first, n, done): (usize, usize, usize),
    out: &mut [&mut [u8]],
    scratch: &mut Vec<u8>,
) -> Result<bool> {
    let k = tensor.rows.k();
    let Some(places) = reader.raw_rows(&tensor.rows, first, n, scratch)? else { return Ok(false) };
    let start = Instant::now();
    let row = format.row_bytes(k);
    let rows: Vec<&[u8]> = places.into_iter().map(|at| &scratch[at..at + row]).collect();
    let packed = repack.run_blocks(&BlockRows { format, k, rows: &rows }, done, out);
    reader.stats.convert_time += start.elapsed();
    Ok(packed)
}

/// Rows that are repacked at a time.
pub(crate) fn repack_rows(repack: &dyn Repack, row_bytes: usize) -> usize {
    let multiple = repack.row_multiple().max(1);
    (REPACK / row_bytes.max(1)).max(1).next_multiple_of(multiple)
}
