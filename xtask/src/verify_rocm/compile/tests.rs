use std::collections::BTreeSet;

use portolan::device::KernelSource;

use super::*;
use crate::compile_gate::name;

const SMALL: Budget = Budget { vgprs32: 32, vgprs64: 24, lds: 1024, scalars: 1 };

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap()
}

/// The compiler; none, said as a skip, where it is not installed.
fn clang() -> Option<Clang> {
    Clang::find().unwrap().map_err(|reason| portolan_testkit::skipped(&reason)).ok()
}

#[track_caller]
fn check(change: impl Fn(&mut Taken), budget: Option<Budget>, says: Option<&str>) {
    let mut taken = Taken { vgprs: 24, sgprs: 200, lds: 1024, wave: 64, ..Taken::default() };
    change(&mut taken);
    let found = fault(&taken, target("gfx942"), budget);
    assert_eq!(found.is_some(), says.is_some(), "{found:?}");
    assert!(says.is_none_or(|says| found.as_ref().is_some_and(|f| f.contains(says))), "{found:?}");
}

#[test]
fn a_kernel_over_its_budget_is_found() {
    check(|_| (), Some(SMALL), None);
    check(|t| t.vgprs = 25, Some(SMALL), Some("25 vector registers, the budget is 24"));
    check(|t| t.lds = 1025, Some(SMALL), Some("1025 bytes of shared memory"));
    check(|t| t.vgpr_spills = 1, Some(SMALL), Some("1 spilled vector registers"));
    check(|t| t.sgpr_spills = 1, Some(SMALL), None);
    check(|t| t.sgpr_spills = 2, Some(SMALL), Some("2 spilled scalar registers"));
    check(|t| t.scratch = 4, Some(SMALL), Some("4 bytes of scratch"));
    check(|t| t.vgprs = 0, Some(SMALL), Some("does not say"));
    check(|t| t.wave = 32, Some(SMALL), Some("for 32 lanes"));
    check(|_| (), None, Some("no line in the budget"));
    // The budget of 32 lanes is another.
    let narrow = Taken { vgprs: 32, wave: 32, ..Taken::default() };
    assert_eq!(fault(&narrow, target("gfx1151"), Some(SMALL)), None);
}

#[test]
fn a_broken_kernel_fails() {
    let Some(clang) = clang() else { return };
    let text = |body: &str| format!("extern \"C\" __global__ void k(float *p, int n) {{ {body} }}");
    // Elements that are written under a number that is known only when it runs cannot lie in registers.
    let spills =
        "float a[64]; for (int i = 0; i < 64; i++) a[(i * n) & 63] = p[i] + p[0]; p[n] = a[p[1] > 0];";
    let wide = "static_assert(sizeof(long) == 4, \"the argument struct\"); p[0] = 1;";
    for (body, says) in [
        ("p[0] = 1.0f;", None),
        ("p[0] = missing;", Some("missing")),
        (spills, Some("bytes of scratch")),
        (wide, Some("the argument struct")),
    ] {
        let text = text(body);
        let source = KernelSource { file: "k.hip", text: &text, headers: &[], entry: "k", defines: &[] };
        let job = [Job { name: "add simt".to_owned(), source }];
        for arch in ["gfx942", "gfx1151"] {
            let found = compile(&clang, &job, target(arch), &|_| Some(SMALL), &mut Table::new());
            assert_eq!(found.len(), usize::from(says.is_some()), "{arch}: {found:?}");
            assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
        }
    }
}

/// A few kernels of an architecture.
fn few(target: &Target) -> Vec<portolan::kernels::gpu::offline::Wanted> {
    let all = wanted(&target.caps().unwrap(), &[DType::BF16], &|_, _| true, &|_| true).unwrap();
    let few = ["add simt", "rms_norm simt", "matmul gemv1"];
    crate::compile_gate::spread(all, 0).into_iter().filter(|w| few.contains(&name(w).as_str())).collect()
}

#[test]
fn some_kernels_of_each_architecture_compile_within_the_budget() {
    let Some(clang) = clang() else { return };
    for target in &TARGETS {
        let (few, mut table) = (few(target), Table::new());
        let findings = compile(&clang, &jobs(&few, &target.caps().unwrap()), target, &budget::of, &mut table);
        assert_eq!((table.len(), findings), (3, vec![]), "{}", target.name);
    }
}

#[test]
fn an_argument_struct_that_is_too_wide_fails() {
    let Some(clang) = clang() else { return };
    let (target, mut table) = (target("gfx1151"), Table::new());
    let mut few = few(target);
    for wanted in &mut few {
        for (_, size) in wanted.defines.iter_mut().filter(|(name, _)| *name == "ARGS_SIZE") {
            *size = (size.parse::<usize>().unwrap() - 8).to_string();
        }
    }
    let findings = compile(&clang, &jobs(&few, &target.caps().unwrap()), target, &budget::of, &mut table);
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(findings.iter().all(|f| f.contains("static assertion failed")), "{findings:?}");
}

#[test]
fn every_variant_has_a_line_in_the_budget_and_no_line_is_left_over() {
    let mut names = BTreeSet::new();
    for target in &TARGETS {
        names.extend(
            wanted(&target.caps().unwrap(), &ACTIVATIONS, &|_, _| true, &|_| true).unwrap().iter().map(name),
        );
    }
    let lines: BTreeSet<_> = budget::BUDGET.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(names, lines);
}
