//! `cargo xtask synth`: checkpoints with the shapes of published models and random weights.
//!
//! They are for measuring, where the published ones are not at hand. Numbers are of a size that keeps
//! activations and logits in range. The same arguments give the same bytes on every machine. Nothing of the
//! source tree is needed, so the program can be copied to another machine and run there.

mod fill;
mod folder;
mod gguf;
mod models;
mod param;
mod random;
mod safetensors;
mod tensor;
#[cfg(test)]
mod tests;
mod vocab;
mod write;

use std::fs;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use fill::Half;
use folder::Filling;
use models::{Cut, Name, Spec, spec};
use param::{Kind, RouterBits};
use tensor::{GgufType, Target, Tensor, tensors};
use write::File;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// What to make.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The model whose shapes to take.
    name: Name,
    /// Bits of a weight: 2, 3, 4, 5, 6 or 8 as MLX quantizes, or 16 for plain weights. gpt-oss-20b has 4, its
    /// published MXFP4, or 16.
    #[arg(long, default_value_t = 4, conflicts_with = "gguf")]
    bits: u8,
    /// Weights that share a scale: 32, 64 or 128.
    #[arg(long, default_value_t = 64, conflicts_with = "gguf")]
    group_size: usize,
    /// Write one GGUF file of this type in place of safetensors.
    #[arg(long, value_enum)]
    gguf: Option<GgufType>,
    /// Type of scales and of what is not quantized, in safetensors.
    #[arg(long, value_enum, default_value = "bf16", conflicts_with = "gguf")]
    dtype: Half,
    /// Only the first layers.
    #[arg(long)]
    layers: Option<usize>,
    /// Another seed gives other weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most GiB of a safetensors file.
    #[arg(long, default_value_t = 5.0, conflicts_with = "gguf")]
    shard_gib: f64,
    /// Copy the tokenizer of this folder.
    #[arg(long, conflicts_with = "gguf")]
    tokenizer: Option<PathBuf>,
    /// The folder to write into.
    #[arg(short, long, required_unless_present = "plan")]
    output: Option<PathBuf>,
    /// Write into a folder that is not empty: files of the same names and other safetensors files are replaced.
    #[arg(long)]
    force: bool,
    /// Print the tensors and the sizes, and write nothing.
    #[arg(long)]
    plan: bool,
    /// Threads; as many as the machine has by default. The bytes do not depend on it.
    #[arg(long)]
    threads: Option<usize>,
    /// Another size of the vocabulary, for tests.
    #[arg(long, hide = true)]
    vocab: Option<usize>,
    /// Only so many experts, for tests.
    #[arg(long, hide = true)]
    experts: Option<usize>,
}

/// A checkpoint before it is written.
struct Plan {
    spec: Spec,
    target: Target,
    tensors: Vec<Tensor>,
}

/// Writes a checkpoint, or prints what it would be.
///
/// # Errors
/// If the arguments contradict each other or the model's shapes, or the folder cannot be written.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let began = Instant::now();
    let plan = Plan::new(args)?;
    if args.plan {
        plan.print();
    }
    let Some(output) = args.output.as_ref().filter(|_| !args.plan) else { return Ok(true) };
    let name = plan.spec.name;
    let (files, texts) = plan.files((args.shard_gib * GIB) as u64);
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let filling = Filling::begin(output, bytes, args.force)?;
    if let Some(tokenizer) = &args.tokenizer {
        filling.copy_tokenizer(tokenizer)?;
    }
    for (name, value) in &texts {
        let path = filling.path().join(name);
        let text = serde_json::to_string_pretty(value).context("cannot spell JSON")? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let threads = args.threads.or(available_parallelism().ok().map(usize::from)).unwrap_or(1);
    write::write(filling.path(), &files, threads)?;
    filling.finish()?;
    let (seconds, files) = (began.elapsed().as_secs_f64(), files.len() + texts.len());
    println!("{name}: {files} files, {bytes} bytes, {seconds:.1} s, in {}", output.display());
    Ok(true)
}

impl Plan {
    fn new(args: &Args) -> Result<Self> {
        let too_small = |what: &str, given: Option<usize>, least: usize| match given {
            Some(n) if n < least => bail!("--{what} {n}: at least {least}"),
            _ => Ok(()),
        };
        too_small("layers", args.layers, 1)?;
        too_small("vocab", args.vocab, 2)?;
        too_small("experts", args.experts, 1)?;
        too_small("threads", args.threads, 1)?;
        if args.shard_gib.is_nan() || args.shard_gib <= 0.0 {
            bail!("--shard-gib {}: more than 0", args.shard_gib);
        }
        let spec = spec(args.name, Cut { layers: args.layers, vocab: args.vocab, experts: args.experts });
        let target = target(&spec, args)?;
        let tensors = tensors(&spec.params, target, args.seed)?;
        Ok(Plan { spec, target, tensors })
    }

    fn print(&self) {
        for Tensor { name, dtype, shape, bytes, .. } in &self.tensors {
            println!("{name} {} {shape:?} {bytes}", dtype.name);
        }
        let bytes: u64 = self.tensors.iter().map(|tensor| tensor.bytes).sum();
        let (name, count, parameters) = (self.spec.name, self.tensors.len(), self.spec.parameters());
        println!("{name}: {parameters} parameters, {count} tensors, {bytes} bytes");
    }

    /// The files of tensors, and the texts beside them by name. A file has at most `limit` bytes of tensors.
    fn files(self, limit: u64) -> (Vec<File>, Vec<(&'static str, Value)>) {
        if let Target::Gguf(kind) = self.target {
            return (vec![gguf::layout(&self.spec, kind, self.tensors)], Vec::new());
        }
        let format = if matches!(self.target, Target::Mlx { .. }) { "mlx" } else { "pt" };
        let mut texts = vec![("config.json", config(&self.spec, self.target))];
        let (files, index) = safetensors::layout(self.tensors, limit, format);
        texts.extend(index.map(|index| ("model.safetensors.index.json", index)));
        (files, texts)
    }
}

/// The kind of checkpoint that is asked for.
fn target(spec: &Spec, args: &Args) -> Result<Target> {
    let &Args { bits, group_size: group, dtype, .. } = args;
    if let Some(kind) = args.gguf {
        return Ok(Target::Gguf(kind));
    }
    Ok(match bits {
        16 => Target::Dense(dtype),
        4 if spec.is_mxfp4() => Target::MxFp4(dtype),
        _ if spec.is_mxfp4() => bail!("--bits {bits}: {} has 4 (MXFP4) or 16", spec.name),
        2..=6 | 8 if [32, 64, 128].contains(&group) => Target::Mlx { bits, group, dtype },
        2..=6 | 8 => bail!("--group-size {group}: 32, 64 or 128"),
        _ => bail!("--bits {bits}: 2, 3, 4, 5, 6, 8 or 16"),
    })
}

/// `config.json`, with what MLX or the publisher notes on quantization.
fn config(spec: &Spec, target: Target) -> Value {
    let mut config = spec.config.clone();
    let dtype = match target {
        Target::Dense(Half::F16) | Target::MxFp4(Half::F16) | Target::Mlx { dtype: Half::F16, .. } => {
            "float16"
        }
        _ => "bfloat16",
    };
    if let Some(old) = config.get_mut("torch_dtype") {
        *old = json!(dtype);
    }
    match target {
        Target::Mlx { bits, group, .. } => {
            let mut block = Map::new();
            block.insert("group_size".to_owned(), json!(group));
            block.insert("bits".to_owned(), json!(bits));
            block.insert("mode".to_owned(), json!("affine"));
            for param in &spec.params {
                if let Kind::Router { mlx: RouterBits::Fixed(bits) } = param.kind {
                    let module = param.mlx.trim_end_matches(".weight").to_owned();
                    block.insert(module, json!({ "group_size": 64, "bits": bits }));
                }
            }
            config["quantization"] = Value::Object(block.clone());
            config["quantization_config"] = Value::Object(block);
        }
        Target::MxFp4(_) => {
            config["quantization_config"] = json!({
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
                "quant_method": "mxfp4",
            });
        }
        Target::Dense(_) | Target::Gguf(_) => {}
    }
    config
}
