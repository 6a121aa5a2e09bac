//! The uses that are measured: sizes of a model of a few billion parameters, at one row, a few and many.

use std::sync::Arc;

use portolan_device::DType;
use portolan_kernels::{
    Activation, CacheKind, Context, Op, OpKind, RopeStyle, RowCodes, RowSet, StepShape, ValueInfo, ValueType,
    conformance::{
        cases::{steps, weights},
        host::{Cache, Case, Step, Value, Weight},
        rng::Rng,
    },
    rope::RopeFrequencies,
};
use portolan_weights::Encoding;

/// Columns of a row of activations.
const HIDDEN: usize = 2048;
/// Query heads, kv heads, elements a head.
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
/// Rows of a step: a token, several sequences, a prompt.
pub(crate) const ROWS: [usize; 3] = [1, 16, 128];
/// Rows of matmuls for the variants that take none of those.
const OTHER_ROWS: [usize; 5] = [2, 4, 8, 32, 512];
/// Positions before the step's own.
const CONTEXT: usize = 2048;

/// A use of an op.
pub struct Bench {
    /// What it is, without the numbers of weights and caches: they are large, and most rows wait for their turn.
    pub case: Case,
    /// How far it looks back.
    pub context: Context,
}

impl Bench {
    /// The case with all of its numbers.
    pub fn filled(&self) -> Case {
        let mut case = self.case.clone();
        let mut rng = Rng::named(&case.name);
        for weight in &mut case.weights {
            *weight = weights::random(&mut rng, weight.encoding, &weight.shape);
        }
        if let Some(cache) = &mut case.cache {
            let poisoned = Cache::poisoned(cache.kind, cache.dtype, cache.pages);
            let numbers = |of: Vec<f32>| (0..of.len()).map(|i| (i % 251) as f32 / 251.0 - 0.5).collect();
            (cache.k, cache.v) = (numbers(poisoned.k), numbers(poisoned.v));
        }
        case
    }

    /// Whether what it reads comes from memory in a real step: weights and caches do, activations do not. (An
    /// embedding's few rows do too, but no step waits for them, and a copy is a whole table.)
    pub fn reads_memory(&self) -> bool {
        matches!(self.case.op.kind(), OpKind::Matmul | OpKind::GateUp | OpKind::Qkv | OpKind::Attention)
    }
}

/// All of them.
pub fn benches() -> Vec<Bench> {
    let mut all = Vec::new();
    all.extend(ROWS.into_iter().flat_map(row_by_row));
    all.extend(ROWS.into_iter().flat_map(|rows| encodings().map(|encoding| embed(encoding, rows))));
    for rows in ROWS.into_iter().chain(OTHER_ROWS) {
        for encoding in encodings() {
            for input in [ValueType::Activation, ValueType::Q8Rows, ValueType::Q15Rows] {
                all.push(matmul(encoding, rows, input));
                all.push(gate_up(encoding, rows, input));
            }
        }
    }
    // The rows that its kernels are for.
    for rows in [1, 2] {
        all.extend(encodings().map(|encoding| qkv(encoding, rows)));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        all.extend(
            [&[(CONTEXT, 1)][..], &[(CONTEXT, 1); 4], &[(0, 128)]].map(|parts| attention(dtype, parts)),
        );
        all.extend(ROWS.into_iter().flat_map(|rows| appends(dtype, rows)));
    }
    all
}

/// The encodings that people run, one of each way of decoding.
fn encodings() -> [Encoding; 8] {
    let affine = |bits, group, meta| Encoding::Affine { bits, group, meta };
    [
        Encoding::Dense(DType::F32),
        Encoding::Dense(DType::F16),
        Encoding::Dense(DType::BF16),
        affine(4, 32, DType::F16),
        affine(4, 64, DType::BF16),
        affine(8, 32, DType::F16),
        Encoding::TwoLevel { bits: 4, group: 32, minima: true },
        Encoding::TwoLevel { bits: 6, group: 16, minima: false },
    ]
}

fn info(rows: RowSet, cols: usize, dtype: ValueType) -> ValueInfo {
    ValueInfo { rows, cols, dtype }
}

fn bench(name: String, op: Op, rows: usize, inputs: &[ValueInfo], outputs: Vec<ValueInfo>) -> Bench {
    let mut rng = Rng::named(&name);
    let value = |info: &ValueInfo| Value { info: info.clone(), numbers: rng.units(rows * info.cols) };
    let ints = |f: fn(usize) -> usize| (0..rows).map(|i| f(i) as i32).collect::<Vec<_>>();
    let case = Case {
        inputs: inputs.iter().map(value).collect(),
        name,
        op,
        shape: StepShape { rows, selected: rows, seqs: 1, kv: 0 },
        weights: Vec::new(),
        cache: None,
        outputs,
        step: Step {
            ids: ints(|i| i * 7919 % VOCAB),
            positions: ints(|i| i),
            select: ints(|i| i),
            ..Step::default()
        },
        magnitude: 0.0,
    };
    Bench { case, context: Context::default() }
}

/// Rows of an embedding table.
const VOCAB: usize = 4096;

fn activation(cols: usize) -> ValueInfo {
    info(RowSet::Tokens, cols, ValueType::Activation)
}

fn weight(encoding: Encoding, shape: &[usize]) -> Weight {
    Weight { encoding, shape: shape.to_vec(), planes: Vec::new() }
}

fn row_by_row(rows: usize) -> Vec<Bench> {
    let hidden = || activation(HIDDEN);
    let named = |what: &str, cols: usize| format!("{what}rows={rows} cols={cols}");
    let row = |op: Op, inputs: usize, outputs: usize| {
        bench(named("", HIDDEN), op, rows, &vec![hidden(); inputs], vec![hidden(); outputs])
    };
    let norm = weight(Encoding::Dense(DType::F32), &[HIDDEN]);
    let mut rms_norm = row(Op::RmsNorm { width: HIDDEN, eps: 1e-5 }, 1, 1);
    let mut add_rms_norm = row(Op::AddRmsNorm { eps: 1e-5 }, 2, 2);
    rms_norm.case.weights.push(norm.clone());
    add_rms_norm.case.weights.push(norm);

    let rope = Arc::new(RopeFrequencies::plain(1e6, HEAD_DIM));
    let table = info(RowSet::Tokens, HEAD_DIM, ValueType::F32);
    let rotate = Op::Rope { heads: HEADS, head_dim: HEAD_DIM, rot: HEAD_DIM, style: RopeStyle::Halves };
    let mut selected = hidden();
    selected.rows = RowSet::Selected;
    let logits = info(RowSet::Selected, 49_152, ValueType::F32);
    let token = info(RowSet::Selected, 1, ValueType::I32);
    let mut all = vec![
        rms_norm,
        add_rms_norm,
        row(Op::Add, 2, 1),
        row(Op::Mul, 2, 1),
        bench(named("", HEAD_DIM), Op::RopeTable { rope }, rows, &[], vec![table.clone()]),
        bench(named("", HIDDEN), rotate, rows, &[hidden(), table], vec![hidden()]),
        bench(named("", HIDDEN), Op::SelectRows, rows, &[hidden()], vec![selected]),
        bench(named("", logits.cols), Op::Argmax, rows, &[logits], vec![token]),
    ];
    for how in [RowCodes::Int8, RowCodes::Int15] {
        let y = info(RowSet::Tokens, HIDDEN, how.value_type());
        all.push(bench(
            named(&format!("{how:?} "), HIDDEN),
            Op::QuantizeRows(how),
            rows,
            &[hidden()],
            vec![y],
        ));
    }
    for f in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2] {
        let name = named(&format!("{f:?} "), HIDDEN);
        all.push(bench(name, Op::Activate(f), rows, &[hidden()], vec![hidden()]));
    }
    all
}

fn embed(encoding: Encoding, rows: usize) -> Bench {
    let name = format!("{encoding} rows={rows} {VOCAB}x{HIDDEN}");
    let mut bench = bench(name, Op::Embed, rows, &[], vec![activation(HIDDEN)]);
    bench.case.weights.push(weight(encoding, &[VOCAB, HIDDEN]));
    bench
}

fn matmul(encoding: Encoding, rows: usize, input: ValueType) -> Bench {
    let name = format!("{encoding} rows={rows} {HIDDEN}x{HIDDEN}");
    let x = info(RowSet::Tokens, HIDDEN, input);
    let mut bench = bench(name, Op::Matmul, rows, &[x], vec![activation(HIDDEN)]);
    bench.case.weights.push(weight(encoding, &[HIDDEN, HIDDEN]));
    bench
}

fn gate_up(encoding: Encoding, rows: usize, input: ValueType) -> Bench {
    let name = format!("{encoding} rows={rows} 2x{HIDDEN}x{HIDDEN}");
    let x = info(RowSet::Tokens, HIDDEN, input);
    let op = Op::GateUp(Activation::Silu);
    let mut bench = bench(name, op, rows, &[x], vec![activation(HIDDEN)]);
    bench.case.weights = vec![weight(encoding, &[HIDDEN, HIDDEN]); 2];
    bench
}

fn qkv(encoding: Encoding, rows: usize) -> Bench {
    let name = format!("{encoding} rows={rows} {HIDDEN}x{HIDDEN}+2x512x{HIDDEN}");
    let x = activation(HIDDEN);
    let parts = [HEADS, KV_HEADS, KV_HEADS].map(|heads| heads * HEAD_DIM);
    let mut bench = bench(name, Op::Qkv, rows, &[x], parts.map(activation).to_vec());
    bench.case.weights = parts.map(|n| weight(encoding, &[n, HIDDEN])).to_vec();
    bench
}

const PAGES: CacheKind =
    CacheKind::Paged { kv_heads: KV_HEADS, k_dim: HEAD_DIM, v_dim: HEAD_DIM, window: None };

/// Gives a bench the pages of such sequences.
fn with_cache(mut bench: Bench, dtype: DType, parts: &[steps::Part]) -> Bench {
    let mut rng = Rng::named(&bench.case.name);
    let (step, shape, pages) = steps::step(&mut rng, parts, None);
    bench.case.cache = Some(Cache { kind: PAGES, dtype, pages, k: Vec::new(), v: Vec::new() });
    (bench.case.step, bench.case.shape) = (step, shape);
    bench.context = Context::of(parts.iter().copied(), None);
    bench
}

fn attention(dtype: DType, parts: &[steps::Part]) -> Bench {
    let rows = parts.iter().map(|p| p.1).sum();
    let name = format!("{dtype} rows={rows} sequences={} after={}", parts.len(), parts[0].0);
    let op = Op::Attention { heads: HEADS, scale: 0.125, window: None };
    let q = activation(HEADS * HEAD_DIM);
    with_cache(bench(name, op, rows, std::slice::from_ref(&q), vec![q.clone()]), dtype, parts)
}

fn appends(dtype: DType, rows: usize) -> [Bench; 3] {
    let name = format!("{dtype} rows={rows} kv={KV_HEADS}x{HEAD_DIM}");
    let (q, kv) = (activation(HEADS * HEAD_DIM), activation(KV_HEADS * HEAD_DIM));
    let table = info(RowSet::Tokens, HEAD_DIM, ValueType::F32);
    let rope = Op::RopeAppend { heads: HEADS, rot: HEAD_DIM, style: RopeStyle::Halves };
    let append = bench(name.clone(), Op::CacheAppend, rows, &[kv.clone(), kv.clone()], Vec::new());
    let inputs = [q.clone(), kv.clone(), kv, table];
    let both = bench(name.clone(), rope, rows, &inputs, vec![q.clone()]);
    let (heads, rot, style) = (HEADS, HEAD_DIM, RopeStyle::Halves);
    let normed = Op::NormRopeAppend { eps: 1e-6, heads, rot, style };
    let mut normed = bench(name, normed, rows, &inputs, vec![q]);
    normed.case.weights = vec![weight(Encoding::Dense(DType::BF16), &[HEAD_DIM]); 2];
    [append, both, normed].map(|bench| with_cache(bench, dtype, &[(0, rows)]))
}
