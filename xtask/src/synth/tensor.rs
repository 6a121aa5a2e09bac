//! From parameters to the tensors of a file.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::fill::{Fill, Half, Values};
use super::param::{Kind, Param, RouterBits};
use super::random::stream;

/// The element type of a tensor: its name in safetensors and its number in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dtype {
    /// In the header of a safetensors file; GGUF's name where only GGUF has the type.
    pub(super) name: &'static str,
    /// `ggml_type`.
    pub(super) ggml: u32,
}

const U8: Dtype = Dtype { name: "U8", ggml: u32::MAX };
const U32: Dtype = Dtype { name: "U32", ggml: u32::MAX };
const F32: Dtype = Dtype { name: "F32", ggml: 0 };
const F16: Dtype = Dtype { name: "F16", ggml: 1 };
const BF16: Dtype = Dtype { name: "BF16", ggml: 30 };
const Q4_0: Dtype = Dtype { name: "Q4_0", ggml: 2 };
const Q4_1: Dtype = Dtype { name: "Q4_1", ggml: 3 };
const Q8_0: Dtype = Dtype { name: "Q8_0", ggml: 8 };
const MXFP4: Dtype = Dtype { name: "MXFP4", ggml: 39 };

fn half(dtype: Half) -> Dtype {
    match dtype {
        Half::Bf16 => BF16,
        Half::F16 => F16,
    }
}

/// How matrices are stored in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum GgufType {
    /// 4 bits and a scale, 18 bytes for 32 weights.
    #[value(name = "q4_0")]
    Q4_0,
    /// 4 bits, a scale and a minimum, 20 bytes for 32 weights.
    #[value(name = "q4_1")]
    Q4_1,
    /// 8 bits and a scale, 34 bytes for 32 weights.
    #[value(name = "q8_0")]
    Q8_0,
    /// Plain bf16.
    #[value(name = "bf16")]
    Bf16,
    /// Plain f16.
    #[value(name = "f16")]
    F16,
}

impl GgufType {
    /// As file names have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            GgufType::Q4_0 => "q4_0",
            GgufType::Q4_1 => "q4_1",
            GgufType::Q8_0 => "q8_0",
            GgufType::Bf16 => "bf16",
            GgufType::F16 => "f16",
        }
    }

    /// `general.file_type`.
    pub(super) fn file_type(self) -> u32 {
        match self {
            GgufType::F16 => 1,
            GgufType::Q4_0 => 2,
            GgufType::Q4_1 => 3,
            GgufType::Q8_0 => 7,
            GgufType::Bf16 => 32,
        }
    }
}

/// The kind of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Hugging Face, not quantized.
    Dense(Half),
    /// Hugging Face as gpt-oss is published: experts in MXFP4, all else 16-bit.
    MxFp4(Half),
    /// MLX, affine.
    Mlx {
        /// Of a code.
        bits: u8,
        /// Weights that share a scale.
        group: usize,
        /// Of scales, biases and what is not quantized.
        dtype: Half,
    },
    /// GGUF.
    Gguf(GgufType),
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Its name.
    pub(super) name: String,
    /// Its type.
    pub(super) dtype: Dtype,
    /// As the header says it, outermost dimension first.
    pub(super) shape: Vec<usize>,
    /// Its size.
    pub(super) bytes: u64,
    /// Its random numbers.
    pub(super) stream: u64,
    /// How they become bytes.
    pub(super) fill: Arc<Fill>,
}

/// The tensors of a checkpoint, in the order of the parameters.
///
/// # Errors
/// If a row does not divide into groups or blocks.
pub(super) fn tensors(params: &[Param], target: Target, seed: u64) -> Result<Vec<Tensor>> {
    let mut made = Maker { seed, tensors: Vec::new() };
    for param in params {
        match target {
            Target::Dense(dtype) => made.hf(param, dtype, false),
            Target::MxFp4(dtype) => made.hf(param, dtype, true),
            Target::Mlx { bits, group, dtype } => made.mlx(param, bits, group, dtype)?,
            Target::Gguf(kind) => made.gguf(param, kind)?,
        }
    }
    Ok(made.tensors)
}

struct Maker {
    seed: u64,
    tensors: Vec<Tensor>,
}

impl Maker {
    fn push(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: u64, fill: &Arc<Fill>) {
        self.push_from(name, name, dtype, shape, bytes, fill);
    }

    /// With the random numbers of the tensor `of`.
    fn push_from(
        &mut self,
        of: &str,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        bytes: u64,
        fill: &Arc<Fill>,
    ) {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            bytes,
            stream: stream(self.seed, of),
            fill: Arc::clone(fill),
        });
    }

    fn plain(&mut self, name: &str, dtype: Dtype, shape: &[usize], fill: &Arc<Fill>) {
        let size = if dtype == F32 { 4 } else { 2 };
        self.push(name, dtype, shape, elements(shape) * size, fill);
    }

    fn hf(&mut self, param: &Param, dtype: Half, mxfp4: bool) {
        if param.hf.is_empty() {
            return;
        }
        let (name, shape) = (param.hf.as_str(), param.shape.as_slice());
        let k = last(shape);
        match &param.kind {
            Kind::MxFp4 if mxfp4 => {
                let (groups, mut blocks) = ([&shape[..shape.len() - 1], &[k / 32]].concat(), shape.to_vec());
                blocks.truncate(shape.len() - 1);
                blocks.extend([k / 32, 16]);
                let (codes, scales) = (elements(shape) / 2, elements(shape) / 32);
                self.push(&format!("{name}_blocks"), U8, &blocks, codes, &Arc::new(Fill::Bits));
                let fill = Arc::new(Fill::e8m0(rms(1.0, k)));
                self.push(&format!("{name}_scales"), U8, &groups, scales, &fill);
            }
            // Plain experts are stored the other way round, `[experts, in, out]`.
            Kind::MxFp4 => {
                let mut shape = shape.to_vec();
                let n = shape.len();
                shape.swap(n - 2, n - 1);
                let fill = Arc::new(Fill::half(dtype, Values::Normal(rms(1.0, k))));
                self.plain(name, half(dtype), &shape, &fill);
            }
            Kind::Literal(_) => {}
            &Kind::Plain { values, f32: true } => {
                self.plain(name, F32, shape, &Arc::new(Fill::single(values)))
            }
            kind => {
                let fill = Arc::new(Fill::half(dtype, dense_values(kind, k)));
                if !name.contains("{e}") {
                    return self.plain(name, half(dtype), shape, &fill);
                }
                for expert in 0..shape[0] {
                    let name = name.replace("{e}", &expert.to_string());
                    self.plain(&name, half(dtype), &shape[1..], &fill);
                }
            }
        }
    }

    fn mlx(&mut self, param: &Param, bits: u8, group: usize, dtype: Half) -> Result<()> {
        if param.mlx.is_empty() {
            return Ok(());
        }
        let (name, shape) = (param.mlx.as_str(), param.mlx_shape.as_ref().unwrap_or(&param.shape));
        let k = last(shape);
        let (bits, group, gain) = match param.kind {
            Kind::Matrix { gain } => (bits, group, gain),
            Kind::Router { mlx: RouterBits::Asked } => (bits, group, 1.0),
            Kind::Router { mlx: RouterBits::Fixed(bits) } => (bits, 64, 1.0),
            Kind::MxFp4 | Kind::Literal(_) => return Ok(()),
            Kind::Plain { values, f32: true } => {
                self.plain(name, F32, shape, &Arc::new(Fill::single(values)));
                return Ok(());
            }
            Kind::Plain { .. } | Kind::Router { .. } => {
                let fill = Arc::new(Fill::half(dtype, dense_values(&param.kind, k)));
                self.plain(name, half(dtype), shape, &fill);
                return Ok(());
            }
        };
        if !k.is_multiple_of(group) || !(k * bits as usize).is_multiple_of(32) {
            bail!(
                "{name}: rows of {k} do not divide into groups of {group} at {bits} bits; take --group-size 32 or 64"
            );
        }
        let (module, rows) = (name.trim_end_matches(".weight"), &shape[..shape.len() - 1]);
        let codes = [rows, &[k * bits as usize / 32]].concat();
        self.push(name, U32, &codes, elements(&codes) * 4, &Arc::new(Fill::Bits));
        let (groups, of) = ([rows, &[k / group]].concat(), format!("{module}.scales"));
        for (what, fill) in ["scales", "biases"].into_iter().zip(Fill::affine(bits, dtype, rms(gain, k))) {
            let name = format!("{module}.{what}");
            self.push_from(&of, &name, half(dtype), &groups, elements(&groups) * 2, &Arc::new(fill));
        }
        Ok(())
    }

    fn gguf(&mut self, param: &Param, kind: GgufType) -> Result<()> {
        if param.gguf.is_empty() {
            return Ok(());
        }
        let (name, shape) = (param.gguf.as_str(), param.gguf_shape.as_ref().unwrap_or(&param.shape));
        let k = last(shape);
        let (dtype, fill) = match &param.kind {
            Kind::Matrix { gain } => {
                let rms = rms(*gain, k);
                match kind {
                    GgufType::Q4_0 => (Q4_0, Fill::q4_0(rms)),
                    GgufType::Q4_1 => (Q4_1, Fill::q4_1(rms)),
                    GgufType::Q8_0 => (Q8_0, Fill::q8_0(rms)),
                    GgufType::Bf16 => (BF16, Fill::half(Half::Bf16, Values::Normal(rms))),
                    GgufType::F16 => (F16, Fill::half(Half::F16, Values::Normal(rms))),
                }
            }
            Kind::MxFp4 => (MXFP4, Fill::mxfp4_blocks(rms(1.0, k))),
            Kind::Literal(numbers) => {
                (F32, Fill::Literal(numbers.iter().flat_map(|n| n.to_le_bytes()).collect()))
            }
            kind => (F32, Fill::single(dense_values(kind, k))),
        };
        let (block, size) = match fill {
            Fill::Blocks { .. } => (32, fill.unit() as u64),
            _ if dtype == F32 => (1, 4),
            _ => (1, 2),
        };
        if !k.is_multiple_of(block) {
            bail!("{name}: rows of {k} do not divide into blocks of {block}");
        }
        self.push(name, dtype, shape, elements(shape) / block as u64 * size, &Arc::new(fill));
        Ok(())
    }
}

/// The numbers of a parameter that is not quantized.
fn dense_values(kind: &Kind, k: usize) -> Values {
    match *kind {
        Kind::Plain { values, .. } => values,
        Kind::Matrix { gain } => Values::Normal(rms(gain, k)),
        Kind::Router { .. } | Kind::MxFp4 | Kind::Literal(_) => Values::Normal(rms(1.0, k)),
    }
}

fn rms(gain: f32, k: usize) -> f32 {
    gain / (k as f32).sqrt()
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|&n| n as u64).product()
}

fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}
