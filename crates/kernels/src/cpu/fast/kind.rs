//! What a tile of int8 products needs to know of an encoding when it is compiled.

use portolan_device::DType;

use super::rows8::Scales;

/// How a code becomes a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The number itself, not negative: it can be multiplied as it stands.
    Unsigned,
    /// Minus this.
    Centred(i8),
    /// Eight bits, stored minus 128.
    Signed,
    /// Twice a float of 4 bits.
    E2M1,
}

/// What a tile needs to know when it is compiled.
pub(super) trait Kind {
    const BITS: usize;
    const CODE: Code;
    const SCALES: Scales;
    /// Scales of a sub-group of 32: one or two.
    const HALVES: usize;
    /// Quads whose products can be summed in 16 bits: a pair of products is at most `2 * 127 * |code|`.
    const QUADS_IN_I16: usize;
    /// Quads that are unpacked at once and stay in registers while rows pass by: a code with a sign takes two.
    const UNIT: usize = match Self::CODE {
        Code::Unsigned => 8 / Self::HALVES,
        _ => 4,
    };
}

pub(super) struct Affine<const BITS: usize, const META: u8>;

impl<const BITS: usize, const META: u8> Kind for Affine<BITS, META> {
    const BITS: usize = BITS;
    const CODE: Code = if BITS == 8 { Code::Signed } else { Code::Unsigned };
    const SCALES: Scales = Scales::Affine(match META {
        1 => DType::F16,
        2 => DType::BF16,
        _ => DType::F32,
    });
    const HALVES: usize = 1;
    const QUADS_IN_I16: usize = match BITS {
        8 => 1,
        6 => 2,
        5 => 4,
        _ => 8,
    };
}

macro_rules! kind {
    ($name:ident, $bits:expr, $code:expr, $scales:expr, $halves:expr, $quads:expr) => {
        pub(super) struct $name;
        impl Kind for $name {
            const BITS: usize = $bits;
            const CODE: Code = $code;
            const SCALES: Scales = $scales;
            const HALVES: usize = $halves;
            const QUADS_IN_I16: usize = $quads;
        }
    };
}

kind!(Q2K, 2, Code::Unsigned, Scales::Minima, 2, 4);
kind!(Q3K, 3, Code::Centred(4), Scales::Centred, 2, 4);
kind!(Q4K, 4, Code::Unsigned, Scales::Minima, 1, 8);
kind!(Q5K, 5, Code::Unsigned, Scales::Minima, 1, 4);
kind!(Q6K, 6, Code::Centred(32), Scales::Centred, 2, 4);
kind!(MxFp4, 4, Code::E2M1, Scales::E8M0, 1, 8);
kind!(NvFp4, 4, Code::E2M1, Scales::E4M3, 2, 4);
