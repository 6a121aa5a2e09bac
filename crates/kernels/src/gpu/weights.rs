//! What `kernels-cuda/weights.cuh` is compiled with to read an encoding, and which rows its fast paths take.

use portolan_weights::{BlockScale, Element, Encoding};

use super::{Defines, type_name};

/// The defines that make the device code read weights of an encoding.
pub(super) fn weight_defines(encoding: Encoding) -> Defines {
    let number = |n: usize| n.to_string();
    let mut defines = match encoding {
        Encoding::Dense(dtype) => return vec![("ENC", number(0)), ("W_T", type_name(dtype))],
        Encoding::Affine { meta, .. } => vec![("ENC", number(1)), ("META_T", type_name(meta))],
        Encoding::TwoLevel { minima, .. } => vec![("ENC", number(2)), ("MINIMA", number(minima.into()))],
        Encoding::FloatBlock { element, scale, .. } => vec![
            ("ENC", number(3)),
            ("ELEMENT", number((element == Element::E4M3).into())),
            ("SCALE", number((scale == BlockScale::E4M3).into())),
        ],
        // Declined by `takes`.
        _ => return Vec::new(),
    };
    defines.push(("BITS", number(encoding.code_bits())));
    defines.push(("GROUP", number(encoding.group())));
    defines
}

/// Elements of a row that a lane takes at once in fast paths: `CHUNK` of weights.cuh.
pub(super) const fn chunk(encoding: Encoding) -> usize {
    match encoding {
        Encoding::Dense(dtype) => 16 / dtype.size(),
        other if other.code_bits() == 8 => 16,
        _ => 32,
    }
}
