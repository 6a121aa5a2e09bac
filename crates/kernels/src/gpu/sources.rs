//! The texts of device code. CUDA's lie in `kernels-cuda`; ROCm's are to lie in `kernels-hip` under the same names.

use portolan_device::DeviceKind;

use crate::{Variant, chart::Entry};

/// A file: its name, its text.
type File = (&'static str, &'static str);

macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../", $folder, "/", $name)))),*]
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

/// What the kernels of a kind of device include.
pub(crate) fn headers(kind: DeviceKind) -> &'static [File] {
    if kind == DeviceKind::Cuda { CUDA_HEADERS } else { &[] }
}

/// A kernel's file, by its name without the extension; none where the kind of device has none.
pub(crate) fn file(kind: DeviceKind, name: &str) -> Option<File> {
    let files = if kind == DeviceKind::Cuda { CUDA } else { &[] };
    files.iter().copied().find(|(file, _)| file.rsplit_once('.').is_some_and(|(stem, _)| stem == name))
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
        let used = |name: &str| {
            OpKind::ALL.iter().flat_map(|&op| gpu::variants(op, DeviceKind::Cuda)).any(|v| match v.entry {
                Entry::Gpu(kernel) => name == format!("{}.cu", kernel.file),
                Entry::Cpu(_) => false,
            })
        };
        for (name, _) in CUDA {
            assert!(used(name), "{name}");
        }
    }
}
