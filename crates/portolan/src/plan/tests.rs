//! What a layer of a decoder is lowered to, on devices that need not be there.

use std::sync::Arc;

use portolan_device::{DType, Device, DeviceCaps, DeviceId, DeviceKind, cpu::CpuOptions};
use portolan_kernels::{
    Activation, CacheKind, Graph, GraphBuilder, OpKind, PortPolicy, RopeStyle, exec::StepLimits,
    rope::RopeFrequencies,
};
use portolan_weights::{Encoding, Expr};

use super::{Lowered, LoweredNode, Target, lower, place};

const LIMITS: StepLimits = StepLimits { rows: 64, selected: 8, seqs: 8, pages: 4 };
const Q4: Encoding = Encoding::Affine { bits: 4, group: 64, meta: DType::BF16 };
const NORM: Encoding = Encoding::Dense(DType::BF16);

/// A layer as Qwen3 has it, between embedding and head, with the encodings of its weights.
fn layer() -> (Graph, Vec<Encoding>) {
    let mut b = GraphBuilder::new();
    let mut encodings = Vec::new();
    let mut weight = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
        encodings.push(if shape.len() > 1 { Q4 } else { NORM });
        b.weight(name, shape, Expr::source(name))
    };
    let table = weight(&mut b, "embed", &[128, 128]);
    let x = b.embed(table);
    let rope = b.rope_table(Arc::new(RopeFrequencies::plain(1e4, 64)));
    let norm = weight(&mut b, "norm", &[128]);
    let normed = b.rms_norm(x, norm, 1e-6);
    let wq = weight(&mut b, "q", &[128, 128]);
    let [wk, wv] = ["k", "v"].map(|name| weight(&mut b, name, &[64, 128]));
    let [q, k, v] = b.qkv(normed, [wq, wk, wv], None);
    let norms = ["q_norm", "k_norm"].map(|name| weight(&mut b, name, &[64]));
    let cache = b.cache("layer", CacheKind::Paged { kv_heads: 1, k_dim: 64, v_dim: 64, window: None });
    let q = b.norm_rope_append([q, k, v, rope], norms, 1e-6, cache, 2, RopeStyle::Halves);
    let attended = b.attention(q, cache, 2, 0.125);
    let wo = weight(&mut b, "o", &[128, 128]);
    let out = b.matmul(attended, wo, None);
    let norm = weight(&mut b, "post", &[128]);
    let (x, normed) = b.add_rms_norm(x, out, norm, 1e-6);
    let [gate, up] = ["gate", "up"].map(|name| weight(&mut b, name, &[256, 128]));
    let inner = b.gate_up(normed, gate, up, Activation::Silu);
    let down = weight(&mut b, "down", &[128, 256]);
    let delta = b.matmul(inner, down, None);
    let x = b.add(x, delta);
    let selected = b.select_rows(x);
    let logits = b.matmul(selected, table, None);
    (b.finish(logits, 128), encodings)
}

fn cuda() -> DeviceCaps {
    let id = DeviceId { kind: DeviceKind::Cuda, ordinal: 0 };
    let (name, arch, features) = (String::new(), "sm_90".to_owned(), Vec::new());
    DeviceCaps { id, name, arch, features, wave_width: 32, integrated: false, units: 132 }
}

fn lowered(caps: &DeviceCaps, policy: &PortPolicy) -> Lowered {
    let (graph, encodings) = layer();
    let activation = if caps.kind() == DeviceKind::Cpu { DType::F32 } else { DType::BF16 };
    let target = Target { caps, policy, limits: LIMITS, cache_dtype: DType::F16, activation };
    let lowered = lower(target, &graph, &encodings).unwrap();
    // Values that are alive together lie apart: those that a fused op and its parts both make too.
    let placement = place(&lowered, LIMITS, activation);
    let mut alive = vec![None; lowered.graph.values.len()];
    for (i, node) in lowered.nodes.iter().enumerate() {
        let made = node.node.outputs.iter().map(|v| (v, true));
        for (value, is_made) in made.chain(node.node.inputs.iter().map(|v| (v, false))) {
            let (_, last) = alive[value.index()].get_or_insert((i, i));
            *last = i;
            assert!(is_made || placement.ranges[value.index()].is_some());
        }
    }
    for (a, life) in alive.iter().enumerate() {
        for (b, other) in alive.iter().enumerate().skip(a + 1) {
            let (Some((from, to)), Some((other_from, other_to))) = (life, other) else { continue };
            let (a_at, b_at) = (placement.ranges[a].unwrap(), placement.ranges[b].unwrap());
            let apart = a_at.0 + a_at.1 <= b_at.0 || b_at.0 + b_at.1 <= a_at.0;
            assert!(apart || to < other_from || other_to < from, "values {a} and {b}");
        }
    }
    lowered
}

/// The ops of a step of so many rows, in order, from the first norm on to the end of the layer.
fn ops(lowered: &Lowered, rows: usize) -> Vec<&'static str> {
    let runs = lowered.nodes.iter().filter(|n| n.rows.0 <= rows && rows <= n.rows.1);
    let names: Vec<_> = runs.map(|n| n.node.op.kind().name()).collect();
    names[2..names.len() - 3].to_vec()
}

#[track_caller]
fn check(caps: &DeviceCaps, closed: &[OpKind], rows: usize, expected: &str) {
    let switches = closed.iter().map(|&op| (op, false)).collect();
    let policy = PortPolicy { switches, ..PortPolicy::default() };
    assert_eq!(ops(&lowered(caps, &policy), rows).join(" "), expected, "{rows} rows without {closed:?}");
}

#[test]
fn fused_ops_serve_the_rows_that_they_have_ports_for() {
    let mlp = "attention matmul add_rms_norm gate_up matmul";
    let cuda = cuda();
    for rows in [1, 2] {
        check(&cuda, &[], rows, &format!("rms_norm qkv norm_rope_append {mlp}"));
    }
    for rows in [3, 64] {
        check(&cuda, &[], rows, &format!("rms_norm matmul matmul matmul norm_rope_append {mlp}"));
    }
    let apart = "rms_norm matmul matmul matmul rms_norm rms_norm";
    let closed = [OpKind::Qkv, OpKind::NormRopeAppend];
    check(&cuda, &closed, 1, &format!("{apart} rope_append {mlp}"));
    let closed = [OpKind::Qkv, OpKind::NormRopeAppend, OpKind::RopeAppend];
    check(&cuda, &closed, 1, &format!("{apart} rope rope cache_append {mlp}"));
}

#[test]
fn every_number_of_rows_has_a_variant_and_one_only() {
    for (exact, deterministic) in [(false, false), (true, false), (false, true)] {
        let policy = PortPolicy { exact, deterministic, ..PortPolicy::default() };
        let lowered = lowered(&cuda(), &policy);
        for rows in 1..=LIMITS.rows {
            let mut made = vec![0; lowered.graph.values.len()];
            for node in lowered.nodes.iter().filter(|n| n.rows.0 <= rows && rows <= n.rows.1) {
                let out = node.node.outputs.first().map(|&v| lowered.graph.value(v).rows);
                let selected = out == Some(portolan_kernels::RowSet::Selected);
                let most = if selected { LIMITS.selected } else { LIMITS.rows };
                let serves = node.variants.iter().any(|(upto, _)| rows <= *upto);
                assert!(serves || rows > most, "{} rows: {}", rows, node.node.op.kind());
                node.node.outputs.iter().for_each(|v| made[v.index()] += 1);
            }
            assert!(made.iter().all(|&n| n <= 1), "{rows} rows: a value is made twice");
        }
    }
}

#[test]
fn a_cpu_takes_apart_what_it_has_no_port_for() {
    let cpu = Device::cpu(&CpuOptions { threads: 1 }).unwrap();
    let lowered = lowered(cpu.caps(), &PortPolicy::default());
    assert!(lowered.nodes.iter().all(|n| n.rows == (1, usize::MAX)));
    let names = ops(&lowered, 1).into_iter().filter(|&name| name != "quantize_rows");
    let names: Vec<_> = names.collect();
    // Where the processor has no kernel for the fused ones, those are taken apart too.
    let start = ["rms_norm", "matmul", "matmul", "matmul", "rms_norm", "rms_norm"];
    assert_eq!(names[..start.len()], start, "{names:?}");
    // q, k and v share the rows that are made for them.
    let quantized = lowered.nodes.iter().filter(|n| n.node.op.kind() == OpKind::QuantizeRows);
    let mut of: Vec<_> = quantized.map(|n| n.node.inputs[0]).collect();
    let count = of.len();
    of.sort_unstable();
    of.dedup();
    assert_eq!(of.len(), count, "a value is quantized twice");
}

/// On an AMD GPU matmuls take int8 where that was asked for, in small steps.
#[test]
fn few_rows_are_quantized_where_that_is_opened() {
    let id = DeviceId { kind: DeviceKind::Rocm, ordinal: 0 };
    let rocm = DeviceCaps { id, arch: "gfx1100".to_owned(), features: vec!["dot4".to_owned()], ..cuda() };
    let of = |opened: &[OpKind], deterministic: bool, rows: usize| {
        let switches = opened.iter().map(|&op| (op, true)).collect();
        let lowered = lowered(&rocm, &PortPolicy { switches, deterministic, ..PortPolicy::default() });
        let runs = lowered.nodes.iter().filter(|n| n.rows.0 <= rows && rows <= n.rows.1);
        // The variant of each matmul, and which ones share what they read.
        let name =
            |n: &LoweredNode| n.variants.iter().find(|(upto, _)| rows <= *upto).map_or("-", |(_, v)| v.name);
        let list: Vec<_> = runs
            .filter(|n| matches!(n.node.op.kind(), OpKind::Matmul | OpKind::GateUp | OpKind::QuantizeRows))
            .map(|n| if n.node.op.kind() == OpKind::QuantizeRows { "int8" } else { name(n) })
            .collect();
        list.join(" ")
    };
    let both = [OpKind::Matmul, OpKind::GateUp];
    let plain = of(&[], false, 2);
    assert!(!plain.contains("int8") && !plain.contains("dot4"), "{plain}");
    assert_eq!(of(&both, true, 2), of(&[], true, 2));
    assert_eq!(of(&both, false, 9), of(&[], false, 9));
    // One kernel makes q, k and v for two rows. The head has rows in f32, and keeps them.
    assert_eq!(of(&both, false, 2), "int8 dot4_2 int8 dot4_2 int8 dot4_2 gemv2");
    assert_eq!(of(&both, false, 8), "int8 dot4_8 dot4_8 dot4_8 int8 dot4_8 int8 dot4_8 int8 dot4_8 gemv8");
    let matmul = of(&[OpKind::Matmul], false, 8);
    assert_eq!(matmul, "int8 dot4_8 dot4_8 dot4_8 int8 dot4_8 gemv8 int8 dot4_8 gemv8");
}

#[test]
fn a_primitive_that_is_closed_is_named() {
    let switches = [(OpKind::Matmul, false)].into_iter().collect();
    let policy = PortPolicy { switches, ..PortPolicy::default() };
    let (graph, encodings) = layer();
    let caps = cuda();
    let activation = DType::BF16;
    let target = Target { caps: &caps, policy: &policy, limits: LIMITS, cache_dtype: DType::F16, activation };
    let error = lower(target, &graph, &encodings).unwrap_err().to_string();
    assert!(error.contains("matmul") && error.contains("Closed"), "{error}");
}
