//! A launch: an op with every buffer placed.

use std::sync::Arc;

use portolan_device::{DType, DeviceKind, Slice};
use portolan_weights::WeightTensor;

use crate::{CacheKind, Op, RowCodes, RowSet, ValueType};

/// Positions a page of a paged cache.
pub const PAGE_TOKENS: usize = 32;

/// What changes from step to step, in device memory, so that nothing of it is a kernel's argument. Unused
/// entries hold anything.
#[derive(Clone, Debug)]
pub struct StepBuffers {
    /// `i32 [T]`: token ids.
    pub ids: Slice,
    /// `i32 [T]`: positions within the sequences.
    pub positions: Slice,
    /// `i32 [T]`: which of the step's sequences a row belongs to. Rows of a sequence are contiguous, ascending.
    pub row_seq: Slice,
    /// `i32 [S, max_pages]`: for each of the step's sequences, the page of each [`PAGE_TOKENS`] positions.
    pub page_table: Slice,
    /// `i32 [S]`: the slot of each sequence in a [`CacheKind::State`] cache.
    pub state_slot: Slice,
    /// `i32 [R]`: rows that want logits. Its length is the most there can be: see [`StepBuffers::max_selected`].
    pub select: Slice,
    /// Entries a sequence in `page_table`.
    pub max_pages: usize,
    /// Rows that the buffers hold.
    pub max_rows: usize,
    /// Sequences that they hold.
    pub max_seqs: usize,
}

impl StepBuffers {
    /// Selected rows that the buffers hold.
    pub fn max_selected(&self) -> usize {
        self.select.len() / size_of::<i32>()
    }

    /// The largest step that fits.
    pub fn max_shape(&self) -> StepShape {
        StepShape { rows: self.max_rows, selected: self.max_selected(), seqs: self.max_seqs, kv: 0 }
    }

    /// Whether a step fits: to be asked before its launches run.
    pub fn holds(&self, shape: StepShape) -> bool {
        let max = self.max_shape();
        shape.rows <= max.rows && shape.selected <= max.selected && shape.seqs <= max.seqs
    }
}

/// The size of a step. On a GPU the bucket of a captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// T: rows.
    pub rows: usize,
    /// R: rows that want logits.
    pub selected: usize,
    /// S: sequences.
    pub seqs: usize,
    /// The most positions that a row of the step sees, or more; 0 where it is not known.
    pub kv: usize,
}

impl StepShape {
    /// T or R.
    pub fn of(&self, rows: RowSet) -> usize {
        match rows {
            RowSet::Tokens => self.rows,
            RowSet::Selected => self.selected,
        }
    }
}

/// A value in memory: rows one after another.
#[derive(Clone, Debug)]
pub struct View {
    /// Where, with room for the most rows of a step.
    pub slice: Slice,
    /// Which rows.
    pub rows: RowSet,
    /// Columns.
    pub cols: usize,
    /// Their type.
    pub dtype: ValueType,
}

/// What [`ValueType::Activation`] is on a device, where nobody asked for another.
pub const fn activation_dtype(device: DeviceKind) -> DType {
    match device {
        DeviceKind::Cpu => DType::F32,
        DeviceKind::Cuda | DeviceKind::Rocm => DType::BF16,
    }
}

/// Bytes of a row of `cols` elements. `activation` is what [`ValueType::Activation`] is on the device.
///
/// For a [`ValueType::Q8Rows`] or [`ValueType::Q15Rows`] row: [`RowCodes`].
pub fn row_bytes(dtype: ValueType, cols: usize, activation: DType) -> usize {
    match dtype {
        ValueType::Activation => cols * activation.size(),
        ValueType::F32 | ValueType::I32 => cols * 4,
        ValueType::Q8Rows => RowCodes::Int8.row_bytes(cols),
        ValueType::Q15Rows => RowCodes::Int15.row_bytes(cols),
    }
}

/// A cache in memory.
#[derive(Clone, Debug)]
pub struct CacheView {
    /// What it keeps.
    pub kind: CacheKind,
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Keys: `[pages, kv_heads, PAGE_TOKENS, k_dim]`. For a state cache: `f32 [slots, elements]`.
    pub k: Slice,
    /// Values: `[pages, kv_heads, PAGE_TOKENS, v_dim]`.
    pub v: Slice,
    /// Pages, or slots.
    pub pages: usize,
}

/// An op with every buffer placed. Inputs and outputs never overlap.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The op.
    pub op: Op,
    /// Where in the model, for messages.
    pub scope: String,
    /// What [`ValueType::Activation`] is.
    pub activation: DType,
    /// Values that it reads.
    pub inputs: Vec<View>,
    /// Weights that it reads.
    pub weights: Vec<WeightTensor>,
    /// The cache that it reads or writes.
    pub cache: Option<CacheView>,
    /// Values that it makes.
    pub outputs: Vec<View>,
    /// What changes from step to step.
    pub step: Arc<StepBuffers>,
    /// Room for a GPU kernel's own use; none on the CPU.
    pub scratch: Option<Slice>,
}
