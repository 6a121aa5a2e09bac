//! What a kernel of each variant may take at most, on any architecture of its width.
//!
//! A line is the most that samples take (up to 27 kernels a variant, up to 86 on `gfx942`; `cargo xtask verify-rocm --only
//! compile --sample N` prints it), with registers rounded up to the 8 in which the hardware hands them out at least. A
//! change that takes more is to say so here, and why that is worth it: more registers mean fewer waves on a SIMD, more
//! shared memory fewer blocks on a compute unit. Spilled vector registers and scratch have no column, for no kernel may
//! have any. A spilled scalar register goes to a lane of a vector register, which costs a move and no memory; `attention
//! split` has some on CDNA with heads that eight queries share.
//!
//! Some lines of `gemv` are above 256 at 64 lanes: a lane of CDNA has 512, half of them those of the matrix units, which
//! the compiler uses as further ones. One wave fits on a SIMD then.

/// Most of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    /// Vector registers of a lane where a wave has 32 of them: RDNA.
    pub(super) vgprs32: u32,
    /// Where it has 64: CDNA, whose matrix units take theirs from the same file.
    pub(super) vgprs64: u32,
    /// Bytes of static shared memory of a block.
    pub(super) lds: u32,
    /// Spilled scalar registers.
    pub(super) scalars: u32,
}

/// The budget of a variant by its name, op and variant.
pub(super) fn of(name: &str) -> Option<Budget> {
    let line = BUDGET.iter().find(|line| line.0 == name)?;
    Some(Budget { vgprs32: line.1, vgprs64: line.2, lds: line.3, scalars: line.4 })
}

/// Variant, vector registers of a lane at 32 lanes and at 64, bytes of shared memory of a block, spilled scalar registers.
#[rustfmt::skip]
pub(super) const BUDGET: &[(&str, u32, u32, u32, u32)] = &[
    ("activate simt", 56, 32, 0, 0),
    ("add simt", 32, 32, 0, 0),
    ("add_rms_norm simt", 88, 88, 32, 0),
    ("argmax simt", 72, 72, 64, 0),
    ("attention mma", 240, 192, 19968, 0),
    ("attention split", 152, 208, 22788, 2),
    ("cache_append simt", 24, 24, 0, 0),
    ("embed simt", 24, 24, 0, 0),
    ("gate_up dot4_1", 88, 88, 0, 0),
    ("gate_up dot4_2", 96, 96, 0, 0),
    ("gate_up dot4_4", 104, 80, 0, 0),
    ("gate_up dot4_8", 72, 72, 0, 0),
    ("gate_up gemm", 136, 120, 13056, 0),
    ("gate_up gemv1", 136, 160, 38912, 0),
    ("gate_up gemv2", 176, 216, 38912, 0),
    ("gate_up gemv4", 128, 216, 38912, 0),
    ("gate_up gemv8", 160, 264, 38912, 0),
    ("gate_up gemv_rows", 160, 264, 38912, 0),
    ("gate_up mma128", 240, 128, 16384, 0),
    ("gate_up mma64", 240, 128, 16384, 0),
    ("gate_up thin16", 112, 104, 16384, 0),
    ("gate_up thin32", 136, 120, 32768, 0),
    ("matmul dot4_1", 88, 88, 0, 0),
    ("matmul dot4_2", 104, 112, 0, 0),
    ("matmul dot4_4", 88, 72, 0, 0),
    ("matmul dot4_8", 104, 88, 0, 0),
    ("matmul gemm", 96, 96, 8704, 0),
    ("matmul gemv1", 120, 160, 38912, 0),
    ("matmul gemv2", 128, 208, 38912, 0),
    ("matmul gemv4", 128, 264, 38912, 0),
    ("matmul gemv8", 144, 192, 38912, 0),
    ("matmul gemv_rows", 144, 192, 38912, 0),
    ("matmul mma128", 240, 120, 16384, 0),
    ("matmul mma64", 240, 120, 16384, 0),
    ("matmul thin16", 72, 72, 8192, 0),
    ("matmul thin32", 96, 88, 16384, 0),
    ("mul simt", 32, 32, 0, 0),
    ("norm_rope_append simt", 64, 64, 4096, 0),
    ("qkv gemv1", 168, 296, 38912, 0),
    ("qkv gemv2", 176, 264, 38912, 0),
    ("quantize_rows simt", 64, 32, 0, 0),
    ("rms_norm simt", 72, 48, 0, 0),
    ("rope simt", 64, 56, 0, 0),
    ("rope_append simt", 56, 56, 0, 0),
    ("rope_table simt", 24, 40, 0, 0),
    ("select_rows simt", 24, 24, 0, 0),
];
