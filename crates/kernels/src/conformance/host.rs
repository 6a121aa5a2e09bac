//! What a case is made of, in host memory and bound to no device.

use half::{bf16, f16};
use portolan_device::DType;
use portolan_weights::{Encoding, Planes};

use crate::{
    CacheKind, Context, Cost, Op, OpSpec, PAGE_TOKENS, RowCodes, RowSet, StepShape, ValueInfo, ValueType,
    chart::WeightSpec,
    cost::{Use, row_of},
};

/// Floats as little-endian elements of a type, rounded to nearest, ties to even.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// The way back of [`encode`].
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

/// A value that a case reads.
#[derive(Clone, Debug)]
pub struct Value {
    /// What it is.
    pub info: ValueInfo,
    /// Its numbers: for rounded rows those that the rows were made from.
    pub numbers: Vec<f32>,
}

impl Value {
    /// Its bytes where activations are of type `activation`.
    pub fn bytes(&self, activation: DType) -> Vec<u8> {
        match self.info.dtype {
            ValueType::Activation => encode(activation, &self.numbers),
            ValueType::F32 => encode(DType::F32, &self.numbers),
            ValueType::I32 => self.numbers.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
            ValueType::Q8Rows => self.rounded(RowCodes::Int8),
            ValueType::Q15Rows => self.rounded(RowCodes::Int15),
        }
    }

    fn rounded(&self, how: RowCodes) -> Vec<u8> {
        let cols = self.info.cols.max(1);
        let mut bytes = vec![0; self.numbers.len() / cols * how.row_bytes(cols)];
        let rows = bytes.chunks_mut(how.row_bytes(cols));
        for (row, out) in self.numbers.chunks(cols).zip(rows) {
            crate::cpu::plain::quantize_row(row, how, out);
        }
        bytes
    }
}

/// A weight that a case reads.
#[derive(Clone, Debug)]
pub struct Weight {
    /// How it is stored.
    pub encoding: Encoding,
    /// `[n, k]` or `[n]`.
    pub shape: Vec<usize>,
    /// The planes, in the order of [`Encoding::planes`].
    pub planes: Vec<Vec<u8>>,
}

impl Weight {
    /// As [`portolan_weights::decode_row`] reads it.
    pub fn planes(&self) -> Planes<'_> {
        self.rows_of(0, self.rows())
    }

    /// `n` rows from `first` on, as a tensor of their own.
    pub fn rows_of(&self, first: usize, n: usize) -> Planes<'_> {
        let mut planes: [&[u8]; 4] = [&[]; 4];
        for ((to, from), plane) in planes.iter_mut().zip(&self.planes).zip(self.encoding.planes()) {
            let row = self.encoding.row_bytes(*plane, self.cols());
            *to = &from[first * row..(first + n) * row];
        }
        Planes { encoding: self.encoding, k: self.cols(), planes }
    }

    /// Elements a row.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Whether it is a table of rows, which a layout may rearrange; a norm's or a bias's numbers stay as they are.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }
}

/// A cache of pages with its content before the case.
#[derive(Clone, Debug)]
pub struct Cache {
    /// What it keeps; always pages.
    pub kind: CacheKind,
    /// Type of its elements.
    pub dtype: DType,
    /// Pages.
    pub pages: usize,
    /// `[pages, kv_heads, PAGE_TOKENS, k_dim]`.
    pub k: Vec<f32>,
    /// `[pages, kv_heads, PAGE_TOKENS, v_dim]`.
    pub v: Vec<f32>,
}

impl Cache {
    /// A cache full of NaN: what a kernel reads without right shows in its result.
    pub fn poisoned(kind: CacheKind, dtype: DType, pages: usize) -> Self {
        let (kv_heads, k_dim, v_dim) = match kind {
            CacheKind::Paged { kv_heads, k_dim, v_dim, .. } => (kv_heads, k_dim, v_dim),
            _ => (0, 0, 0),
        };
        let elements = |dim| vec![f32::from_bits(u32::MAX); pages * kv_heads * PAGE_TOKENS * dim];
        Cache { kind, dtype, pages, k: elements(k_dim), v: elements(v_dim) }
    }
}

/// What changes from step to step.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Token ids.
    pub ids: Vec<i32>,
    /// Positions.
    pub positions: Vec<i32>,
    /// The sequence of each row.
    pub row_seq: Vec<i32>,
    /// `[S, max_pages]`.
    pub page_table: Vec<i32>,
    /// Entries a sequence.
    pub max_pages: usize,
    /// Rows that want logits.
    pub select: Vec<i32>,
}

/// One use of an op with everything that it reads.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its attributes in words; also the seed of its numbers.
    pub name: String,
    /// The op.
    pub op: Op,
    /// The size of the step.
    pub shape: StepShape,
    /// Values that it reads.
    pub inputs: Vec<Value>,
    /// Weights that it reads.
    pub weights: Vec<Weight>,
    /// The cache that it reads or writes.
    pub cache: Option<Cache>,
    /// Values that it makes.
    pub outputs: Vec<ValueInfo>,
    /// What changes from step to step.
    pub step: Step,
    /// The size of a typical output element: an error is not held against anything smaller.
    pub magnitude: f32,
}

impl Case {
    /// The rows that decide between variants: those of its first output, or of the step where it has none.
    pub fn rows(&self) -> usize {
        self.outputs.first().map_or(self.shape.rows, |y| self.shape.of(y.rows))
    }

    /// Type and columns of the first input.
    pub fn input(&self) -> (ValueType, usize) {
        self.inputs.first().map_or((ValueType::Activation, 0), |x| (x.info.dtype, x.info.cols))
    }

    /// What the chart is asked for it; `weights` are its weights in their layouts.
    pub fn spec<'a>(&'a self, weights: &'a [WeightSpec], activation: DType) -> OpSpec<'a> {
        let (input, input_cols) = self.input();
        let cache = self.cache.as_ref().map(|c| (c.kind, c.dtype));
        OpSpec { op: &self.op, rows: self.rows(), activation, input, input_cols, weights, cache }
    }

    /// What it must move and compute, its weights in the layout of their planes.
    pub fn cost(&self, activation: DType, context: Context) -> Cost {
        let table = self.weights.first();
        Use {
            op: &self.op,
            shape: self.shape,
            context,
            activation,
            inputs: self.inputs.iter().map(|x| x.info.clone()).collect(),
            outputs: self.outputs.clone(),
            weight_bytes: (self.weights.iter()).map(|w| w.rows() as u64 * row_of(w.encoding, &w.shape)).sum(),
            weight_row: table.map_or(0, |w| row_of(w.encoding, &w.shape)),
            cache: self.cache.as_ref().map(|c| (c.kind, c.dtype)),
        }
        .cost()
    }

    /// With activations that a device's type of them can hold, so that all compute from the same numbers.
    #[must_use]
    pub fn rounded(mut self, activation: DType) -> Case {
        if activation != DType::F32 {
            for x in self.inputs.iter_mut().filter(|x| x.info.dtype == ValueType::Activation) {
                x.numbers = decode(activation, &encode(activation, &x.numbers));
            }
        }
        self
    }

    /// Some of its rows as a case of their own; none where rows are not independent of each other.
    pub fn part(&self, first: usize, rows: usize) -> Option<Case> {
        let set = self.outputs.first()?.rows;
        let same = self.inputs.iter().map(|x| x.info.rows).chain(self.outputs.iter().map(|y| y.rows));
        if same.clone().any(|rows| rows != set) || first + rows > self.rows() {
            return None;
        }
        let mut part = self.clone();
        part.name = format!("{} part={first}+{rows}", self.name);
        match set {
            RowSet::Tokens => part.shape.rows = rows,
            RowSet::Selected => {
                part.shape.selected = rows;
                part.step.select.truncate(rows);
            }
        }
        for input in &mut part.inputs {
            let cols = input.info.cols;
            input.numbers = input.numbers[first * cols..(first + rows) * cols].to_vec();
        }
        if set == RowSet::Tokens {
            for numbers in [&mut part.step.ids, &mut part.step.positions, &mut part.step.row_seq] {
                if !numbers.is_empty() {
                    *numbers = numbers[first..first + rows].to_vec();
                }
            }
        }
        Some(part)
    }
}
