//! Results to the bit, the same for every instruction set: each line was computed with AVX2.

use half::{bf16, f16};

use super::{
    super::{isa::NAMES, simd::Lanes},
    *,
};
use crate::{Activation, CacheKind, PAGE_TOKENS, RopeStyle, RowCodes};

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Names of results, with their hashes.
#[derive(Default)]
struct Results(Vec<(String, u64)>);

impl Results {
    /// Runs a launch with an output of `cols` columns, and notes the result.
    #[track_caller]
    fn run(
        &mut self,
        what: String,
        variant: &str,
        bed: &Bed,
        op: Op,
        (inputs, weights, cache): (&[&View], &[&WeightTensor], Option<CacheView>),
        (dtype, rows, cols): (ValueType, usize, usize),
    ) -> View {
        let y = bed.view(dtype, cols, rows, &[]);
        bed.run(variant, &bed.launch(op, inputs, weights, cache, &y), rows, 2);
        let bytes: &[u8] = crate::cpu::access::read(&y.slice, rows * row_bytes(dtype, cols, DType::F32));
        self.0.push((what, hash(bytes)));
        y
    }

    fn integers(&mut self, rng: &mut Rng) {
        for encoding in encodings() {
            let (n, k, rows) = (19, 2 * super::super::rows8::Format::of(encoding).unwrap().elements(), 7);
            let bed = Bed::new(&vec![0; rows], 1);
            let x = bed.floats(&rng.floats(rows * k), k);
            let [w, up] = [0, 1].map(|_| bed.weight(&Weight::random(encoding, n, k, rng)));
            for (how, name) in [(RowCodes::Int15, NAMES.int15), (RowCodes::Int8, NAMES.int8)] {
                let f32s = (ValueType::Activation, rows, n);
                let x = self.run(
                    format!("{how:?} k={k}"),
                    NAMES.floats,
                    &bed,
                    Op::QuantizeRows(how),
                    (&[&x], &[], None),
                    (how.value_type(), rows, k),
                );
                let what = format!("{how:?} {encoding}");
                self.run(format!("matmul {what}"), name, &bed, Op::Matmul, (&[&x], &[&w], None), f32s);
                let f = Op::GateUp(Activation::Silu);
                self.run(format!("gate_up {what}"), name, &bed, f, (&[&x], &[&w, &up], None), f32s);
            }
            let embedded = (ValueType::Activation, rows, k);
            self.run(format!("embed {encoding}"), "rows8", &bed, Op::Embed, (&[], &[&w], None), embedded);
        }
    }

    fn dense<T: Lanes>(&mut self, dtype: DType, rng: &mut Rng) {
        let (n, k, rows) = (7, 43, 5);
        let bed = Bed::new(&vec![0; rows], 1);
        let x = bed.floats(&rng.floats(rows * k), k);
        let values: Vec<T> = rng.floats(n * k).into_iter().map(T::from_f32).collect();
        let w = WeightTensor {
            name: "w".to_owned(),
            shape: vec![n, k],
            encoding: Encoding::Dense(dtype),
            layout: Layout::Planes,
            planes: vec![place(&bed.device, bytemuck::cast_slice(&values))],
        };
        let y = (ValueType::Activation, rows, n);
        self.run(format!("matmul {dtype}"), NAMES.dense, &bed, Op::Matmul, (&[&x], &[&w], None), y);
        for f in [Activation::Silu, Activation::GeluTanh, Activation::Relu2] {
            let what = format!("gate_up {f:?} {dtype}");
            self.run(what, NAMES.dense, &bed, Op::GateUp(f), (&[&x], &[&w, &w], None), y);
        }
    }

    fn decoded(&mut self, rng: &mut Rng) {
        for scale in [BlockScale::E8M0, BlockScale::E4M3] {
            let encoding = Encoding::FloatBlock { element: Element::E4M3, group: 32, scale };
            // Codes of NaN are left out: what a NaN's bits are is the processor's affair.
            let code = |rng: &mut Rng| (rng.bits() as u8) & 0xf7;
            let weight = Weight::new(encoding, 5, 64, rng, code);
            let bed = Bed::new(&[0; 3], 1);
            let w = bed.weight_of(&weight);
            let x = bed.floats(&rng.floats(3 * 64), 64);
            let y = (ValueType::Activation, 3, 5);
            let what = format!("matmul {encoding}");
            self.run(what, NAMES.decoded, &bed, Op::Matmul, (&[&x], &[&w], None), y);
        }
    }

    fn attention<T: Lanes>(&mut self, dtype: DType, rng: &mut Rng) {
        let (heads, kv_heads, k_dim, v_dim, pages) = (6, 2, 40, 24, 6);
        let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window: None };
        let mut fill = |dim: usize| -> Vec<T> {
            rng.floats(pages * kv_heads * PAGE_TOKENS * dim).into_iter().map(T::from_f32).collect()
        };
        let (k, v) = (fill(k_dim), fill(v_dim));
        for positions in [&[150][..], &[126, 127, 128, 129, 130, 131, 132, 133]] {
            let bed = Bed::new(positions, pages);
            let slice = |v: &[T]| place(&bed.device, bytemuck::cast_slice(v));
            let cache = CacheView { kind, dtype, k: slice(&k), v: slice(&v), pages };
            let rows = positions.len();
            let q = bed.floats(&rng.floats(rows * heads * k_dim), heads * k_dim);
            let op = Op::Attention { heads, scale: 2.5, window: None };
            let what = format!("attention {dtype} rows={rows}");
            let y = (ValueType::Activation, rows, heads * v_dim);
            self.run(what, NAMES.floats, &bed, op, (&[&q], &[], Some(cache)), y);
        }
    }

    fn rows(&mut self, rng: &mut Rng) {
        let (rows, cols) = (3, 96);
        let bed = Bed::new(&vec![0; rows], 1);
        let wide: Vec<f32> = rng.floats(rows * cols).iter().map(|x| x * x * x * 120.0).collect();
        let (x, wide) = (bed.floats(&rng.floats(rows * cols), cols), bed.floats(&wide, cols));
        let y = (ValueType::Activation, rows, cols);
        for f in [Activation::Silu, Activation::GeluTanh, Activation::Relu2] {
            let op = Op::Activate(f);
            self.run(format!("activate {f:?}"), NAMES.floats, &bed, op, (&[&wide], &[], None), y);
        }
        self.run("add".to_owned(), NAMES.floats, &bed, Op::Add, (&[&x, &wide], &[], None), y);
        self.run("mul".to_owned(), NAMES.floats, &bed, Op::Mul, (&[&x, &wide], &[], None), y);
        let factors: Vec<bf16> = rng.floats(cols).into_iter().map(bf16::from_f32).collect();
        let w = WeightTensor {
            name: "w".to_owned(),
            shape: vec![cols],
            encoding: Encoding::Dense(DType::BF16),
            layout: Layout::Planes,
            planes: vec![place(&bed.device, bytemuck::cast_slice(&factors))],
        };
        let norm = Op::RmsNorm { width: cols, eps: 1e-5 };
        self.run("rms_norm".to_owned(), NAMES.floats, &bed, norm, (&[&wide], &[&w], None), y);
        let table = bed.floats(&rng.floats(rows * 32), 32);
        for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
            let op = Op::Rope { heads: 2, head_dim: 48, rot: 32, style };
            let what = format!("rope {style:?}");
            self.run(what, NAMES.floats, &bed, op, (&[&x, &table], &[], None), y);
        }
    }
}

#[test]
fn results_are_the_same_bits_on_every_processor() {
    if !here() {
        return;
    }
    let mut results = Results::default();
    let mut rng = Rng::new(11);
    results.integers(&mut rng);
    results.dense::<f32>(DType::F32, &mut rng);
    results.dense::<f16>(DType::F16, &mut rng);
    results.dense::<bf16>(DType::BF16, &mut rng);
    results.decoded(&mut rng);
    results.attention::<f32>(DType::F32, &mut rng);
    results.attention::<f16>(DType::F16, &mut rng);
    results.attention::<bf16>(DType::BF16, &mut rng);
    results.rows(&mut rng);
    let text: String = results.0.iter().map(|(what, hash)| format!("{hash:016x} {what}\n")).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), GOLDEN.lines().collect::<Vec<_>>(), "\n{text}");
}

/// A line a result: the hash of its bytes, and what it is of.
const GOLDEN: &str = include_str!("golden.txt");
