//! Carrying a plan out: a block of rows at a time is read, made into what it is to be, and written.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::ControlFlow,
    path::Path,
};

use portolan_device::DType;
use portolan_weights::{
    BadValue, CheckpointReader, Encoding, Expr, SafetensorsWriter, WeightRows, quantize_rows,
};

use crate::{Error, Result};

use super::{
    choose::How,
    folder::{Staging, write_error},
    items::{Item, tensors},
    plan::{ConvertPlan, metadata},
    texts::Text,
};

/// Bytes of rows that are in memory at a time, as they are read; one row, where a row is larger.
const BLOCK: usize = 16 << 20;

/// What the reader keeps for itself: two pieces of 4 MiB.
const READER: u64 = 8 << 20;

/// Told the bytes done and the bytes in all; a break ends the conversion, and nothing of it is kept.
pub(super) type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A file that is being written.
pub(super) trait Out: Write {
    /// Puts it on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

impl Out for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Where files are made. A test has one that fails after some bytes.
pub(super) type MakeFile<'a> = &'a dyn Fn(&Path) -> io::Result<Box<dyn Out>>;

pub(super) fn make_file(path: &Path) -> io::Result<Box<dyn Out>> {
    Ok(Box::new(File::create_new(path)?))
}

/// The name of a file of tensors, as mlx-lm gives it.
pub(super) fn shard_name(number: usize, of: usize) -> String {
    if of == 1 {
        return "model.safetensors".to_owned();
    }
    format!("model-{:05}-of-{of:05}.safetensors", number + 1)
}

impl ConvertPlan {
    /// Does it. `progress` is told the bytes written and the bytes in all, on this thread; when it breaks, the conversion
    /// ends with [`Error::Interrupted`].
    ///
    /// # Errors
    /// What can go wrong with reading and writing. The destination is not there then, and nothing is left beside it.
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<()> {
        self.run_with(&make_file, progress)
    }

    pub(super) fn run_with(&self, make: MakeFile<'_>, progress: Progress<'_>) -> Result<()> {
        self.check_room()?;
        let staging = Staging::new(&self.parent, &self.destination)?;
        let mut job = Job { plan: self, folder: staging.path(), make, progress, done: 0 };
        job.weights()?;
        for (name, text) in &self.texts {
            job.text(name, text)?;
        }
        staging.publish()
    }
}

struct Job<'a> {
    plan: &'a ConvertPlan,
    folder: &'a Path,
    make: MakeFile<'a>,
    progress: Progress<'a>,
    done: u64,
}

impl Job<'_> {
    /// The error of a file of the result, under the name that it was to have.
    fn failed(&self, name: &str, written: u64, error: &io::Error) -> Error {
        write_error(&self.plan.destination.join(name), self.folder, written, error)
    }

    fn report(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        match (self.progress)(self.done, self.plan.disk_bytes.max(self.done)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted { what: "the conversion" }),
        }
    }

    fn weights(&mut self) -> Result<()> {
        let reader = CheckpointReader::open(&self.plan.checkpoint)?;
        for (number, shard) in self.plan.shards.iter().enumerate() {
            let name = shard_name(number, self.plan.shards.len());
            let items = &self.plan.items[shard.clone()];
            let file = (self.make)(&self.folder.join(&name)).map_err(|e| self.failed(&name, 0, &e))?;
            let writer = SafetensorsWriter::new(file, &tensors(items), &metadata());
            let mut writer = writer.map_err(|e| self.failed(&name, 0, &e))?;
            self.report(writer.written())?;
            for item in items {
                self.item(&reader, item, &name, &mut writer)?;
            }
            let written = writer.written();
            writer.finish().and_then(|mut file| file.sync()).map_err(|e| self.failed(&name, written, &e))?;
        }
        Ok(())
    }

    /// One weight: its codes as they come, then its scales and biases, which are kept until then.
    fn item(
        &mut self,
        reader: &CheckpointReader<'_>,
        item: &Item,
        file: &str,
        writer: &mut SafetensorsWriter<Box<dyn Out>>,
    ) -> Result<()> {
        let mut rows = reader.rows(&read_as(item), &item.weight)?;
        let most = block_rows(&rows);
        let mut kept: Vec<Vec<u8>> = vec![Vec::new(); item.choice.to.planes().len().saturating_sub(1)];
        let mut first = 0;
        while first < rows.len() {
            let n = most.min(rows.len() - first);
            let planes = block(&mut rows, item, first, n, &self.plan.checkpoint.path)?;
            let mut planes = planes.into_iter();
            if let Some(codes) = planes.next() {
                let before = writer.written();
                writer.write(&codes).map_err(|e| self.failed(file, before, &e))?;
                self.report(codes.len() as u64)?;
            }
            kept.iter_mut().zip(planes).for_each(|(kept, plane)| kept.extend(plane));
            first += n;
        }
        for plane in kept {
            let before = writer.written();
            writer.write(&plane).map_err(|e| self.failed(file, before, &e))?;
            self.report(plane.len() as u64)?;
        }
        Ok(())
    }

    fn text(&mut self, name: &str, text: &Text) -> Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| self.failed(name, 0, &e))?;
        }
        let mut out = (self.make)(&path).map_err(|e| self.failed(name, 0, &e))?;
        let mut written = 0;
        let mut append = |job: &mut Self, bytes: &[u8]| {
            out.write_all(bytes).map_err(|e| job.failed(name, written, &e))?;
            written += bytes.len() as u64;
            job.report(bytes.len() as u64)
        };
        match text {
            Text::Made(bytes) => append(self, bytes)?,
            Text::Copy { from, .. } => {
                let unread = |e: io::Error| Error::Read { path: from.clone(), reason: e.to_string() };
                let mut source = File::open(from).map_err(unread)?;
                let mut buffer = vec![0; 1 << 20];
                loop {
                    match source.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(n) => append(self, &buffer[..n])?,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(unread(e)),
                    }
                }
            }
        }
        out.flush().and_then(|()| out.sync()).map_err(|e| self.failed(name, text.bytes(), &e))
    }
}

/// The weight as it is to be read: as stored, or decoded.
fn read_as(item: &Item) -> Expr {
    let dtype = match (item.choice.how, item.choice.to) {
        (How::Lossless | How::Kept, _) => return item.expr.clone(),
        (How::Rounded | How::Decoded, Encoding::Dense(dtype)) => dtype,
        _ => DType::F32,
    };
    Expr::Dequantize { of: Box::new(item.expr.clone()), dtype }
}

fn block_rows(rows: &WeightRows<'_>) -> usize {
    let row: usize = rows.plane_bytes(1).iter().sum();
    (BLOCK / row.max(1)).max(1)
}

/// Most memory that a weight takes while it is converted.
pub(super) fn scratch_bytes(item: &Item) -> u64 {
    // A block as it is read and as it is written, and the scales of all its rows.
    let kept: u64 = item.tensors.iter().skip(1).map(|t| t.bytes()).sum();
    let row = item.tensors.first().map_or(0, |t| t.shape.last().copied().unwrap_or(1) as u64 * 32);
    2 * (BLOCK as u64).min(16 * item.bytes()).max(row) + kept + READER
}

/// Rows `first..first + n` as the planes of the result.
fn block(
    rows: &mut WeightRows<'_>,
    item: &Item,
    first: usize,
    n: usize,
    checkpoint: &Path,
) -> Result<Vec<Vec<u8>>> {
    let mut read: Vec<Vec<u8>> = rows.plane_bytes(n).into_iter().map(|bytes| vec![0; bytes]).collect();
    let mut planes: Vec<&mut [u8]> = read.iter_mut().map(Vec::as_mut_slice).collect();
    rows.read(first, n, &mut planes)?;
    if !matches!(item.choice.how, How::Quantized | How::Requantized) {
        return Ok(read);
    }
    let bytes = read.pop().unwrap_or_default();
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    drop(bytes);
    quantize(item.choice.to, rows.k(), &values).map_err(|bad| {
        let BadValue { row, column, value } = bad;
        let (row, reason) = (first + row, if value.is_finite() { "beyond the type of its scales" } else { "not finite" });
        Error::Unconvertible {
            path: checkpoint.to_owned(),
            tensor: item.source.clone(),
            reason: format!(
                "row {row}, column {column} holds {value}, which is {reason}. The checkpoint is damaged; or keep this \
                 module with --keep {}=16",
                item.weight
            ),
        }
    })
}

/// Quantizes rows on as many threads as there are cores.
fn quantize(to: Encoding, k: usize, values: &[f32]) -> Result<Vec<Vec<u8>>, BadValue> {
    let rows = values.len() / k.max(1);
    let row_bytes: Vec<usize> = to.planes().iter().map(|&plane| to.row_bytes(plane, k)).collect();
    let mut planes: Vec<Vec<u8>> = row_bytes.iter().map(|bytes| vec![0; bytes * rows]).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(16);
    let each = rows.div_ceil(threads).max(1);
    let mut rest: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
    std::thread::scope(|scope| {
        let mut parts = Vec::new();
        for (index, values) in values.chunks(each * k.max(1)).enumerate() {
            let n = values.len() / k.max(1);
            let mut out: Vec<&mut [u8]> = Vec::new();
            for (plane, bytes) in rest.iter_mut().zip(&row_bytes) {
                let (head, tail) = std::mem::take(plane).split_at_mut(bytes * n);
                *plane = tail;
                out.push(head);
            }
            parts.push((index * each, scope.spawn(move || quantize_rows(to, k, values, &mut out))));
        }
        for (first, part) in parts {
            match part.join() {
                Ok(Ok(())) => {}
                Ok(Err(bad)) => return Err(BadValue { row: first + bad.row, ..bad }),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })?;
    Ok(planes)
}
