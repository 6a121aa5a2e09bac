//! Weight expressions: shapes, rows in the right order, and what is refused.

use portolan_device::DType;
use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{Checkpoint, Encoding, Expr, LoadRequest, WeightError, plan_load};
use proptest::prelude::*;

use crate::support::{folder, load_expr, values};

/// `a` [4, 2] = 0..8, `b` [4, 2] = 10..18, `v` and `u` of 4, `half` of 3 in f16.
fn checkpoint() -> (tempfile::TempDir, Checkpoint) {
    let numbers = |from: usize, n: usize| (from..from + n).map(|i| i as f32).collect::<Vec<_>>();
    let half: Vec<u8> =
        [0.5f32, -2.0, 3.0].iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    Safetensors::new()
        .f32("a", &[4, 2], &numbers(0, 8))
        .f32("b", &[4, 2], &numbers(10, 8))
        .f32("v", &[4], &numbers(100, 4))
        .f32("u", &[4], &numbers(200, 4))
        .tensor("half", "F16", &[3], &half)
        .tensor("wide", "F64", &[2], &[1.5f64.to_le_bytes(), (-3.0f64).to_le_bytes()].concat())
        .write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    (dir, checkpoint)
}

fn src(name: &str) -> Expr {
    Expr::source(name)
}

fn unpermute(of: Expr, heads: usize) -> Expr {
    Expr::UnpermuteHeads { of: Box::new(of), heads }
}

fn rows(of: Expr, start: usize, len: usize) -> Expr {
    Expr::Rows { of: Box::new(of), start, len }
}

fn to(of: Expr, dtype: DType) -> Expr {
    Expr::Dequantize { of: Box::new(of), dtype }
}

#[track_caller]
fn check(expr: Expr, shape: &[usize], expected: &[f32]) {
    let (_dir, checkpoint) = checkpoint();
    let resolved = expr.resolve(&checkpoint).unwrap();
    let loaded = load_expr(&checkpoint, expr).unwrap();
    assert_eq!(loaded.weight.shape, shape);
    assert_eq!((resolved.shape.as_slice(), resolved.encoding), (shape, loaded.weight.encoding));
    assert_eq!(resolved.bytes, loaded.planes.iter().map(Vec::len).sum::<usize>());
    assert_eq!(loaded.decode(), expected);
}

#[test]
fn rows_are_moved_whole() {
    check(src("a"), &[4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]);
    check(rows(src("a"), 1, 2), &[2, 2], &[2., 3., 4., 5.]);
    check(rows(src("v"), 2, 2), &[2], &[102., 103.]);
    check(rows(src("a"), 4, 0), &[0, 2], &[]);
    check(
        Expr::Concat(vec![rows(src("b"), 3, 1), src("a"), rows(src("b"), 0, 1)]),
        &[6, 2],
        &[16., 17., 0., 1., 2., 3., 4., 5., 6., 7., 10., 11.],
    );
    check(Expr::Concat(vec![src("v"), src("u")]), &[8], &[100., 101., 102., 103., 200., 201., 202., 203.]);
    check(Expr::Stack(vec![src("v"), src("u")]), &[2, 4], &[100., 101., 102., 103., 200., 201., 202., 203.]);
    check(
        Expr::Stack(vec![src("b"), src("a")]),
        &[2, 4, 2],
        &[10., 11., 12., 13., 14., 15., 16., 17., 0., 1., 2., 3., 4., 5., 6., 7.],
    );
    // One expert of a stack.
    let stack = Expr::Stack(vec![src("b"), src("a")]);
    check(rows(stack, 1, 1), &[1, 4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]);
    // A vector that became a row.
    check(
        Expr::Concat(vec![Expr::Stack(vec![rows(src("v"), 0, 2)]), src("a")]),
        &[5, 2],
        &[100., 101., 0., 1., 2., 3., 4., 5., 6., 7.],
    );
}

#[test]
fn unpermute_takes_even_rows_then_odd() {
    check(unpermute(src("a"), 1), &[4, 2], &[0., 1., 4., 5., 2., 3., 6., 7.]);
    check(unpermute(src("a"), 2), &[4, 2], &[0., 1., 2., 3., 4., 5., 6., 7.]);
    check(unpermute(src("v"), 1), &[4], &[100., 102., 101., 103.]);
    let both = Expr::Concat(vec![src("a"), src("b")]);
    check(
        unpermute(both, 1),
        &[8, 2],
        &[0., 1., 4., 5., 10., 11., 14., 15., 2., 3., 6., 7., 12., 13., 16., 17.],
    );
    check(rows(unpermute(src("a"), 1), 1, 2), &[2, 2], &[4., 5., 2., 3.]);
}

#[test]
fn dequantize_converts() {
    check(to(src("half"), DType::F32), &[3], &[0.5, -2.0, 3.0]);
    check(to(src("half"), DType::BF16), &[3], &[0.5, -2.0, 3.0]);
    check(to(src("wide"), DType::F32), &[2], &[1.5, -3.0]);
    check(to(unpermute(src("v"), 1), DType::F16), &[4], &[100., 102., 101., 103.]);
    check(unpermute(to(src("v"), DType::F16), 1), &[4], &[100., 102., 101., 103.]);
    check(to(src("half").f32(), DType::BF16), &[3], &[0.5, -2.0, 3.0]);
    check(Expr::Concat(vec![src("half").f32(), src("v")]), &[7], &[0.5, -2., 3., 100., 101., 102., 103.]);
    check(Expr::Stack(vec![src("half").f32(), src("half").f32()]), &[2, 3], &[0.5, -2., 3., 0.5, -2., 3.]);
    let converted = load_expr(&checkpoint().1, to(src("a"), DType::BF16)).unwrap();
    assert_eq!(converted.weight.encoding, Encoding::Dense(DType::BF16));
}

#[track_caller]
fn refused(expr: Expr, expected: &str) {
    let error = expr.resolve(&checkpoint().1).unwrap_err();
    assert!(matches!(error, WeightError::Expr { .. }), "{error:?}");
    assert!(error.to_string().contains(expected), "'{error}' does not say '{expected}'");
}

#[test]
fn what_does_not_fit_is_named() {
    refused(Expr::Concat(vec![src("a"), src("v")]), "concat of shapes [4, 2] and [4]");
    refused(Expr::Concat(vec![src("half"), src("v")]), "concat of encodings f16 and f32");
    refused(Expr::Concat(vec![]), "concat of nothing");
    refused(Expr::Stack(vec![src("half").f32(), src("v")]), "stack of shapes [3] and [4]");
    refused(Expr::Stack(vec![]), "stack of nothing");
    refused(unpermute(src("a"), 3), "[4, 2] has no 3 heads");
    refused(unpermute(src("a"), 4), "even number");
    refused(unpermute(src("a"), 0), "no 0 heads");
    refused(unpermute(Expr::Stack(vec![src("a"), src("b")]), 2), "[2, 4, 2]");
    refused(rows(src("a"), 3, 2), "rows 3..5 of shape [4, 2]");
    refused(rows(src("a"), usize::MAX, 2), "of shape [4, 2]");
    refused(to(src("a"), DType::I32), "i32, which is no float");
    refused(to(to(src("a"), DType::BF16), DType::F32), "already rounded");
}

#[test]
fn a_packed_vector_is_one_row() {
    let dir = folder();
    let path = dir.path().join("m.gguf");
    let block = [&half::f16::from_f32(0.5).to_le_bytes()[..], &[2; 32]].concat();
    Gguf::new().tensor("q", 8, &[64], &block.repeat(2)).tensor("v", 0, &[64], &[0; 256]).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(values(&checkpoint, "q"), [1.0; 64]);
    assert_eq!(load_expr(&checkpoint, src("q").f32()).unwrap().decode(), [1.0; 64]);
    // Half a group cannot be had, and neither can whole rows of a plain vector's single elements.
    for expr in
        [rows(src("q"), 1, 3), rows(src("q").f32(), 1, 3), Expr::Concat(vec![src("v"), src("q").f32()])]
    {
        let error = expr.resolve(&checkpoint).unwrap_err();
        assert!(error.to_string().contains("cannot be taken as rows of"), "{error}");
    }
}

#[test]
fn every_missing_tensor_is_listed() {
    let request = |name: &str| LoadRequest { name: name.into(), expr: src(name), repack: None };
    let error = plan_load(&checkpoint().1, vec![request("x.q.weight"), request("a"), request("lm_head")])
        .unwrap_err();
    let WeightError::MissingTensors { tensors, .. } = &error else { panic!("{error:?}") };
    assert_eq!(tensors, &["lm_head", "x.q.weight"]);
    // A prefix that differs is pointed out.
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    Safetensors::new().f32("model.layers.0.q_proj.weight", &[1], &[0.0]).write(&path);
    let error =
        plan_load(&Checkpoint::open(&path).unwrap(), vec![request("layers.0.q_proj.weight")]).unwrap_err();
    assert!(error.to_string().contains("It does have model.layers.0.q_proj.weight"), "{error}");
}

#[test]
fn packed_rows_move_without_decoding() {
    // 70 rows in Q8_0 and Q4_K, each row with its own codes; an order of rows applied to packed and to decoded
    // rows gives the same.
    for (kind, block, elements) in [(8, 34, 32), (12, 144, 256)] {
        let (rows_n, k) = (64, 2 * elements);
        let mut state = 1u32;
        let mut bytes: Vec<u8> = (0..rows_n * 2 * block)
            .map(|_| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                (state >> 24) as u8
            })
            .collect();
        for b in bytes.chunks_mut(block) {
            // Scales that are finite and small.
            b[1] = 0x2c;
            b[3] = if kind == 12 { 0x2c } else { b[3] };
        }
        let dir = folder();
        let path = dir.path().join("m.gguf");
        Gguf::new().tensor("w", kind, &[rows_n, k], &bytes).write(&path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let whole = values(&checkpoint, "w");
        let expr = rows(unpermute(src("w"), 4), 5, 40);
        let packed = load_expr(&checkpoint, expr.clone()).unwrap();
        assert_eq!(packed.weight.encoding, checkpoint.get("w").unwrap().encoding);
        let expected: Vec<f32> = (5..45)
            .flat_map(|row| {
                let (head, j) = (row / 16, row % 16);
                let from = head * 16 + if j < 8 { 2 * j } else { 2 * (j - 8) + 1 };
                whole[from * k..(from + 1) * k].to_vec()
            })
            .collect();
        assert_eq!(packed.decode(), expected);
        assert_eq!(load_expr(&checkpoint, expr.f32()).unwrap().decode(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// An arbitrary tree of row operations against the same operations on plain vectors of rows.
    #[test]
    fn trees_agree_with_a_model(ops in prop::collection::vec((0usize..4, 0usize..8, 0usize..8), 0..6)) {
        let (mut expr, mut model) = (src("a"), (0..4).map(|r| vec![2. * r as f32, 2. * r as f32 + 1.]).collect::<Vec<_>>());
        for (op, x, y) in ops {
            match op {
                0 => {
                    expr = Expr::Concat(vec![expr, src("b")]);
                    model.extend((0..4).map(|r| vec![10. + 2. * r as f32, 11. + 2. * r as f32]));
                }
                1 => {
                    let start = x.min(model.len());
                    let len = y.min(model.len() - start);
                    expr = rows(expr, start, len);
                    model = model[start..start + len].to_vec();
                }
                2 if model.len() % 2 == 0 && !model.is_empty() => {
                    expr = unpermute(expr, 1);
                    let half = model.len() / 2;
                    model = (0..2 * half).map(|j| model[if j < half { 2 * j } else { 2 * (j - half) + 1 }].clone()).collect();
                }
                3 => expr = Expr::Concat(vec![expr.f32()]),
                _ => {}
            }
        }
        let loaded = load_expr(&checkpoint().1, expr).unwrap();
        prop_assert_eq!(&loaded.weight.shape, &[model.len(), 2]);
        prop_assert_eq!(loaded.decode(), model.concat());
    }
}
