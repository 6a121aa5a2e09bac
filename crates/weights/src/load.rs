//! From a resolved plan to weights in device memory.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    str::FromStr,
    sync::Arc,
};

use portolan_device::{Device, Slice, StagingOptions, Stream, WeightArena};

use crate::{
    Checkpoint, Encoding, Expr, Layout, LoadTransferStats, Loader, Planes, Resolved, Result, WeightError,
    fill::repack_rows,
    gguf::BlockFormat,
    reading::PIECE,
    resolve::{RowMap, missing_error, missing_names, resolve},
};

/// Rearranges the planes of a weight into the layout that its kernels want. Given by the kernels crate; run by
/// [`load`] on the host, between reading and upload, a block of rows at a time.
pub trait Repack: Send + Sync + Debug {
    /// The layout it makes.
    fn layout(&self) -> Layout;
    /// Bytes of each plane of the result for a weight of `rows` rows of `k` elements.
    fn plane_bytes(&self, encoding: Encoding, rows: usize, k: usize) -> Vec<usize>;
    /// Rows are handed in as multiples of this (but for the last).
    fn row_multiple(&self) -> usize;
    /// Whether each [`Repack::row_multiple`] rows fill the next so many bytes of every plane, whatever the
    /// other rows are. Then several threads share one weight.
    fn by_blocks(&self) -> bool {
        false
    }
    /// Fills the result's planes for rows `first..first + n`. `src` holds those `n` rows and no others: its row
    /// 0 is row `first` of the weight. `out` are the whole planes of the result, or, where
    /// [`Repack::by_blocks`] holds, a part of them whose first row counts as row 0.
    fn run(&self, src: &Planes<'_>, first: usize, n: usize, out: &mut [&mut [u8]]);
    /// Whether [`Repack::run_blocks`] can do something with rows of this format.
    fn takes_blocks(&self, format: BlockFormat) -> bool {
        let _ = format;
        false
    }
    /// What [`Repack::run`] does, from rows as they stand in a GGUF file: the same bytes, with no planes in between. False
    /// where it cannot, for a scale that is out of bounds or a number of rows; then nothing of `out` counts as written,
    /// and the rows are taken apart and given to [`Repack::run`].
    fn run_blocks(&self, src: &BlockRows<'_>, first: usize, out: &mut [&mut [u8]]) -> bool {
        let _ = (src, first, out);
        false
    }
}

/// Rows of a weight as they stand in a GGUF file.
#[derive(Clone, Copy, Debug)]
pub struct BlockRows<'a> {
    /// How their blocks are made.
    pub format: BlockFormat,
    /// Elements a row.
    pub k: usize,
    /// Each row's blocks.
    pub rows: &'a [&'a [u8]],
}

/// A weight that the graph wants.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The graph's name for it, for messages.
    pub name: String,
    /// How it is made.
    pub expr: Expr,
    /// How its kernels want it arranged; none for [`Layout::Planes`].
    pub repack: Option<Arc<dyn Repack>>,
}

/// One resolved request.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// What was asked.
    pub request: LoadRequest,
    /// What it comes to.
    pub resolved: Resolved,
    /// Bytes in device memory, each plane rounded up to 256; 0 when it shares another's.
    pub device_bytes: u64,
    /// The earlier request, by its index, that asks for the same bytes: one copy serves both (tied embeddings).
    pub same_as: Option<usize>,
    pub(crate) rows: RowMap,
}

impl PlannedTensor {
    /// Bytes of each plane in device memory.
    pub fn plane_bytes(&self) -> Vec<usize> {
        let (encoding, rows, k) = (self.resolved.encoding, self.rows.rows(), self.rows.k());
        match &self.request.repack {
            Some(repack) => repack.plane_bytes(encoding, rows, k),
            None => encoding.planes().iter().map(|&p| encoding.row_bytes(p, k) * rows).collect(),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.request.repack.as_ref().map_or(Layout::Planes, |r| r.layout())
    }

    /// Rows that belong together and the bytes they take in each plane, where each plane is a sequence of
    /// such blocks.
    pub(crate) fn blocks(&self) -> Option<(usize, Vec<usize>)> {
        let (encoding, rows, k) = (self.resolved.encoding, self.rows.rows(), self.rows.k());
        let Some(repack) = &self.request.repack else {
            return Some((1, encoding.planes().iter().map(|&p| encoding.row_bytes(p, k)).collect()));
        };
        let multiple = repack.row_multiple().max(1);
        let block = repack.plane_bytes(encoding, multiple, k);
        let whole: Vec<usize> = block.iter().map(|bytes| bytes * rows.div_ceil(multiple)).collect();
        (repack.by_blocks() && whole == self.plane_bytes()).then_some((multiple, block))
    }
}

/// What a load will read and take. Nothing has been read yet.
#[derive(Clone, Debug, Default)]
pub struct LoadPlan {
    /// The weights, in the order asked.
    pub tensors: Vec<PlannedTensor>,
    /// Bytes in device memory.
    pub device_bytes: u64,
    /// Most host memory that reading and rearranging needs at once, with the readers of
    /// [`LoadOptions::default`].
    pub scratch_bytes: u64,
    /// Tensors of the checkpoint that no request reads.
    pub unused: Vec<String>,
    /// Bytes of those in the file.
    pub unused_bytes: u64,
}

/// When weights are loaded: `--load eager` or `--load lazy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// All before the first token.
    #[default]
    Eager,
    /// Each at its first use.
    Lazy,
}

impl LoadMode {
    /// As in `--load`.
    pub const fn name(self) -> &'static str {
        match self {
            LoadMode::Eager => "eager",
            LoadMode::Lazy => "lazy",
        }
    }
}

impl FromStr for LoadMode {
    type Err = WeightError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "eager" => Ok(LoadMode::Eager),
            "lazy" => Ok(LoadMode::Lazy),
            _ => Err(WeightError::UnknownLoadMode { given: text.to_owned() }),
        }
    }
}

/// How a load goes about it.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Reader threads.
    pub readers: usize,
    /// The staging ring, where the host does not see the device's memory; none for the usual one, with
    /// `PORTOLAN_PINNED_LOAD` looked up.
    pub staging: Option<StagingOptions>,
    /// Device memory is taken in chunks of about this size.
    pub chunk_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        let readers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
        LoadOptions { readers, staging: None, chunk_bytes: WeightArena::CHUNK_BYTES }
    }
}

/// A weight in device memory.
#[derive(Clone, Debug)]
pub struct WeightTensor {
    /// The graph's name for it.
    pub name: String,
    /// `[rows, k]`, `[k]` or `[e, rows, k]`.
    pub shape: Vec<usize>,
    /// How its numbers are stored.
    pub encoding: Encoding,
    /// How its planes are arranged.
    pub layout: Layout,
    /// The planes, in the order of [`Encoding::planes`] (or of its [`Repack`]).
    pub planes: Vec<Slice>,
}

/// Alignment of every plane: whole cache lines, and what wide loads of a GPU want.
pub(crate) const ALIGN: usize = 256;

/// Resolves the requests and adds up what they take. Reads no tensor; an error lists every tensor that is
/// missing.
pub fn plan_load(checkpoint: &Checkpoint, requests: Vec<LoadRequest>) -> Result<LoadPlan> {
    let missing: Vec<String> = requests.iter().flat_map(|r| missing_names(&r.expr, checkpoint)).collect();
    if !missing.is_empty() {
        return Err(missing_error(checkpoint, missing));
    }
    let mut plan = LoadPlan::default();
    let mut used = BTreeSet::new();
    let mut seen = HashMap::new();
    let mut scratch = 0;
    for request in requests {
        let rows = resolve(&request.expr, checkpoint, &request.name)?;
        let mut tensor =
            PlannedTensor { resolved: rows.resolved(), device_bytes: 0, same_as: None, rows, request };
        let index = plan.tensors.len();
        let first = *seen.entry((tensor.request.expr.clone(), tensor.layout())).or_insert(index);
        tensor.same_as = (first != index).then_some(first);
        if tensor.same_as.is_none() {
            let planes = tensor.plane_bytes();
            tensor.device_bytes = planes.iter().map(|&n| n.next_multiple_of(ALIGN) as u64).sum();
        }
        plan.device_bytes += tensor.device_bytes;
        scratch = scratch.max(scratch_of(&tensor));
        used.extend(tensor.resolved.sources.iter().cloned());
        plan.tensors.push(tensor);
    }
    plan.scratch_bytes = scratch * LoadOptions::default().readers as u64;
    for (name, tensor) in checkpoint.tensors.iter().filter(|(name, _)| !used.contains(*name)) {
        plan.unused.push(name.clone());
        plan.unused_bytes += tensor.file_bytes();
    }
    Ok(plan)
}

/// At most this much scratch for one reader: blocks, gathered rows, and rows to be repacked.
fn scratch_of(tensor: &PlannedTensor) -> u64 {
    let row = tensor.resolved.encoding.row_bytes_total(tensor.rows.k());
    let piece = PIECE.max(row) as u64;
    // Rows that are read as blocks may have as many others in between; 24 bytes say where each lies.
    let repack = tensor.request.repack.as_ref().map_or(0, |r| repack_rows(r.as_ref(), row) * (2 * row + 24));
    2 * piece + repack as u64
}

/// Reads all planned weights into memory of the device, with [`LoadOptions::readers`] threads. `progress` is called
/// on this thread and is told the bytes done and the bytes in all. [`Loader`] does the same in steps.
///
/// `stream` is the one that will run the kernels; copies to a device go through it, so that no stream ever waits for
/// another.
///
/// # Errors
/// As [`Loader::new`] and [`Loader::load_all`]. No memory is kept.
pub fn load(
    checkpoint: &Checkpoint,
    plan: &LoadPlan,
    device: &Device,
    stream: &Stream,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Vec<WeightTensor>, LoadTransferStats)> {
    let mut loader = Loader::new(checkpoint, plan, device, options)?;
    loader.load_all(stream, progress)?;
    Ok((loader.weights()?, loader.stats().clone()))
}
