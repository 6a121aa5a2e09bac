//! The kernels of the tree under the prelude, compiled by NVRTC. No GPU and no driver is needed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};

use amdhip64_on_cuda::compile::Program;
use portolan_device::{DType, DeviceCaps, DeviceId, DeviceKind, KernelSource, rocm::arch::Arch};
use portolan_kernels::gpu::offline::{Wanted, wanted};
use portolan_testkit::skipped;

/// What the GPU can be given out for.
const ARCHS: [&str; 3] = ["gfx1100", "gfx1201", "gfx1030"];

fn caps(name: &str) -> DeviceCaps {
    let arch: Arch = name.parse().unwrap();
    DeviceCaps {
        id: DeviceId { kind: DeviceKind::Rocm, ordinal: 0 },
        name: name.to_owned(),
        arch: name.to_owned(),
        features: arch.instructions().into_iter().map(str::to_owned).collect(),
        wave_width: 32,
        integrated: false,
        units: 132,
    }
}

/// Compiles for a compute capability of 9.0, as the tree's hipRTC does; the log where it is refused.
fn compile(source: &KernelSource<'_>) -> Result<Vec<u8>, String> {
    let mut program = Program {
        name: source.file.to_owned(),
        text: source.text.to_owned(),
        headers: source.headers.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        ..Program::default()
    };
    let defines = source.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
    let options: Vec<String> = ["--offload-arch=gfx1100", "-O3", "-std=c++17"]
        .map(str::to_owned)
        .into_iter()
        .chain(defines)
        .collect();
    if program.compile(&options, 90) && !program.code.is_empty() {
        Ok(program.code)
    } else {
        Err(program.log)
    }
}

/// Of each variant the first and the last of its kernels in the order of their defines. With
/// `HIP_ON_CUDA_TEST_ALL=matmul_mma` also all others of the files whose names begin so.
fn some_of_each_variant(mut all: Vec<Wanted>) -> Vec<Wanted> {
    let whole = std::env::var("HIP_ON_CUDA_TEST_ALL").ok();
    let wholly = whole.map_or(Vec::new(), |name| all.extract_if(.., |w| w.file.starts_with(&name)).collect());
    let mut by_variant: BTreeMap<_, Vec<Wanted>> = BTreeMap::new();
    for wanted in all {
        by_variant.entry((wanted.op, wanted.variant)).or_default().push(wanted);
    }
    let ends = |mut list: Vec<Wanted>| {
        list.dedup();
        let last = list.pop();
        list.into_iter().take(1).chain(last)
    };
    by_variant.into_values().flat_map(ends).chain(wholly).collect()
}

/// Whether NVRTC is there; else that is said.
fn compiler_is_there() -> bool {
    let text = "extern \"C\" __global__ void k() {}";
    let probe = compile(&KernelSource { file: "k.hip", text, headers: &[], entry: "k", defines: &[] });
    if let Err(log) = &probe {
        // Without the compiler the log says so, and has no place in the text.
        assert!(log.contains("libnvrtc"), "{log}");
        skipped(log);
    }
    probe.is_ok()
}

/// Heads of 256 elements take 54 KiB, as AMD's GPUs have them, and more than CUDA's assembler takes.
#[test]
fn static_shared_memory_above_48_kib_is_moved() {
    if !compiler_is_there() {
        return;
    }
    let caps = caps("gfx1100");
    let mut all = wanted(&caps, &[DType::BF16], &|_, _| true, &|_| true).unwrap();
    all.retain(|wanted| wanted.file == "attention_mma.hip");
    let mut wanted = all.swap_remove(0);
    for (name, value) in &mut wanted.defines {
        match *name {
            "K_DIM" | "V_DIM" => *value = "256".to_owned(),
            "TOKENS" => *value = "16".to_owned(),
            "Q_SHARED" => *value = "1".to_owned(),
            _ => {}
        }
    }
    let code = compile(&wanted.source(&caps)).unwrap();
    assert!(code.starts_with(b"HIPONCU1"));
    let bytes = u64::from_le_bytes(code[8..16].try_into().unwrap());
    assert!(bytes > 48 << 10 && bytes <= 64 << 10, "{bytes}");
}

#[test]
fn kernels_compile_under_the_prelude() {
    if !compiler_is_there() {
        return;
    }
    let (mut done, mut files, mut failures) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for arch in ARCHS {
        let caps = caps(arch);
        for wanted in some_of_each_variant(wanted(&caps, &[DType::BF16], &|_, _| true, &|_| true).unwrap()) {
            if !done.insert((wanted.file, wanted.defines.clone())) {
                continue;
            }
            files.insert(wanted.file);
            if let Err(log) = compile(&wanted.source(&caps)) {
                let log: String = log.chars().take(2000).collect();
                failures.push(format!("{arch} {} {} {:?}: {log}", wanted.op, wanted.variant, wanted.defines));
            }
        }
    }
    println!("{} kernels of {} files", done.len(), files.len());
    assert!(failures.is_empty(), "{} do not compile:\n{}", failures.len(), failures.join("\n"));
    assert_eq!(files.len(), 12, "files of kernels-hip that no variant has: {files:?}");
}
