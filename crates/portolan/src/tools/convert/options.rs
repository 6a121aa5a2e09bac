//! What a user may ask of a conversion.

use std::str::FromStr;

use portolan_weights::can_quantize;

use crate::{Error, Result};

use super::choose::affine;

/// How numbers are quantized, under MLX's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantMode {
    /// Codes with a scale and a bias a group.
    Affine,
    /// E2M1 under a power of two, groups of 32.
    MxFp4,
}

impl QuantMode {
    /// As in `--mode`.
    pub const fn name(self) -> &'static str {
        match self {
            QuantMode::Affine => "affine",
            QuantMode::MxFp4 => "mxfp4",
        }
    }
}

impl FromStr for QuantMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "affine" => Ok(QuantMode::Affine),
            "mxfp4" => Ok(QuantMode::MxFp4),
            _ => Err(format!("unknown mode '{text}': expected affine or mxfp4")),
        }
    }
}

/// Bits of some modules that differ from the others': `--keep lm_head=8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// A module's name or a part of its path: `lm_head`, `layers.0`, `self_attn.v_proj`.
    pub module: String,
    /// Bits a weight, quantized affine; 16 for not quantized.
    pub bits: u8,
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("'{text}' is not MODULE=BITS, such as lm_head=8");
        let (module, bits) = text.split_once('=').ok_or_else(expected)?;
        let bits: u8 = bits.trim().parse().map_err(|_| expected())?;
        let module = module.trim().trim_end_matches(".weight");
        if module.is_empty() {
            return Err(expected());
        }
        if !is_width(bits) && bits != 16 {
            return Err(format!("'{text}': {bits} bits, expected 2, 3, 4, 5, 6, 8, or 16 for not quantized"));
        }
        Ok(Keep { module: module.to_owned(), bits })
    }
}

impl Keep {
    /// Whether a module's path is meant: the parts of `module` stand in it one after another.
    pub(super) fn matches(&self, path: &str) -> bool {
        format!(".{path}.").contains(&format!(".{}.", self.module))
    }
}

fn is_width(bits: u8) -> bool {
    matches!(bits, 2..=6 | 8)
}

/// What to convert to. What is `None` follows from the source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Bits a weight: 2, 3, 4, 5, 6 or 8.
    pub bits: Option<u8>,
    /// Elements that share a scale: 32, 64 or 128.
    pub group_size: Option<u16>,
    /// How to quantize.
    pub mode: Option<QuantMode>,
    /// Modules with bits of their own; of several that fit a module, the last counts.
    pub keep: Vec<Keep>,
    /// Most bytes of tensors in one file.
    pub shard_bytes: u64,
}

impl ConvertOptions {
    /// What fits the limits of the usual hosts: 5 GB.
    pub const SHARD_BYTES: u64 = 5_000_000_000;
}

impl Default for ConvertOptions {
    fn default() -> Self {
        ConvertOptions {
            bits: None,
            group_size: None,
            mode: None,
            keep: Vec::new(),
            shard_bytes: ConvertOptions::SHARD_BYTES,
        }
    }
}

impl ConvertOptions {
    /// Refuses numbers that MLX has no quantization for.
    pub(super) fn check(&self) -> Result<()> {
        let bad = |option, value: String, expected| Err(Error::BadOption { option, value, expected });
        if let Some(bits) = self.bits.filter(|&bits| !is_width(bits)) {
            return bad("bits", bits.to_string(), "2, 3, 4, 5, 6 or 8");
        }
        if let Some(group) = self.group_size.filter(|&group| !can_quantize(affine(4, group))) {
            return bad("group size", group.to_string(), "32, 64 or 128");
        }
        if let Some(keep) = self.keep.iter().find(|k| !is_width(k.bits) && k.bits != 16) {
            return bad("keep", keep.bits.to_string(), "2, 3, 4, 5, 6, 8, or 16 for not quantized");
        }
        if self.shard_bytes == 0 {
            return bad("shard size", "0".to_owned(), "at least 1 byte");
        }
        if self.mode == Some(QuantMode::MxFp4) {
            if let Some(bits) = self.bits.filter(|&bits| bits != 4) {
                return bad("bits", bits.to_string(), "4, the only width of mode mxfp4");
            }
            if let Some(group) = self.group_size.filter(|&group| group != 32) {
                return bad("group size", group.to_string(), "32, the only group of mode mxfp4");
            }
        }
        Ok(())
    }

    /// Whether anything was asked of all modules.
    pub(super) fn is_explicit(&self) -> bool {
        self.bits.is_some() || self.group_size.is_some() || self.mode.is_some()
    }
}
