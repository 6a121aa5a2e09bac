//! Filling memory that the host sees: where each weight lies, who reads what.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Instant,
};

use portolan_device::{Buffer, DeviceError, Slice};

use crate::{
    Checkpoint, LoadOptions, LoadPlan, Planes, PlannedTensor, Repack, Result,
    file::WeightFile,
    load::ALIGN,
    reading::{PIECE, ReadStats, RowReader},
};

/// Memory is taken in chunks of about this size, or of one tensor where that is larger.
const CHUNK: usize = 512 << 20;

/// A tensor larger than this is read in several tasks.
const TASK: usize = 16 << 20;

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

/// Where a tensor's planes are.
pub(crate) struct Placed {
    chunk: usize,
    /// First byte and bytes of each plane.
    planes: Vec<(usize, usize)>,
}

/// Gives each tensor that is not another's twin its place. Returns the chunks' sizes too.
pub(crate) fn place(plan: &LoadPlan) -> (Vec<Option<Placed>>, Vec<usize>) {
    let mut sizes: Vec<usize> = Vec::new();
    let placed = plan.tensors.iter().map(|tensor| {
        if tensor.same_as.is_some() {
            return None;
        }
        if sizes.last().is_none_or(|&used| used > 0 && used + tensor.device_bytes as usize > CHUNK) {
            sizes.push(0);
        }
        let chunk = sizes.len() - 1;
        let mut at = sizes[chunk];
        let mut planes = Vec::new();
        for bytes in tensor.plane_bytes() {
            planes.push((at, bytes));
            at += bytes.next_multiple_of(ALIGN);
        }
        sizes[chunk] = at;
        Some(Placed { chunk, planes })
    });
    let placed = placed.collect();
    (placed, sizes)
}

pub(crate) fn slices(placed: &Placed, chunks: &[Buffer]) -> Result<Vec<Slice>> {
    let Some(chunk) = chunks.get(placed.chunk) else { return Ok(Vec::new()) };
    placed.planes.iter().map(|&(offset, len)| Ok(chunk.slice(offset, len)?)).collect()
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

/// Cuts the chunks into the planes of the tensors, and large tensors into blocks of rows.
pub(crate) fn tasks<'m>(
    plan: &LoadPlan,
    placed: &[Option<Placed>],
    chunks: &'m mut [Buffer],
) -> Result<Vec<Task<'m>>> {
    let mut memory: Vec<(usize, &'m mut [u8])> = Vec::new();
    for chunk in chunks {
        let device = chunk.device();
        let bytes = chunk.host_mut().ok_or(DeviceError::Unsupported {
            device,
            what: "memory that the host can fill; loading to it through staging is not there yet",
        })?;
        memory.push((0, bytes));
    }
    let mut tasks = Vec::new();
    for (index, (tensor, placed)) in plan.tensors.iter().zip(placed).enumerate() {
        let Some(placed) = placed else { continue };
        let Some((at, rest)) = memory.get_mut(placed.chunk) else { continue };
        let mut planes = Vec::new();
        for &(offset, len) in &placed.planes {
            let (_, from) = std::mem::take(rest).split_at_mut(offset - *at);
            let (plane, after) = from.split_at_mut(len);
            (*at, *rest) = (offset + len, after);
            planes.push(plane);
        }
        let (rows, k) = (tensor.rows.rows(), tensor.rows.k());
        let row = tensor.resolved.encoding.row_bytes_total(k);
        let Some((multiple, block)) = tensor.blocks().filter(|_| rows * row > TASK) else {
            tasks.push(Task { tensor: index, first: 0, rows, out: planes });
            continue;
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
    // What cannot be cut goes first, so that no thread is left alone with it at the end.
    tasks.sort_by_key(|task| task.bytes() <= 2 * TASK as u64);
    Ok(tasks)
}

/// Runs the tasks on some threads; this one reports.
pub(crate) fn run(
    checkpoint: &Checkpoint,
    plan: &LoadPlan,
    files: &[WeightFile],
    tasks: Vec<Task<'_>>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReadStats> {
    let total = tasks.iter().map(Task::bytes).sum();
    let threads = options.readers.clamp(1, tasks.len().max(1));
    let queue = Mutex::new(tasks.into_iter());
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel::<u64>();
    let reader = |sender: mpsc::Sender<u64>| -> Result<ReadStats> {
        let mut reader = RowReader::new(checkpoint, files);
        while !stop.load(Ordering::Relaxed) {
            // Poisoned only if another reader panicked, which the scope passes on.
            let Some(mut task) = queue.lock().ok().and_then(|mut queue| queue.next()) else { break };
            let bytes = task.bytes();
            if let Err(error) = perform(&mut reader, plan, &mut task) {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
            // The receiver outlives every sender.
            let _ = sender.send(bytes);
        }
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
        let mut done = 0;
        for bytes in receiver {
            done += bytes;
            progress(done, total);
        }
        let mut all = ReadStats::default();
        for handle in handles {
            let one = match handle.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            all.reads += one.reads;
            all.read_bytes += one.read_bytes;
            all.read_time += one.read_time;
            all.convert_time += one.convert_time;
        }
        Ok(all)
    })
}

fn perform(reader: &mut RowReader<'_>, plan: &LoadPlan, task: &mut Task<'_>) -> Result<()> {
    let Some(tensor) = plan.tensors.get(task.tensor) else { return Ok(()) };
    let Some(repack) = &tensor.request.repack else {
        return reader.fill(&tensor.rows, task.first, task.rows, &mut task.out);
    };
    let (encoding, k) = (tensor.resolved.encoding, tensor.rows.k());
    let row = encoding.row_bytes_total(k);
    let most = repack_rows(repack.as_ref(), row);
    let mut scratch = vec![0; row * most.min(task.rows)];
    for done in (0..task.rows).step_by(most) {
        let rows = most.min(task.rows - done);
        let mut planes: Vec<&mut [u8]> = Vec::new();
        let mut rest = &mut scratch[..row * rows];
        for &plane in encoding.planes() {
            let (head, tail) = rest.split_at_mut(encoding.row_bytes(plane, k) * rows);
            planes.push(head);
            rest = tail;
        }
        reader.fill(&tensor.rows, task.first + done, rows, &mut planes)?;
        let start = Instant::now();
        let mut src = Planes { encoding, k, planes: [&[]; 4] };
        for (slot, plane) in src.planes.iter_mut().zip(planes) {
            *slot = plane;
        }
        repack.run(&src, done, rows, &mut task.out);
        reader.stats.convert_time += start.elapsed();
    }
    Ok(())
}

/// Rows that are repacked at a time.
pub(crate) fn repack_rows(repack: &dyn Repack, row_bytes: usize) -> usize {
    let multiple = repack.row_multiple().max(1);
    (PIECE / row_bytes.max(1)).max(1).next_multiple_of(multiple)
}
