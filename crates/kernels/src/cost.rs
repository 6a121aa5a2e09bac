//! What a launch must move and compute: the floor that a measured time is held against.

use portolan_device::DType;
use portolan_weights::Encoding;

use crate::{CacheKind, Launch, Op, OpKind, StepShape, ValueInfo, View, row_bytes};

/// Bytes and operations of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of memory that must be read or written, each once.
    pub bytes: u64,
    /// Additions and multiplications; a function such as an exponential counts as one.
    pub ops: u64,
}

/// How far a step looks back: what attention costs depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Positions of the cache that any row sees, over all sequences.
    pub positions: u64,
    /// Pairs of a row and a position that it sees.
    pub pairs: u64,
}

impl Context {
    /// Of sequences that begin at a position and have so many rows in the step.
    pub fn of(parts: impl IntoIterator<Item = (usize, usize)>, window: Option<usize>) -> Self {
        let mut context = Context::default();
        for (start, rows) in parts {
            let seen = |position: usize| window.map_or(position + 1, |w| w.min(position + 1)) as u64;
            context.pairs += (start..start + rows).map(seen).sum::<u64>();
            let first = window.map_or(0, |w| (start + 1).saturating_sub(w));
            context.positions += if rows > 0 { (start + rows - first) as u64 } else { 0 };
        }
        context
    }
}

/// What the cost of a use follows from.
pub(crate) struct Use<'a> {
    pub(crate) op: &'a Op,
    pub(crate) shape: StepShape,
    pub(crate) context: Context,
    pub(crate) activation: DType,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
    /// Bytes over all planes of all weights.
    pub(crate) weight_bytes: u64,
    /// Bytes of a row of the first weight.
    pub(crate) weight_row: u64,
    pub(crate) cache: Option<(CacheKind, DType)>,
}

impl Launch {
    /// What the launch must move and compute in a step. Values and weights count once however often a kernel comes
    /// back to them; of an embedding only the rows that are asked for.
    pub fn cost(&self, shape: StepShape, activation: DType, context: Context) -> Cost {
        let infos = |views: &[View]| -> Vec<ValueInfo> {
            views.iter().map(|v| ValueInfo { rows: v.rows, cols: v.cols, dtype: v.dtype }).collect()
        };
        let table = self.weights.first();
        Use {
            op: &self.op,
            shape,
            context,
            activation,
            inputs: infos(&self.inputs),
            outputs: infos(&self.outputs),
            weight_bytes: self.weights.iter().flat_map(|w| &w.planes).map(|p| p.len() as u64).sum(),
            weight_row: table.map_or(0, |w| row_of(w.encoding, &w.shape)),
            cache: self.cache.as_ref().map(|c| (c.kind, c.dtype)),
        }
        .cost()
    }
}

/// Bytes of a row of a weight.
pub(crate) fn row_of(encoding: Encoding, shape: &[usize]) -> u64 {
    encoding.row_bytes_total(shape.last().copied().unwrap_or(0)) as u64
}

impl Use<'_> {
    pub(crate) fn cost(&self) -> Cost {
        let values = |of: &[ValueInfo]| -> u64 {
            let bytes = |v: &ValueInfo| self.shape.of(v.rows) * row_bytes(v.dtype, v.cols, self.activation);
            of.iter().map(|v| bytes(v) as u64).sum()
        };
        let first = self.inputs.first().or(self.outputs.first());
        let rows = first.map_or(0, |v| self.shape.of(v.rows)) as u64;
        let cols = self.inputs.first().map_or(0, |v| v.cols) as u64;
        let out_cols = self.outputs.first().map_or(0, |v| v.cols) as u64;
        let all_out_cols = self.outputs.iter().map(|v| v.cols as u64).sum::<u64>();
        let kind = self.op.kind();
        let of_position = self.cache.map_or(0, |(kind, dtype)| position_bytes(kind, dtype));
        let (cached, ops) = match kind {
            OpKind::Embed => (0, 2 * rows * out_cols),
            OpKind::RmsNorm => (0, 4 * rows * cols),
            OpKind::AddRmsNorm => (0, 5 * rows * cols),
            OpKind::Matmul => (0, 2 * rows * cols * out_cols),
            OpKind::GateUp => (0, 4 * rows * cols * out_cols),
            OpKind::RopeTable => (0, rows * out_cols),
            OpKind::Rope => (0, 3 * rows * cols),
            OpKind::CacheAppend => (rows, 0),
            OpKind::RopeAppend => (rows, 3 * rows * cols),
            OpKind::Qkv => (0, 2 * rows * cols * all_out_cols),
            OpKind::NormRopeAppend => (rows, 7 * rows * cols),
            // For each pair and head a product with a key and one with a value.
            OpKind::Attention => (self.context.positions, 2 * self.context.pairs * (cols + out_cols)),
            OpKind::Activate | OpKind::Add | OpKind::Mul => (0, rows * out_cols),
            OpKind::SelectRows => (0, 0),
            OpKind::QuantizeRows => (0, 3 * rows * cols),
            OpKind::Argmax => (0, rows * cols),
        };
        // Only the selected rows are read.
        let inputs = values(if kind == OpKind::SelectRows { &self.outputs } else { &self.inputs });
        let weights = if kind == OpKind::Embed { rows * self.weight_row } else { self.weight_bytes };
        Cost { bytes: inputs + values(&self.outputs) + weights + cached * of_position, ops }
    }
}

/// Bytes that one position, or one state, takes.
fn position_bytes(kind: CacheKind, dtype: DType) -> u64 {
    let elements = match kind {
        CacheKind::Paged { kv_heads, k_dim, v_dim, .. } => kv_heads * (k_dim + v_dim),
        CacheKind::Latent { rank, rope } => rank + rope,
        CacheKind::State { elements } => elements,
    };
    (elements * dtype.size()) as u64
}

impl Cost {
    /// The least time in seconds on a machine that reads `bandwidth` bytes and computes `rate` operations a second.
    pub fn floor(self, bandwidth: f64, rate: f64) -> f64 {
        (self.bytes as f64 / bandwidth).max(self.ops as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use portolan_device::{Device, cpu::CpuOptions};
    use portolan_weights::Layout;

    use super::*;
    use crate::{
        ValueType,
        conformance::{cases, place::Placer},
    };

    #[test]
    fn context_of_sequences() {
        let of = |parts: &[(usize, usize)], window| Context::of(parts.iter().copied(), window);
        assert_eq!(of(&[(0, 1)], None), Context { positions: 1, pairs: 1 });
        assert_eq!(of(&[(3, 2), (0, 3)], None), Context { positions: 5 + 3, pairs: 4 + 5 + 1 + 2 + 3 });
        assert_eq!(of(&[(3, 2)], Some(2)), Context { positions: 3, pairs: 4 });
        assert_eq!(of(&[(3, 0)], Some(2)), Context::default());
    }

    #[track_caller]
    fn check(op: OpKind, name: &str, context: Context, expected: Cost) {
        let placer = Placer::new(&Device::cpu(&CpuOptions { threads: 1 }).unwrap(), DType::F32).unwrap();
        let case = cases::of(op).into_iter().find(|c| c.name.starts_with(name)).unwrap();
        let placed = placer.place(&case, Layout::Planes).unwrap();
        assert_eq!(placed.launch.cost(case.shape, DType::F32, context), expected);
    }

    #[test]
    fn bytes_and_operations() {
        let none = Context::default();
        let q4 = 17 * (64 / 2 + 2 * 2 * 2);
        let sizes = |x, y| Cost { bytes: x, ops: y };
        let name = "affine4-g32-f16 Activation rows=3 n=17 k=64";
        // With a bias of f32.
        check(OpKind::Matmul, name, none, sizes(3 * 64 * 4 + 3 * 17 * 4 + q4 + 17 * 4, 2 * 3 * 17 * 64));
        check(OpKind::Add, "rows=3 cols=16", none, sizes(3 * 3 * 16 * 4, 3 * 16));
        let name = "f32 vocab=7 dim=39 rows=5";
        check(OpKind::Embed, name, none, sizes(2 * 5 * 39 * 4, 2 * 5 * 39));
        // Six products of one element, and six biases.
        check(OpKind::Qkv, "f32 rows=1 n=[1, 3, 2] k=1 bias", none, sizes((1 + 6 + 6 + 6) * 4, 2 * 6));
        let seen = Context { positions: 33, pairs: 33 };
        let attention = sizes(3 * (16 + 24) * 4 + 33 * (16 + 24) * 2, 2 * 33 * 3 * (16 + 24));
        check(OpKind::Attention, "f16 heads=3/1 dims=16,24 None [(0, 1)]", seen, attention);
        assert_eq!(sizes(10, 100).floor(5.0, 10.0), 10.0);
        assert_eq!(row_bytes(ValueType::Q8Rows, 33, DType::F32), 80);
    }
}
