//! Few rows in int8 on AMD's GPUs: `matmul_dot4.hip`, of `kernels-hip`.

use portolan_device::DeviceCaps;
use portolan_weights::Encoding;

use super::{
    Answer, CallOf, Decline, Defines, DefinesOf, Entry, GpuKernel, Launch, OpSpec, Product, Variant, check,
    gemv, kernel, number, operands, shared_defines, takes,
};

static DOT4: [GpuKernel; 4] = [dot4::<1>(), dot4::<2>(), dot4::<4>(), dot4::<8>()];

const fn dot4<const ROWS: usize>() -> GpuKernel {
    kernel("matmul_dot4", defines::<ROWS> as DefinesOf, gemv::launch::<ROWS> as CallOf)
}

/// Best first. All sum in one order.
pub(super) fn variants() -> Vec<Variant> {
    let dot4 = |name, rows, kernel| Variant {
        name,
        rows,
        exact: false,
        batch_invariant: true,
        rounds_weights: false,
        // Rounding activations to int8 changes what a model says.
        opt_in: true,
        takes: takes_dot4,
        describe: "int8 rows, affine weights of 4 or 8 bits: four products an instruction",
        entry: Entry::Gpu(kernel),
    };
    vec![
        dot4("dot4_1", (1, 1), &DOT4[0]),
        dot4("dot4_2", (2, 2), &DOT4[1]),
        dot4("dot4_4", (3, 4), &DOT4[2]),
        dot4("dot4_8", (5, 8), &DOT4[3]),
    ]
}

fn takes_dot4(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    check(caps.has_feature("dot4"), Decline::Arch)?;
    takes::matmul_integers(spec, caps)?;
    if spec.input != crate::ValueType::Q8Rows {
        return Err(Decline::Dtype);
    }
    operands(spec)?;
    match spec.weights.first().map(|w| w.encoding) {
        Some(Encoding::Affine { bits: 4 | 8, group, .. }) => check(group.is_multiple_of(32), Decline::Dtype),
        _ => Err(Decline::Dtype),
    }
}

fn defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let mut defines = shared_defines(launch);
    // Signed by unsigned bytes came with WMMA.
    let mixed = ["wmma_gfx11", "wmma_gfx12"].iter().any(|feature| caps.has_feature(feature));
    let lines = gemv::wave_rows(&Product::new(launch), ROWS, caps);
    defines.extend([number("ROWS", ROWS), number("WROWS", lines), number("MIXED", mixed.into())]);
    defines
}
