//! How a tensor's numbers are stored: the few encodings that kernels see.
//!
//! Files have many formats. Each is mapped, without loss, to one of these, stored as separate *planes*, each
//! plane row by row:
//!
//! | encoding | planes | value of element `i` of a row |
//! |---|---|---|
//! | `Dense`, `Foreign` | values | as stored |
//! | `Affine` | codes, scales, biases | `scale[i/group] * code[i] + bias[i/group]` |
//! | `TwoLevel` with minima | codes, scales u8, minima u8, super `[d, dmin]` f16 | `d*scale*code - dmin*min` |
//! | `TwoLevel` without | codes, scales i8, super `[d]` f16 | `d*scale*(code - 2^(bits-1))` |
//! | `FloatBlock` | codes, scales u8 | `scale[i/group] * element(code[i])` |
//!
//! Codes are one little-endian stream of bits a row, least significant bit first, as MLX stores them; a row of
//! `k` codes takes `k * bits / 8` bytes, so `k * bits` is a multiple of 8.

use std::fmt;

use portolan_device::DType;

/// Elements that share one `[d, dmin]` in a [`Encoding::TwoLevel`] tensor.
pub const SUPER_GROUP: usize = 256;

/// The float of a [`Encoding::FloatBlock`] code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 4 bits: sign, two of exponent, one of mantissa (0, 0.5, 1, 1.5, 2, 3, 4, 6). OCP MX.
    E2M1,
    /// 8 bits: sign, four of exponent, three of mantissa, no infinity ("fn"). OCP MX.
    E4M3,
}

/// The scale of a [`Encoding::FloatBlock`] group, one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockScale {
    /// A power of two, biased by 127; 255 is NaN. OCP MX.
    E8M0,
    /// A float of 8 bits (NVFP4).
    E4M3,
}

/// A plain element that no kernel computes with. A tensor of it can be decoded by
/// [`crate::Expr::Dequantize`], and one that no weight asks for is not in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Foreign {
    F64,
    I64,
    U64,
    I16,
    U16,
    Bool,
    F8E4M3,
    F8E5M2,
    F8E8M0,
}

impl Foreign {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Foreign::F64 | Foreign::I64 | Foreign::U64 => 8,
            Foreign::I16 | Foreign::U16 => 2,
            Foreign::Bool | Foreign::F8E4M3 | Foreign::F8E5M2 | Foreign::F8E8M0 => 1,
        }
    }

    /// As messages have it: `f64`, `f8_e4m3`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Foreign::F64 => "f64",
            Foreign::I64 => "i64",
            Foreign::U64 => "u64",
            Foreign::I16 => "i16",
            Foreign::U16 => "u16",
            Foreign::Bool => "bool",
            Foreign::F8E4M3 => "f8_e4m3",
            Foreign::F8E5M2 => "f8_e5m2",
            Foreign::F8E8M0 => "f8_e8m0",
        }
    }
}

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// Plain elements.
    Dense(DType),
    /// Plain elements of a type that only the loader understands.
    Foreign(Foreign),
    /// Codes of `bits` bits; a scale and a bias (of type `meta`) a group.
    Affine {
        /// 1, 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements a group: 32, 64 or 128 (16 is allowed).
        group: u16,
        /// Type of scales and biases.
        meta: DType,
    },
    /// Codes of `bits` bits with small integer scales a group under an f16 scale per [`SUPER_GROUP`].
    TwoLevel {
        /// 2 to 6.
        bits: u8,
        /// 16 or 32.
        group: u16,
        /// Whether a group has a minimum too (Q2_K, Q4_K, Q5_K), or codes are centred (Q3_K, Q6_K).
        minima: bool,
    },
    /// Small floats under a one-byte scale a group (MXFP4, MXFP8, NVFP4).
    FloatBlock {
        /// The float.
        element: Element,
        /// Elements a group: 16 or 32.
        group: u16,
        /// The scale.
        scale: BlockScale,
    },
}

/// One of the arrays that make up an encoded tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plane {
    /// Values or codes.
    Codes,
    /// One scale a group.
    Scales,
    /// One bias or minimum a group.
    Biases,
    /// f16 scales per [`SUPER_GROUP`]: `[d, dmin]`, or `[d]`.
    Super,
}

impl Encoding {
    /// Bits of one code, or of one dense element.
    pub const fn code_bits(self) -> usize {
        match self {
            Encoding::Dense(dtype) => dtype.size() * 8,
            Encoding::Foreign(foreign) => foreign.size() * 8,
            Encoding::Affine { bits, .. } | Encoding::TwoLevel { bits, .. } => bits as usize,
            Encoding::FloatBlock { element: Element::E2M1, .. } => 4,
            Encoding::FloatBlock { element: Element::E4M3, .. } => 8,
        }
    }

    /// Elements a group; 1 for dense.
    pub const fn group(self) -> usize {
        match self {
            Encoding::Dense(_) | Encoding::Foreign(_) => 1,
            Encoding::Affine { group, .. }
            | Encoding::TwoLevel { group, .. }
            | Encoding::FloatBlock { group, .. } => group as usize,
        }
    }

    /// A row's length must be a multiple of this.
    pub const fn row_multiple(self) -> usize {
        match self {
            Encoding::Dense(_) | Encoding::Foreign(_) => 1,
            Encoding::TwoLevel { .. } => SUPER_GROUP,
            Encoding::Affine { group, .. } | Encoding::FloatBlock { group, .. } => group as usize,
        }
    }

    /// The planes, in the order in which a [`crate::WeightTensor`] holds them.
    pub const fn planes(self) -> &'static [Plane] {
        match self {
            Encoding::Dense(_) | Encoding::Foreign(_) => &[Plane::Codes],
            Encoding::Affine { .. } => &[Plane::Codes, Plane::Scales, Plane::Biases],
            Encoding::TwoLevel { minima: true, .. } => {
                &[Plane::Codes, Plane::Scales, Plane::Biases, Plane::Super]
            }
            Encoding::TwoLevel { minima: false, .. } => &[Plane::Codes, Plane::Scales, Plane::Super],
            Encoding::FloatBlock { .. } => &[Plane::Codes, Plane::Scales],
        }
    }

    /// Bytes of one row of `k` elements in a plane; 0 for a plane that the encoding lacks.
    /// `k` is a multiple of [`Encoding::row_multiple`].
    pub const fn row_bytes(self, plane: Plane, k: usize) -> usize {
        match (self, plane) {
            (_, Plane::Codes) => (k * self.code_bits()).div_ceil(8),
            (Encoding::Affine { group, meta, .. }, Plane::Scales | Plane::Biases) => {
                k / group as usize * meta.size()
            }
            (Encoding::TwoLevel { group, .. }, Plane::Scales) => k / group as usize,
            (Encoding::TwoLevel { group, minima: true, .. }, Plane::Biases) => k / group as usize,
            (Encoding::TwoLevel { minima, .. }, Plane::Super) => k / SUPER_GROUP * if minima { 4 } else { 2 },
            (Encoding::FloatBlock { group, .. }, Plane::Scales) => k / group as usize,
            _ => 0,
        }
    }

    /// Bytes of one row of `k` elements over all planes.
    pub fn row_bytes_total(self, k: usize) -> usize {
        self.planes().iter().map(|&p| self.row_bytes(p, k)).sum()
    }

    /// True for anything but plain elements.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Encoding::Dense(_) | Encoding::Foreign(_))
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Encoding::Dense(dtype) => write!(f, "{dtype}"),
            Encoding::Foreign(foreign) => f.write_str(foreign.name()),
            Encoding::Affine { bits, group, meta } => write!(f, "affine{bits}-g{group}-{meta}"),
            Encoding::TwoLevel { bits, group, minima: true } => write!(f, "k{bits}-g{group}-min"),
            Encoding::TwoLevel { bits, group, minima: false } => write!(f, "k{bits}-g{group}"),
            Encoding::FloatBlock { element, group, scale } => {
                let element = match element {
                    Element::E2M1 => "e2m1",
                    Element::E4M3 => "e4m3",
                };
                let scale = match scale {
                    BlockScale::E8M0 => "e8m0",
                    BlockScale::E4M3 => "e4m3",
                };
                write!(f, "{element}-g{group}-{scale}")
            }
        }
    }
}

/// How the planes of a tensor are arranged for the kernels that read it. Chosen by the planner so that every
/// consumer of the weight accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// The planes as [`Encoding`] describes them, row by row.
    #[default]
    Planes,
    /// Another arrangement, by a name that the kernels crate gives it; made by its [`crate::Repack`].
    Packed(&'static str),
}
