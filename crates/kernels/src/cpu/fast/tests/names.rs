use crate::OpKind;

/// The variants of an op here, without those of AVX-512 and without the instruction set in front of the name.
#[track_caller]
fn check(op: OpKind, expected: &[&str]) {
    let own = if cfg!(target_arch = "x86_64") { "avx2" } else { "neon" };
    let names = super::super::variants(op).iter().map(|v| v.name).filter(|n| !n.starts_with("avx512"));
    let names: Vec<_> = names.map(|n| n.strip_prefix(own).unwrap_or(n)).collect();
    assert_eq!(names, expected, "{op}");
}

/// docs/ports.md lists those of x86-64, and says that aarch64 has the same.
#[test]
fn every_processor_has_the_same_variants() {
    check(OpKind::Embed, &["rows8"]);
    check(OpKind::Matmul, &["-int15", "-int8", "-f32", "-decoded"]);
    check(OpKind::GateUp, &["-int15", "-int8", "-f32"]);
    for op in [
        OpKind::RmsNorm,
        OpKind::Rope,
        OpKind::Attention,
        OpKind::Activate,
        OpKind::Add,
        OpKind::Mul,
        OpKind::QuantizeRows,
        OpKind::Argmax,
        OpKind::AddRmsNorm,
        OpKind::RopeAppend,
    ] {
        check(op, &[""]);
    }
    for op in [OpKind::RopeTable, OpKind::CacheAppend, OpKind::SelectRows, OpKind::Qkv] {
        check(op, &[]);
    }
}
