//! Cases of the ops that meet a cache of pages.

use portolan_device::DType;

use super::{
    case, made,
    rows::HEAD_DIMS,
    steps::{Part, STEPS, cache, step},
    value,
    weights::{DENSE, random},
};
use crate::{
    CacheKind, Op, RopeStyle, ValueType,
    conformance::{host::Case, rng::Rng},
};

const CACHE_TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// Query heads and kv heads: one to one, three to one, eight to one.
const HEADS: [(usize, usize); 4] = [(4, 4), (3, 1), (6, 2), (8, 1)];
/// For attention alone: enough rows for matrix units, of several sequences; and contexts of several hundred positions.
const LARGE: [&[Part]; 2] = [&[(30, 70), (0, 3), (90, 1), (40, 26)], &[(700, 1), (255, 1), (256, 2)]];

pub(super) fn cache_append() -> Vec<Case> {
    let mut cases = Vec::new();
    for k_dim in HEAD_DIMS {
        for parts in STEPS.into_iter().chain([&[][..]]) {
            for dtype in CACHE_TYPES {
                let v_dim = [k_dim, 24][cases.len() % 2];
                let kv_heads = [1, 3][cases.len() / 2 % 2];
                let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window: None };
                let name = format!("{dtype} kv_heads={kv_heads} dims={k_dim},{v_dim} {parts:?}");
                let mut rng = Rng::named(&name);
                let (step, shape, pages) = step(&mut rng, parts, None);
                let k = value(&mut rng, shape.rows, kv_heads * k_dim, ValueType::Activation);
                let v = value(&mut rng, shape.rows, kv_heads * v_dim, ValueType::Activation);
                let mut case = case(name, Op::CacheAppend, shape.rows, vec![k, v], Vec::new());
                case.cache = Some(cache(&mut rng, kind, dtype, (&step, pages), parts, false));
                (case.step, case.shape) = (step, shape);
                cases.push(case);
            }
        }
    }
    cases
}

pub(super) fn attention() -> Vec<Case> {
    let mut cases = Vec::new();
    let windows = [None, Some(1), Some(8), Some(33), Some(100)];
    for k_dim in HEAD_DIMS {
        for (heads, kv_heads) in HEADS {
            for parts in STEPS.into_iter().chain(LARGE).chain([&[][..]]) {
                for window in windows {
                    let dtype = CACHE_TYPES[cases.len() % 3];
                    let v_dim = [k_dim, k_dim, k_dim, 24][cases.len() % 4];
                    let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window };
                    let name =
                        format!("{dtype} heads={heads}/{kv_heads} dims={k_dim},{v_dim} {window:?} {parts:?}");
                    let mut rng = Rng::named(&name);
                    let (step, shape, pages) = step(&mut rng, parts, window);
                    let mut q = value(&mut rng, shape.rows, heads * k_dim, ValueType::Activation);
                    // Scores of a few units, so that the softmax is neither flat nor one position.
                    q.numbers.iter_mut().for_each(|q| *q *= 6.0);
                    let scale = 1.0 / (k_dim as f32).sqrt();
                    let op = Op::Attention { heads, scale, window };
                    let outputs = vec![made(heads * v_dim, ValueType::Activation)];
                    let mut case = case(name, op, shape.rows, vec![q], outputs);
                    case.cache = Some(cache(&mut rng, kind, dtype, (&step, pages), parts, true));
                    (case.step, case.shape, case.magnitude) = (step, shape, 0.25);
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// Cases of rope_append, or of an op that has something before it: `change` is given each with its index, once its inputs
/// are there.
fn rotated(what: &str, change: impl Fn(&mut Case, usize, &mut Rng)) -> Vec<Case> {
    let mut cases = Vec::new();
    for k_dim in HEAD_DIMS {
        for (heads, kv_heads) in HEADS {
            for parts in STEPS.into_iter().chain([&[][..]]) {
                let index = cases.len();
                let (dtype, v_dim) = (CACHE_TYPES[index % 3], [k_dim, k_dim, 24][index / 3 % 3]);
                let (rot, style) = match index % 4 {
                    0 | 1 => (k_dim, RopeStyle::Halves),
                    2 => (k_dim / 2, RopeStyle::Halves),
                    _ => (k_dim, RopeStyle::Interleaved),
                };
                let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window: None };
                let name = format!(
                    "{what}{dtype} heads={heads}/{kv_heads} dims={k_dim},{v_dim} rot={rot} {style:?} {parts:?}"
                );
                let mut rng = Rng::named(&name);
                let (step, shape, pages) = step(&mut rng, parts, None);
                let mut input = |cols, dtype| value(&mut rng, shape.rows, cols, dtype);
                let inputs = vec![
                    input(heads * k_dim, ValueType::Activation),
                    input(kv_heads * k_dim, ValueType::Activation),
                    input(kv_heads * v_dim, ValueType::Activation),
                    input(rot, ValueType::F32),
                ];
                let outputs = vec![made(heads * k_dim, ValueType::Activation)];
                let op = Op::RopeAppend { heads, rot, style };
                let mut case = case(name, op, shape.rows, inputs, outputs);
                change(&mut case, index, &mut rng);
                case.cache = Some(cache(&mut rng, kind, dtype, (&step, pages), parts, false));
                (case.step, case.shape) = (step, shape);
                cases.push(case);
            }
        }
    }
    cases
}

pub(super) fn rope_append() -> Vec<Case> {
    rotated("", |_, _, _| ())
}

pub(super) fn norm_rope_append() -> Vec<Case> {
    rotated("normed ", |case, index, rng| {
        let Op::RopeAppend { heads, rot, style } = case.op else { return };
        let k_dim = case.outputs[0].cols / heads;
        case.op = Op::NormRopeAppend { eps: [1e-5, 1e-6][index % 2], heads, rot, style };
        // Heads of different sizes, which the norms make one.
        for input in &mut case.inputs[..2] {
            for (i, head) in input.numbers.chunks_mut(k_dim).enumerate() {
                head.iter_mut().for_each(|x| *x *= [1.0, 1e-2, 30.0][i % 3]);
            }
        }
        case.weights = (0..2).map(|_| random(rng, DENSE[index / 2 % 3], &[k_dim])).collect();
        // A normed element, by a weight and by a cosine of the order of 1/2.
        case.magnitude = 0.5;
    })
}
