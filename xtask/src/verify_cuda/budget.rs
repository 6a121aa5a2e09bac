//! What a kernel of each variant may take at most, on any architecture.
//!
//! A line is the most that the sample takes (`cargo xtask verify-cuda --only compile` prints it), with registers rounded
//! up to the 8 in which the hardware hands them out. A change that takes more is to say so here, and why that is worth
//! it: more registers or shared memory mean fewer blocks side by side, and local memory means spills.
//!
//! Two lines have local memory. `add_rms_norm` spills 8 bytes on `sm_90a` in its smallest form, where a row is read once.
//! `attention mma` spills 24 bytes on `sm_120` with heads of 128 elements, at the most registers a thread can have.

/// Most of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    /// Registers a thread.
    pub(super) registers: u32,
    /// Bytes of static shared memory a block.
    pub(super) shared: u32,
    /// Bytes of local memory a thread.
    pub(super) local: u32,
}

/// The budget of a variant by its name, op and variant.
pub(super) fn of(name: &str) -> Option<Budget> {
    let line = BUDGET.iter().find(|line| line.0 == name)?;
    Some(Budget { registers: line.1, shared: line.2, local: line.3 })
}

/// Variant, registers a thread, bytes of shared memory a block, bytes of local memory a thread.
#[rustfmt::skip]
pub(super) const BUDGET: &[(&str, u32, u32, u32)] = &[
    ("activate simt", 40, 0, 0),
    ("add simt", 32, 0, 0),
    ("add_rms_norm simt", 56, 32, 8),
    ("argmax simt", 40, 64, 0),
    ("attention decode", 255, 8192, 0),
    ("attention mma", 255, 35328, 24),
    ("attention split", 128, 18180, 0),
    ("cache_append simt", 32, 0, 0),
    ("embed simt", 32, 0, 0),
    ("gate_up gemm", 80, 13056, 0),
    ("gate_up gemv1", 96, 36864, 0),
    ("gate_up gemv2", 104, 36864, 0),
    ("gate_up gemv4", 96, 36864, 0),
    ("gate_up gemv8", 120, 36864, 0),
    ("gate_up gemv_rows", 120, 36864, 0),
    ("gate_up mma128", 128, 0, 0),
    ("gate_up mma64", 128, 0, 0),
    ("gate_up thin16", 128, 0, 0),
    ("gate_up thin32", 184, 0, 0),
    ("gate_up thin8", 128, 0, 0),
    ("matmul gemm", 64, 8704, 0),
    ("matmul gemv1", 88, 36864, 0),
    ("matmul gemv2", 104, 36864, 0),
    ("matmul gemv4", 112, 36864, 0),
    ("matmul gemv8", 112, 36864, 0),
    ("matmul gemv_rows", 112, 36864, 0),
    ("matmul mma128", 128, 0, 0),
    ("matmul mma64", 128, 0, 0),
    ("matmul thin16", 96, 0, 0),
    ("matmul thin32", 112, 0, 0),
    ("matmul thin8", 80, 0, 0),
    ("mul simt", 32, 0, 0),
    ("norm_rope_append simt", 64, 4096, 0),
    ("qkv gemv1", 128, 37888, 0),
    ("qkv gemv2", 128, 37888, 0),
    ("quantize_rows simt", 32, 0, 0),
    ("rms_norm simt", 72, 0, 0),
    ("rope simt", 56, 0, 0),
    ("rope_append simt", 56, 0, 0),
    ("rope_table simt", 24, 0, 0),
    ("select_rows simt", 24, 0, 0),
];
