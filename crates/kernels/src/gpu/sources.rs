//! The texts of device code. CUDA's lie in `kernels-cuda`, ROCm's in `kernels-hip` under the same names.
//!
//! Where one algorithm serves both, ROCm's file includes CUDA's, which then includes `dialect.h` under the name
//! `dialect.cuh`.

use portolan_device::DeviceKind;

use crate::{Variant, chart::Entry};

/// A file: its name, its text.
type File = (&'static str, &'static str);

macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../", $folder, "/", $name)))),*]
    };
}

/// A text of `kernels-cuda` that serves ROCm too.
macro_rules! shared {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../kernels-cuda/", $name)))
    };
}

/// What CUDA's kernels include.
const CUDA_HEADERS: &[File] = files!(
    "kernels-cuda": "dialect.cuh", "common.cuh", "vectors.cuh", "weights.cuh", "matmul.cuh", "attention.cuh",
    "attention_decode.cuh",
    "rope.cuh",
);

/// CUDA's kernels.
const CUDA: &[File] = files!(
    "kernels-cuda": "attention_decode.cu", "attention_mma.cu", "attention_split.cu", "elementwise.cu", "gather.cu",
    "matmul_gemm.cu", "matmul_gemv.cu", "matmul_mma.cu", "matmul_thin.cu", "norm.cu", "norm_rope.cu", "rope.cu",
);

/// What ROCm's kernels include.
const ROCM_HEADERS: &[File] = &[
    ("dialect.cuh", include_str!("../../../../kernels-hip/dialect.h")),
    ("attention_tiles.h", include_str!("../../../../kernels-hip/attention_tiles.h")),
    ("decoded.h", include_str!("../../../../kernels-hip/decoded.h")),
    ("matrix.h", include_str!("../../../../kernels-hip/matrix.h")),
    shared!("common.cuh"),
    shared!("vectors.cuh"),
    shared!("weights.cuh"),
    shared!("matmul.cuh"),
    shared!("attention.cuh"),
    shared!("rope.cuh"),
    shared!("attention_split.cu"),
    shared!("elementwise.cu"),
    shared!("gather.cu"),
    shared!("matmul_gemm.cu"),
    shared!("matmul_gemv.cu"),
    shared!("norm.cu"),
    shared!("norm_rope.cu"),
    shared!("rope.cu"),
];

/// ROCm's kernels.
const ROCM: &[File] = files!(
    "kernels-hip": "attention_mma.hip", "attention_split.hip", "elementwise.hip", "gather.hip", "matmul_dot4.hip",
    "matmul_gemm.hip", "matmul_gemv.hip", "matmul_mma.hip", "matmul_thin.hip", "norm.hip", "norm_rope.hip", "rope.hip",
);

/// What the kernels of a kind of device include.
pub(crate) fn headers(kind: DeviceKind) -> &'static [File] {
    match kind {
        DeviceKind::Cpu => &[],
        DeviceKind::Cuda => CUDA_HEADERS,
        DeviceKind::Rocm => ROCM_HEADERS,
    }
}

fn kernels(kind: DeviceKind) -> &'static [File] {
    match kind {
        DeviceKind::Cpu => &[],
        DeviceKind::Cuda => CUDA,
        DeviceKind::Rocm => ROCM,
    }
}

/// A kernel's file, by its name without the extension; none where the kind of device has none.
pub(crate) fn file(kind: DeviceKind, name: &str) -> Option<File> {
    let named = |file: &str| file.rsplit_once('.').is_some_and(|(stem, _)| stem == name);
    kernels(kind).iter().copied().find(|(file, _)| named(file))
}

/// Whether a kind of device has the text of a variant.
pub(crate) fn has(kind: DeviceKind, variant: &Variant) -> bool {
    match variant.entry {
        Entry::Gpu(kernel) => file(kind, kernel.file).is_some(),
        Entry::Cpu(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpKind, gpu};

    /// A variant whose file is misspelt would vanish from the chart.
    #[test]
    fn no_file_is_unused() {
        for kind in [DeviceKind::Cuda, DeviceKind::Rocm] {
            let stems =
                OpKind::ALL.iter().flat_map(|&op| gpu::variants(op, kind)).filter_map(|v| match v.entry {
                    Entry::Gpu(kernel) => Some(kernel.file),
                    Entry::Cpu(_) => None,
                });
            let used: Vec<_> = stems.collect();
            for (name, _) in kernels(kind) {
                assert!(
                    used.iter().any(|stem| name.rsplit_once('.').is_some_and(|(s, _)| s == *stem)),
                    "{name}"
                );
            }
        }
    }

    /// Whatever a text includes is among the headers that the compiler is given.
    #[test]
    fn every_include_is_there() {
        for kind in [DeviceKind::Cuda, DeviceKind::Rocm] {
            for (file, text) in kernels(kind).iter().chain(headers(kind)) {
                for name in
                    text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
                {
                    assert!(
                        headers(kind).iter().any(|(header, _)| *header == name),
                        "{file} includes {name}"
                    );
                }
            }
        }
    }
}
