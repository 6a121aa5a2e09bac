//! Rows of a resolved weight, from the files into memory.
//!
//! Three ways, by what a run of rows is:
//! * planes in the file, rows one after another: read into place;
//! * blocks, rows one after another: read into scratch, taken apart into place;
//! * rows in another order, or to be decoded: a range of the source goes to scratch by one of the ways above,
//!   then its rows are moved or decoded into place.

use std::time::{Duration, Instant};

use crate::{
    Checkpoint, Encoding, Result, Source, TensorInfo, WeightError,
    convert::{decode_run, move_rows},
    file::{WeightFile, pread_exact},
    gguf::{BlockFormat, split_blocks},
    resolve::{RowMap, Run, slice},
};

/// Scratch that one step of reading works on; one row, where a row is larger.
pub(crate) const PIECE: usize = 4 << 20;

/// What one reader has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadStats {
    pub(crate) reads: usize,
    pub(crate) read_bytes: u64,
    pub(crate) read_time: Duration,
    pub(crate) convert_time: Duration,
}

impl ReadStats {
    /// Adds what another reader did.
    pub(crate) fn add(&mut self, other: &ReadStats) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.read_time += other.read_time;
        self.convert_time += other.convert_time;
    }
}

/// A reader with its scratch, kept from one piece to the next.
pub(crate) struct RowReader<'a> {
    checkpoint: &'a Checkpoint,
    files: &'a [WeightFile],
    raw: Vec<u8>,
    gathered: Vec<u8>,
    /// Of whoever has it read.
    pub(crate) scratch: Vec<u8>,
    pub(crate) stats: ReadStats,
}

/// Consecutive runs of one source that are read as one range of its rows.
struct Group {
    runs: Vec<Run>,
    low: usize,
    high: usize,
}

impl<'a> RowReader<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, files: &'a [WeightFile]) -> Self {
        let (raw, gathered, scratch) = (Vec::new(), Vec::new(), Vec::new());
        RowReader { checkpoint, files, raw, gathered, scratch, stats: ReadStats::default() }
    }

    /// Fills rows `first..first + n` of the result; each of `out` is one plane's part of exactly those rows.
    pub(crate) fn fill(&mut self, map: &RowMap, first: usize, n: usize, out: &mut [&mut [u8]]) -> Result<()> {
        let k = map.k();
        if k == 0 {
            // A header may speak of any number of rows of nothing.
            return Ok(());
        }
        let mut rest: Vec<&mut [u8]> = out.iter_mut().map(|plane| &mut **plane).collect();
        let runs = slice(&map.runs, first, n);
        let mut at = 0;
        while let Some(run) = runs.get(at).copied() {
            let name = map.sources.get(run.source).map_or("", String::as_str);
            let tensor = self.checkpoint.get(name).ok_or_else(|| self.stale(name))?;
            let ahead = if in_order(&run) { vec![run] } else { group(&runs[at..]) };
            let rows: usize = ahead.iter().map(|r| r.len).sum();
            let mut part = take_rows(&mut rest, map.encoding, k, rows);
            if in_order(&run) {
                self.read_rows(tensor, run.k, run.first, run.len, &mut part)?;
            } else {
                self.gather(tensor, &ahead, map.encoding, &mut part)?;
            }
            at += ahead.len();
        }
        Ok(())
    }

    /// Rows `first..first + n` of a tensor as it is stored, seen as rows of `k`.
    fn read_rows(
        &mut self,
        tensor: &TensorInfo,
        k: usize,
        first: usize,
        n: usize,
        out: &mut [&mut [u8]],
    ) -> Result<()> {
        match &tensor.source {
            Source::Planes(spans) => {
                for ((span, &plane), out) in spans.iter().zip(tensor.encoding.planes()).zip(out) {
                    let start = (first * tensor.encoding.row_bytes(plane, k)) as u64;
                    self.pread(span.file, out, span.offset + start)?;
                }
                Ok(())
            }
            Source::Blocks { span, format } => {
                let row = format.row_bytes(k);
                let most = (PIECE / row.max(1)).max(1);
                let mut rest: Vec<&mut [u8]> = out.iter_mut().map(|plane| &mut **plane).collect();
                let mut raw = std::mem::take(&mut self.raw);
                for done in (0..n).step_by(most) {
                    let rows = most.min(n - done);
                    raw.resize(raw.len().max(rows * row), 0);
                    let raw = &mut raw[..rows * row];
                    self.pread(span.file, raw, span.offset + ((first + done) * row) as u64)?;
                    let mut part = take_rows(&mut rest, tensor.encoding, k, rows);
                    let start = Instant::now();
                    split_blocks(*format, raw, &mut part).map_err(|bad| WeightError::BlockScale {
                        path: self.files.get(span.file).map_or_else(Default::default, |f| f.path.clone()),
                        tensor: tensor.name.clone(),
                        format: format.name(),
                        block: ((first + done) * (k / format.elements()) + bad.block) as u64,
                        scale: bad.scale,
                    })?;
                    self.stats.convert_time += start.elapsed();
                }
                self.raw = raw;
                Ok(())
            }
        }
    }

    /// Runs of one tensor in any order, decoded where they ask for it.
    fn gather(
        &mut self,
        tensor: &TensorInfo,
        runs: &[Run],
        encoding: Encoding,
        out: &mut [&mut [u8]],
    ) -> Result<()> {
        let Some(&Run { k, convert, .. }) = runs.first() else { return Ok(()) };
        let mut rest: Vec<&mut [u8]> = out.iter_mut().map(|plane| &mut **plane).collect();
        for Group { runs, low, high } in pieces(runs, tensor, k) {
            let mut scratch = std::mem::take(&mut self.gathered);
            let bytes: usize = tensor.encoding.row_bytes_total(k) * (high - low);
            scratch.resize(scratch.len().max(bytes), 0);
            let mut left = &mut scratch[..bytes];
            let mut planes = Vec::new();
            for &plane in tensor.encoding.planes() {
                let (this, more) = left.split_at_mut(tensor.encoding.row_bytes(plane, k) * (high - low));
                planes.push(this);
                left = more;
            }
            self.read_rows(tensor, k, low, high - low, &mut planes)?;
            let start = Instant::now();
            let planes: Vec<&[u8]> = planes.iter().map(|p| &**p).collect();
            for run in runs {
                let mut part = take_rows(&mut rest, encoding, k, run.len);
                let run = Run { first: run.first - low, ..run };
                match convert {
                    None => move_rows(tensor.encoding, &planes, &run, &mut part),
                    Some(dtype) => decode_run(tensor.encoding, &planes, &run, dtype, &mut part),
                }
            }
            self.stats.convert_time += start.elapsed();
            self.gathered = scratch;
        }
        Ok(())
    }

    /// The format of the blocks that a weight's rows are in the files, if all are of one and none is decoded.
    pub(crate) fn block_format(&self, map: &RowMap) -> Option<BlockFormat> {
        let of = |run: &Run| match self.checkpoint.get(map.sources.get(run.source)?)?.source {
            Source::Blocks { format, .. } if run.convert.is_none() && run.k > 0 => Some(format),
            _ => None,
        };
        let first = of(map.runs.first()?)?;
        map.runs.iter().all(|run| of(run) == Some(first)).then_some(first)
    }

    /// Rows `first..first + n` of a weight that has a [`RowReader::block_format`], as they stand in the file: read into
    /// `raw`, and where each begins there. None where more than half of what lies between them is not wanted.
    pub(crate) fn raw_rows(
        &mut self,
        map: &RowMap,
        first: usize,
        n: usize,
        raw: &mut Vec<u8>,
    ) -> Result<Option<Vec<usize>>> {
        let runs = slice(&map.runs, first, n);
        let (mut places, mut used, mut ranges) = (Vec::with_capacity(n), 0, Vec::new());
        for runs in runs.chunk_by(|a, b| a.source == b.source) {
            let [head, ..] = runs else { continue };
            let name = map.sources.get(head.source).map_or("", String::as_str);
            let tensor = self.checkpoint.get(name).ok_or_else(|| self.stale(name))?;
            let Source::Blocks { span, format } = &tensor.source else { return Ok(None) };
            let row = format.row_bytes(head.k);
            let low = runs.iter().map(|run| run.first).min().unwrap_or(0);
            let ends = runs.iter().map(|run| run.first + run.len.saturating_sub(1) * run.step + 1);
            let rows = ends.max().unwrap_or(low) - low;
            if rows > 2 * runs.iter().map(|run| run.len).sum::<usize>() {
                return Ok(None);
            }
            for run in runs {
                places.extend((0..run.len).map(|i| used + (run.first - low + i * run.step) * row));
            }
            ranges.push((span.file, span.offset + (low * row) as u64, used..used + rows * row));
            used += rows * row;
        }
        if raw.len() < used {
            raw.reserve_exact(used - raw.len());
            raw.resize(used, 0);
        }
        for (file, offset, range) in ranges {
            self.pread(file, &mut raw[range], offset)?;
        }
        Ok(Some(places))
    }

    /// The plan was made for another checkpoint.
    fn stale(&self, what: &str) -> WeightError {
        WeightError::Expr {
            path: self.checkpoint.path.clone(),
            weight: what.to_owned(),
            reason: "the load plan was made for another checkpoint".to_owned(),
        }
    }

    fn pread(&mut self, file: usize, buf: &mut [u8], offset: u64) -> Result<()> {
        let file = self.files.get(file).ok_or_else(|| self.stale("of a file"))?;
        let start = Instant::now();
        self.stats.reads += pread_exact(&file.file, &file.path, buf, offset)?;
        self.stats.read_time += start.elapsed();
        self.stats.read_bytes += buf.len() as u64;
        Ok(())
    }
}

/// Whether the rows of a run are wanted as they are stored and one after another.
fn in_order(run: &Run) -> bool {
    run.convert.is_none() && (run.step == 1 || run.len == 1)
}

/// The leading runs that [`RowReader::gather`] can take together.
fn group(runs: &[Run]) -> Vec<Run> {
    let alike = |run: &&Run| {
        !in_order(run)
            && runs.first().is_some_and(|f| (f.source, f.k, f.convert) == (run.source, run.k, run.convert))
    };
    runs.iter().take_while(alike).copied().collect()
}

/// Cuts runs into groups whose ranges of source rows fit [`PIECE`]. Runs share a range where they interleave,
/// as the two halves of a head do, so that each row is read once.
fn pieces(runs: &[Run], tensor: &TensorInfo, k: usize) -> Vec<Group> {
    let row = tensor.encoding.row_bytes_total(k).max(1);
    let most = (PIECE / row).max(1);
    let mut groups: Vec<Group> = Vec::new();
    for run in runs {
        let longest = (most.div_ceil(run.step)).max(1);
        for done in (0..run.len).step_by(longest) {
            let len = longest.min(run.len - done);
            let part = Run { first: run.first + done * run.step, len, ..*run };
            let (low, high) = (part.first, part.first + (len - 1) * part.step + 1);
            if let Some(last) = groups.last_mut() {
                let (low, high) = (last.low.min(low), last.high.max(high));
                let wanted: usize = last.runs.iter().map(|r| r.len).sum::<usize>() + len;
                // A wide range of which little is wanted is better read in parts.
                if high - low <= most && high - low <= 2 * wanted {
                    last.runs.push(part);
                    (last.low, last.high) = (low, high);
                    continue;
                }
            }
            groups.push(Group { runs: vec![part], low, high });
        }
    }
    groups
}

/// Cuts the next `rows` rows off each plane.
fn take_rows<'b>(rest: &mut [&'b mut [u8]], encoding: Encoding, k: usize, rows: usize) -> Vec<&'b mut [u8]> {
    rest.iter_mut()
        .zip(encoding.planes())
        .map(|(plane, &kind)| {
            let (head, tail) = std::mem::take(plane).split_at_mut(encoding.row_bytes(kind, k) * rows);
            *plane = tail;
            head
        })
        .collect()
}
