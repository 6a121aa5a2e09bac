//! The plain kernels, which everything else is held against, against naive code in f64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{DType, Device, cpu::CpuOptions};
use portolan_kernels::{
    CacheKind, GpuPrograms, Op, OpKind, PAGE_TOKENS, RowCodes, RowSet, StepShape, ValueInfo, ValueType,
    chart::Entry,
    conformance::{
        Target,
        cases::{
            self,
            steps::{Part, cache, step},
        },
        host::{Case, Value, decode, encode},
        place::Placer,
        plain_variant,
        rng::Rng,
        run_variant,
    },
};
use portolan_weights::{Layout, decode_row};
use proptest::prelude::*;

/// Runs the plain variant of a case and gives its first output.
fn run(case: &Case, name: &str) -> Vec<f32> {
    let device = Device::cpu(&CpuOptions { threads: 2 }).unwrap();
    let placer = Placer::new(&device, DType::F32).unwrap();
    let mut placed = placer.place(case, Layout::Planes).unwrap();
    let variant =
        plain_variant(case.op.kind(), case.inputs.first().map_or(ValueType::F32, |x| x.info.dtype)).unwrap();
    assert_eq!(variant.name, name);
    assert!(matches!(variant.entry, Entry::Cpu(_)));
    let target = Target {
        device: &device,
        team: device.team().map(AsRef::as_ref),
        stream: placer.stream(),
        programs: &GpuPrograms::new(&device),
    };
    run_variant(variant, &mut placed.launch, case.shape, &target).unwrap();
    let results = placer.results(&placed).unwrap();
    assert!(results.guards_whole);
    decode(DType::F32, &results.outputs[0])
}

/// `softmax(scale q k^T) v`, term by term.
fn naive_attention(case: &Case, parts: &[Part]) -> Vec<f64> {
    let Op::Attention { heads, scale, window } = case.op else { panic!("an attention") };
    let cache = case.cache.as_ref().unwrap();
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { panic!("pages") };
    // What the cache really holds.
    let [keys, values] = [&cache.k, &cache.v].map(|x| decode(cache.dtype, &encode(cache.dtype, x)));
    let q = &case.inputs[0].numbers;
    let rows = parts.iter().enumerate().flat_map(|(s, &(start, n))| (start..start + n).map(move |p| (s, p)));
    let mut out = Vec::new();
    for (row, (seq, position)) in rows.enumerate() {
        for head in 0..heads {
            let at = |p: usize| {
                let page = case.step.page_table[seq * case.step.max_pages + p / PAGE_TOKENS] as usize;
                (page * kv_heads + head * kv_heads / heads) * PAGE_TOKENS + p % PAGE_TOKENS
            };
            let q = &q[(row * heads + head) * k_dim..][..k_dim];
            let seen: Vec<usize> =
                (0..=position).filter(|p| window.is_none_or(|w| position - p < w)).collect();
            let dot = |p: &usize| -> f64 {
                (0..k_dim).map(|i| f64::from(q[i]) * f64::from(keys[at(*p) * k_dim + i])).sum()
            };
            let weights: Vec<f64> = seen.iter().map(|p| (dot(p) * f64::from(scale)).exp()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..v_dim {
                let value = |p: &usize| f64::from(values[at(*p) * v_dim + i]);
                out.push(seen.iter().zip(&weights).map(|(p, w)| w * value(p)).sum::<f64>() / total);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn attention_is_the_naive_one(
        kv_heads in 1usize..4,
        shared in 1usize..5,
        dims in (1usize..40, 1usize..40),
        window in proptest::option::of(1usize..90),
        parts in proptest::collection::vec((0usize..100, 1usize..7), 1..4),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)],
        seed in any::<u32>(),
    ) {
        let mut rng = Rng::named(&seed.to_string());
        let (heads, (k_dim, v_dim)) = (kv_heads * shared, dims);
        let kind = CacheKind::Paged { kv_heads, k_dim, v_dim, window };
        let (step, shape, pages) = step(&mut rng, &parts, window);
        let info = |cols| ValueInfo { rows: RowSet::Tokens, cols, dtype: ValueType::Activation };
        let q = Value {
            info: info(heads * k_dim),
            numbers: rng.units(shape.rows * heads * k_dim).iter().map(|q| q * 4.0).collect(),
        };
        let case = Case {
            name: "property".into(),
            op: Op::Attention { heads, scale: 1.0 / (k_dim as f32).sqrt(), window },
            shape,
            inputs: vec![q],
            weights: vec![],
            cache: Some(cache(&mut rng, kind, dtype, (&step, pages), &parts, true)),
            outputs: vec![info(heads * v_dim)],
            step,
            magnitude: 0.0,
        };
        let (found, expected) = (run(&case, "plain"), naive_attention(&case, &parts));
        prop_assert_eq!(found.len(), expected.len());
        for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
            // Values are below 1; a score of up to 4 * 0.6 * sqrt(40) carries a few f32 roundings into the exponential.
            prop_assert!((f64::from(*f) - e).abs() < 3e-6, "element {}: {} is not {}", i, f, e);
        }
    }
}

/// The weights of a matmul in f64, its bias last.
fn matmul_in_f64(case: &Case, x: &[f64]) -> Vec<f64> {
    let w = &case.weights[0];
    let (n, k) = (w.rows(), w.cols());
    let mut bias = vec![0.0; n];
    if let Some(b) = case.weights.get(1) {
        decode_row(&b.planes(), 0, &mut bias);
    }
    let mut row = vec![0.0; k];
    let mut out = vec![0.0; x.len() / k * n];
    for j in 0..n {
        decode_row(&w.planes(), j, &mut row);
        for (t, x) in x.chunks(k).enumerate() {
            let sum: f64 = x.iter().zip(&row).map(|(x, w)| x * f64::from(*w)).sum();
            out[t * n + j] = sum + f64::from(bias[j]);
        }
    }
    out
}

#[track_caller]
fn close(case: &Case, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{}", case.name);
    let largest = expected.iter().fold(f64::from(case.magnitude), |m, e| m.max(e.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*f) - e).abs() / largest;
        assert!(error <= tolerance, "{}: element {i} is {f}, expected {e}", case.name);
    }
}

#[test]
fn matmul_of_every_encoding() {
    for case in cases::of(OpKind::Matmul) {
        if case.inputs[0].info.dtype == ValueType::Activation {
            let x: Vec<f64> = case.inputs[0].numbers.iter().map(|x| f64::from(*x)).collect();
            // Sixteen partial sums of at most 80 products: about 20 roundings that matter.
            close(&case, &run(&case, "plain"), &matmul_in_f64(&case, &x), 2e-6);
        }
    }
}

/// The matmul of rounded rows is that of the rounded rows, for biases too: `sum_g [ s d dot(c, q) + b d sum(q) ]`.
#[test]
fn integer_matmul_of_every_encoding() {
    for case in cases::of(OpKind::Matmul) {
        let Some(how) = RowCodes::of(case.inputs[0].info.dtype) else { continue };
        let round = |x: &[f32]| -> Vec<f64> {
            let d = x.iter().fold(0f32, |m, x| m.max(x.abs())) / how.largest() as f32;
            x.iter().map(|x| f64::from((x / d).round_ties_even()) * f64::from(d)).collect()
        };
        let rows = case.inputs[0].numbers.chunks(case.inputs[0].info.cols);
        let rounded: Vec<f64> = rows.flat_map(|row| row.chunks(32).flat_map(round)).collect();
        close(&case, &run(&case, "plain_integers"), &matmul_in_f64(&case, &rounded), 2e-6);
    }
}

#[test]
fn rms_norm_and_rope() {
    for case in cases::of(OpKind::RmsNorm) {
        let Op::RmsNorm { width, eps } = case.op else { continue };
        let mut weight = vec![0.0; width];
        decode_row(&case.weights[0].planes(), 0, &mut weight);
        let norm = |x: &[f32]| -> Vec<f64> {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
            let scale = (mean + f64::from(eps)).sqrt();
            x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / scale * f64::from(*w)).collect()
        };
        let expected: Vec<f64> = case.inputs[0].numbers.chunks(width).flat_map(norm).collect();
        close(&case, &run(&case, "plain"), &expected, 1e-6);
    }
    for case in cases::of(OpKind::Rope) {
        let Op::Rope { heads, head_dim, rot, style } = case.op else { continue };
        let (x, table) = (&case.inputs[0].numbers, &case.inputs[1].numbers);
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (i, head) in expected.chunks_mut(head_dim).enumerate() {
            let (cos, sin) = table[i / heads * rot..(i / heads + 1) * rot].split_at(rot / 2);
            let before = head.to_vec();
            for pair in 0..rot / 2 {
                let (a, b) = match style {
                    portolan_kernels::RopeStyle::Halves => (pair, pair + rot / 2),
                    portolan_kernels::RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (cos, sin) = (f64::from(cos[pair]), f64::from(sin[pair]));
                // A rotation of the complex number a + ib by the table's angle.
                (head[a], head[b]) = (before[a] * cos - before[b] * sin, before[a] * sin + before[b] * cos);
            }
        }
        close(&case, &run(&case, "plain"), &expected, 1e-6);
    }
}

#[test]
fn what_is_out_of_range_is_not_a_number() {
    let mut embed = cases::of(OpKind::Embed).into_iter().find(|c| c.rows() == 5).unwrap();
    (embed.step.ids[1], embed.step.ids[2]) = (-1, 7);
    let cols = embed.outputs[0].cols;
    let nan: Vec<bool> = run(&embed, "plain").chunks(cols).map(|row| row[0].is_nan()).collect();
    assert_eq!(nan, [false, true, true, false, false]);

    let mut attention = cases::of(OpKind::Attention).into_iter().find(|c| c.rows() == 1).unwrap();
    for entry in [-1, 1 << 20] {
        attention.step.page_table.fill(entry);
        assert!(run(&attention, "plain").iter().all(|y| y.is_nan()));
    }
    attention.step.positions[0] = i32::MAX;
    assert!(run(&attention, "plain").iter().all(|y| y.is_nan()));
    attention.step.positions[0] = -1;
    assert!(run(&attention, "plain").iter().all(|y| y.is_nan()));
    assert_eq!(attention.shape, StepShape { rows: 1, selected: 0, seqs: 1, kv: 0 });
}
