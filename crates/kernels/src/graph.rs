//! A model as a flat list of ops.

use std::fmt;

use portolan_weights::Expr;

use crate::{Activation, Op, RopeStyle, rope::RopeFrequencies};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id! {
    /// A value: the result of a node.
    ValueId
}
id! {
    /// A weight that the graph reads.
    WeightId
}
id! {
    /// A cache that the graph keeps between steps.
    CacheId
}

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// All T rows of the step.
    Tokens,
    /// The R rows that want logits.
    Selected,
}

/// The type of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// The device's activation type: f32 on the CPU.
    Activation,
    /// f32 on every device (the residual stream, rope tables, logits).
    F32,
    /// i32.
    I32,
    /// int8 codes in groups of 32 with an f32 scale and an f32 sum a group: [`crate::RowCodes::Int8`].
    Q8Rows,
    /// The same with codes of 15 bits, in two planes of int8: [`crate::RowCodes::Int15`].
    Q15Rows,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Its rows.
    pub rows: RowSet,
    /// Its columns.
    pub cols: usize,
    /// Its type.
    pub dtype: ValueType,
}

/// What a layer keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheKind {
    /// Keys and values of each position, in pages.
    Paged {
        /// Heads.
        kv_heads: usize,
        /// Elements of a key head.
        k_dim: usize,
        /// Elements of a value head.
        v_dim: usize,
        /// Positions that a row can see; none for all.
        window: Option<usize>,
    },
    /// One compressed row a position (multi-head latent attention).
    Latent {
        /// Elements of the compressed part.
        rank: usize,
        /// Elements of the rotated part.
        rope: usize,
    },
    /// A state of fixed size a sequence (state-space layers, convolutions), in f32.
    State {
        /// Elements.
        elements: usize,
    },
}

/// A cache that the graph keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDecl {
    /// For messages: `layers.3`.
    pub name: String,
    /// What it keeps.
    pub kind: CacheKind,
}

/// A weight that the graph reads.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightDecl {
    /// Its name in Portolan: Hugging Face's.
    pub name: String,
    /// The shape that the graph needs.
    pub shape: Vec<usize>,
    /// How it is made.
    pub expr: Expr,
}

/// One op with what it reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Where in the model: `layers.3.mlp`.
    pub scope: String,
    /// Values that it reads.
    pub inputs: Vec<ValueId>,
    /// Weights that it reads.
    pub weights: Vec<WeightId>,
    /// The cache that it reads or writes.
    pub cache: Option<CacheId>,
    /// Values that it makes.
    pub outputs: Vec<ValueId>,
}

/// A model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// In the order in which they run.
    pub nodes: Vec<Node>,
    /// By [`ValueId`].
    pub values: Vec<ValueInfo>,
    /// By [`WeightId`].
    pub weights: Vec<WeightDecl>,
    /// By [`CacheId`].
    pub caches: Vec<CacheDecl>,
    /// `[R, vocab]`, f32.
    pub logits: Option<ValueId>,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
}

impl Graph {
    /// A value's description.
    pub fn value(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.index()]
    }

    /// Adds a value.
    pub fn add_value(&mut self, rows: RowSet, cols: usize, dtype: ValueType) -> ValueId {
        self.values.push(ValueInfo { rows, cols, dtype });
        ValueId(self.values.len() as u32 - 1)
    }
}

/// Builds a graph op by op. Shapes follow from the inputs; a family states only what it knows.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    scope: String,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the part of the model that the next nodes belong to.
    pub fn scope(&mut self, scope: impl fmt::Display) {
        self.scope = scope.to_string();
    }

    /// Declares a weight. A second declaration of the same expression gives the first's id: tied weights are one.
    pub fn weight(&mut self, name: impl Into<String>, shape: &[usize], expr: Expr) -> WeightId {
        if let Some(index) = self.graph.weights.iter().position(|w| w.expr == expr && w.shape == shape) {
            return WeightId(index as u32);
        }
        self.graph.weights.push(WeightDecl { name: name.into(), shape: shape.to_vec(), expr });
        WeightId(self.graph.weights.len() as u32 - 1)
    }

    /// Declares a cache.
    pub fn cache(&mut self, name: impl Into<String>, kind: CacheKind) -> CacheId {
        self.graph.caches.push(CacheDecl { name: name.into(), kind });
        CacheId(self.graph.caches.len() as u32 - 1)
    }

    /// Columns of a value.
    pub fn cols(&self, value: ValueId) -> usize {
        self.graph.value(value).cols
    }

    fn weight_rows(&self, weight: WeightId) -> usize {
        self.graph.weights[weight.index()].shape.first().copied().unwrap_or(0)
    }

    fn push(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        weights: &[WeightId],
        cache: Option<CacheId>,
        outputs: &[(RowSet, usize, ValueType)],
    ) -> Vec<ValueId> {
        let outputs: Vec<_> = outputs.iter().map(|&(r, c, t)| self.graph.add_value(r, c, t)).collect();
        self.graph.nodes.push(Node {
            op,
            scope: self.scope.clone(),
            inputs: inputs.to_vec(),
            weights: weights.to_vec(),
            cache,
            outputs: outputs.clone(),
        });
        outputs
    }

    fn push_one(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        weights: &[WeightId],
        cache: Option<CacheId>,
        output: (RowSet, usize, ValueType),
    ) -> ValueId {
        self.push(op, inputs, weights, cache, &[output])[0]
    }

    fn rows(&self, value: ValueId) -> RowSet {
        self.graph.value(value).rows
    }

    fn dtype(&self, value: ValueId) -> ValueType {
        self.graph.value(value).dtype
    }

    /// [`Op::Embed`]: the residual stream, in f32.
    pub fn embed(&mut self, table: WeightId) -> ValueId {
        let shape = self.graph.weights[table.index()].shape.clone();
        self.graph.vocab = shape.first().copied().unwrap_or(0);
        let dim = shape.last().copied().unwrap_or(0);
        self.push_one(Op::Embed, &[], &[table], None, (RowSet::Tokens, dim, ValueType::F32))
    }

    /// [`Op::RmsNorm`] over each `width` columns, the length of the weight.
    pub fn rms_norm(&mut self, x: ValueId, weight: WeightId, eps: f32) -> ValueId {
        let width = self.weight_rows(weight);
        let out = (self.rows(x), self.cols(x), ValueType::Activation);
        self.push_one(Op::RmsNorm { width, eps }, &[x], &[weight], None, out)
    }

    /// [`Op::Matmul`].
    pub fn matmul(&mut self, x: ValueId, weight: WeightId, bias: Option<WeightId>) -> ValueId {
        let out = (self.rows(x), self.weight_rows(weight), ValueType::Activation);
        let weights: Vec<_> = [Some(weight), bias].into_iter().flatten().collect();
        self.push_one(Op::Matmul, &[x], &weights, None, out)
    }

    /// [`Op::RopeTable`].
    pub fn rope_table(&mut self, rope: std::sync::Arc<RopeFrequencies>) -> ValueId {
        let out = (RowSet::Tokens, rope.rot(), ValueType::F32);
        self.push_one(Op::RopeTable { rope }, &[], &[], None, out)
    }

    /// [`Op::RopeAppend`]: gives the rotated q.
    pub fn rope_append(
        &mut self,
        [q, k, v, table]: [ValueId; 4],
        cache: CacheId,
        heads: usize,
        style: RopeStyle,
    ) -> ValueId {
        let op = Op::RopeAppend { heads, rot: self.cols(table), style };
        let out = (RowSet::Tokens, self.cols(q), ValueType::Activation);
        self.push_one(op, &[q, k, v, table], &[], Some(cache), out)
    }

    /// [`Op::CacheAppend`]: k and v as they are (a layer without rope).
    pub fn cache_append(&mut self, k: ValueId, v: ValueId, cache: CacheId) {
        self.push(Op::CacheAppend, &[k, v], &[], Some(cache), &[]);
    }

    /// [`Op::Attention`].
    pub fn attention(&mut self, q: ValueId, cache: CacheId, heads: usize, scale: f32) -> ValueId {
        let (v_dim, window) = match self.graph.caches[cache.index()].kind {
            CacheKind::Paged { v_dim, window, .. } => (v_dim, window),
            CacheKind::Latent { rank, .. } => (rank, None),
            CacheKind::State { .. } => (0, None),
        };
        let out = (RowSet::Tokens, heads * v_dim, ValueType::Activation);
        self.push_one(Op::Attention { heads, scale, window }, &[q], &[], Some(cache), out)
    }

    /// [`Op::Activate`].
    pub fn activate(&mut self, x: ValueId, f: Activation) -> ValueId {
        let out = (self.rows(x), self.cols(x), ValueType::Activation);
        self.push_one(Op::Activate(f), &[x], &[], None, out)
    }

    /// [`Op::Add`]: of the type of `a`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = (self.rows(a), self.cols(a), self.dtype(a));
        self.push_one(Op::Add, &[a, b], &[], None, out)
    }

    /// [`Op::Mul`].
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = (self.rows(a), self.cols(a), ValueType::Activation);
        self.push_one(Op::Mul, &[a, b], &[], None, out)
    }

    /// [`Op::AddRmsNorm`]: gives the sum, of the type of `a`, and its norm.
    pub fn add_rms_norm(&mut self, a: ValueId, b: ValueId, weight: WeightId, eps: f32) -> (ValueId, ValueId) {
        let sum = (self.rows(a), self.cols(a), self.dtype(a));
        let normed = (self.rows(a), self.cols(a), ValueType::Activation);
        let made = self.push(Op::AddRmsNorm { eps }, &[a, b], &[weight], None, &[sum, normed]);
        (made[0], made[1])
    }

    /// [`Op::GateUp`].
    pub fn gate_up(&mut self, x: ValueId, gate: WeightId, up: WeightId, f: Activation) -> ValueId {
        let out = (self.rows(x), self.weight_rows(gate), ValueType::Activation);
        self.push_one(Op::GateUp(f), &[x], &[gate, up], None, out)
    }

    /// [`Op::Qkv`]: gives q, k and v. Weights are those of q, k and v; so are the biases.
    pub fn qkv(&mut self, x: ValueId, weights: [WeightId; 3], biases: Option<[WeightId; 3]>) -> [ValueId; 3] {
        let rows = self.rows(x);
        let outputs = weights.map(|w| (rows, self.weight_rows(w), ValueType::Activation));
        let all: Vec<_> = weights.into_iter().chain(biases.into_iter().flatten()).collect();
        let made = self.push(Op::Qkv, &[x], &all, None, &outputs);
        [made[0], made[1], made[2]]
    }

    /// [`Op::NormRopeAppend`]: gives the rotated q. Weights are those of the norms of q and of k.
    pub fn norm_rope_append(
        &mut self,
        inputs: [ValueId; 4],
        norms: [WeightId; 2],
        eps: f32,
        cache: CacheId,
        heads: usize,
        style: RopeStyle,
    ) -> ValueId {
        let [q, _, _, table] = inputs;
        let op = Op::NormRopeAppend { eps, heads, rot: self.cols(table), style };
        let out = (RowSet::Tokens, self.cols(q), ValueType::Activation);
        self.push_one(op, &inputs, &norms, Some(cache), out)
    }

    /// [`Op::SelectRows`].
    pub fn select_rows(&mut self, x: ValueId) -> ValueId {
        let out = (RowSet::Selected, self.cols(x), self.dtype(x));
        self.push_one(Op::SelectRows, &[x], &[], None, out)
    }

    /// Ends the graph. `logits` is `[R, vocab]`; it becomes f32 on every device.
    pub fn finish(mut self, logits: ValueId, context: usize) -> Graph {
        self.graph.values[logits.index()].dtype = ValueType::F32;
        self.graph.logits = Some(logits);
        self.graph.context = context;
        self.graph
    }
}
