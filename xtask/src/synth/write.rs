//! Writes files whose contents can be made in any order, with several threads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};

use super::fill::Fill;

/// Most bytes that a thread makes and writes at once. What the program holds is this for each thread.
const CHUNK: u64 = 4 << 20;

/// A part of a file.
#[derive(Debug)]
pub(super) struct Part {
    /// Its first byte.
    pub(super) offset: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// Its random numbers.
    pub(super) stream: u64,
    /// How they become bytes.
    pub(super) fill: Arc<Fill>,
}

/// A file.
#[derive(Debug)]
pub(super) struct File {
    /// Its name in the folder.
    pub(super) name: String,
    /// Its size.
    pub(super) bytes: u64,
    /// Its parts; what is between them is zero.
    pub(super) parts: Vec<Part>,
}

/// Work for one thread: `bytes` of a part from byte `start` of the part on.
struct Chunk<'a> {
    file: &'a fs::File,
    path: &'a Path,
    part: &'a Part,
    start: u64,
    bytes: u64,
}

/// Writes the files into `folder`. The bytes do not depend on the number of threads.
///
/// # Errors
/// If a file cannot be made or written; the rest is not written then.
pub(super) fn write(folder: &Path, files: &[File], threads: usize) -> Result<()> {
    let mut open = Vec::new();
    for file in files {
        let path = folder.join(&file.name);
        let handle = fs::File::create_new(&path).and_then(|f| f.set_len(file.bytes).map(|()| f));
        open.push((handle.with_context(|| format!("cannot make {}", path.display()))?, path));
    }
    let mut queues: Vec<_> = files
        .iter()
        .zip(&open)
        .map(|(file, (handle, path))| file.parts.iter().flat_map(move |part| chunks(handle, path, part)))
        .collect();
    // A file takes one write at a time, so neighbours in the queue belong to different files.
    let mut all = Vec::new();
    while !queues.is_empty() {
        queues.retain_mut(|queue| match queue.next() {
            Some(chunk) => {
                all.push(chunk);
                true
            }
            None => false,
        });
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        let mut buffer = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let Some(chunk) = all.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            if let Err(error) = chunk.write(&mut buffer) {
                failed.store(true, Ordering::Relaxed);
                return Err(error).with_context(|| format!("cannot write {}", chunk.path.display()));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(_) => bail!("a writing thread panicked"),
        })
    })
}

fn chunks<'a>(file: &'a fs::File, path: &'a Path, part: &'a Part) -> impl Iterator<Item = Chunk<'a>> {
    let unit = part.fill.unit() as u64;
    let step = CHUNK / unit * unit;
    (0..part.bytes.div_ceil(step)).map(move |i| {
        let start = i * step;
        Chunk { file, path, part, start, bytes: step.min(part.bytes - start) }
    })
}

impl Chunk<'_> {
    fn write(&self, buffer: &mut Vec<u8>) -> std::io::Result<()> {
        let bytes = self.bytes as usize;
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let out = &mut buffer[..bytes];
        self.part.fill.write(self.part.stream, self.start / self.part.fill.unit() as u64, out);
        self.file.write_all_at(out, self.part.offset + self.start)
    }
}
