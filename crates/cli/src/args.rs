//! Flags. Each command's help ends with an example.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use portolan::{
    CacheType, LoadOptions, SamplingParams,
    device::DeviceChoice,
    tools::{
        compare::{CompareOptions, DEFAULT_ERROR},
        convert::{ConvertOptions, Keep, QuantMode},
        trace::TraceOptions,
    },
    weights::LoadMode,
};

/// What a model argument may be.
const MODEL: &str = "A folder with a checkpoint, a .gguf or .safetensors file, `smollm2`, or a hub name \
                     (owner/name, owner/name@revision, owner/name:FILE.gguf)";

#[derive(Parser)]
#[command(
    name = "portolan",
    version,
    about = "Run large language models from the checkpoints you already have"
)]
pub(crate) struct Args {
    /// Log more to stderr: once for information, twice for details
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Chat with a model: one answer, or a conversation when no prompt is given
    #[command(
        after_help = "Example:\n  portolan run \"What is the capital of France?\"\n  portolan run ./Qwen3-0.6B-4bit \
                            \"Name three rivers\""
    )]
    Run(RunArgs),
    /// Generate text after a prompt
    #[command(
        after_help = "Example:\n  portolan generate -m smollm2 -p \"Once upon a time\" -n 64 --temp 0.8 --seed 1"
    )]
    Generate(GenerateArgs),
    /// Write the logits of token ids to a safetensors file; needs no tokenizer
    #[command(
        after_help = "Example:\n  portolan logits -m ./model --ids 1,2,3 --greedy 8 --exact -o logits.safetensors"
    )]
    Logits(LogitsArgs),
    /// Write what a model makes of each position of a text, for compare-traces
    #[command(
        after_help = "Example:\n  portolan trace -m smollm2 --text book.txt --exact -o exact.trace\n  \
                            portolan trace -m smollm2 --text book.txt --width 8 -o fast8.trace"
    )]
    Trace(TraceArgs),
    /// Hold a trace against a reference; the exit code is the verdict
    #[command(
        after_help = "Exit codes: 0 pass, 3 fail, 4 inconclusive, 5 mismatch; 1 is an error, 2 a wrong flag\n\n\
                      Example:\n  portolan compare-traces exact.trace fast.trace --error 0.4"
    )]
    CompareTraces(CompareTracesArgs),
    /// Fetch a model into the cache and print its path
    #[command(after_help = "Example:\n  portolan pull mlx-community/Qwen3-0.6B-4bit")]
    Pull(PullArgs),
    /// Show what a checkpoint is and what memory it would take; reads no weights
    #[command(after_help = "Example:\n  portolan inspect smollm2 --context 4096")]
    Inspect(InspectArgs),
    /// Write a model as an MLX checkpoint, quantized or as it is
    #[command(
        after_help = "Without --bits, --group-size and --mode, what is quantized stays as it is where MLX can hold it, \
                      and plain weights get 4 bits in groups of 64.\n\n\
                      Example:\n  portolan convert model.Q4_1.gguf ./model-mlx --dry-run\n  \
                            portolan convert ./Qwen3-0.6B ./Qwen3-0.6B-4bit --bits 4 --group-size 64 --keep lm_head=8"
    )]
    Convert(ConvertArgs),
    /// Print the chart of kernel ports
    #[command(after_help = "Example:\n  portolan ports --json")]
    Ports(PortsArgs),
    /// Measure prefill and decode
    #[command(after_help = "Example:\n  portolan bench -m smollm2 -p 512 -n 128 -d 0,4096 -r 5 --csv")]
    Bench(BenchArgs),
}

/// How a model is loaded.
#[derive(clap::Args, Clone)]
pub(crate) struct LoadArgs {
    /// Where it runs: auto, cpu, cuda, cuda:N, rocm, rocm:N
    #[arg(long, default_value = "auto", help_heading = "Loading")]
    device: DeviceChoice,
    /// Threads of the CPU [default: one a core, or PORTOLAN_THREADS]
    #[arg(short, long, default_value_t = 0, hide_default_value = true, help_heading = "Loading", allow_negative_numbers = true, value_parser = whole)]
    threads: usize,
    /// Most tokens of a conversation [default: the model's own, up to 8192]
    #[arg(short, long, help_heading = "Loading", allow_negative_numbers = true, value_parser = whole)]
    context: Option<usize>,
    /// Tokens that the cache holds over all conversations [default: the context]
    #[arg(long, help_heading = "Loading", allow_negative_numbers = true, value_parser = whole)]
    cache_tokens: Option<usize>,
    /// Type of the cache: f16, bf16, f32
    #[arg(long, help_heading = "Loading")]
    cache_type: Option<CacheType>,
    /// Type of activations on a GPU: bf16, f16, f32 [default: bf16]
    #[arg(long, value_name = "TYPE", help_heading = "Loading")]
    activations: Option<CacheType>,
    /// When weights are loaded: eager (before the first token) or lazy (each at its first use)
    #[arg(long, default_value = "eager", value_name = "WHEN", help_heading = "Loading")]
    load: LoadMode,
    /// Plain f32 kernels and an f32 cache: slow, and the reference for everything else
    #[arg(long, help_heading = "Loading")]
    exact: bool,
    /// Only kernels whose result for a row does not depend on the rows beside it
    #[arg(long, help_heading = "Loading")]
    deterministic: bool,
}

impl LoadArgs {
    pub(crate) fn options(&self) -> LoadOptions {
        let mut options = LoadOptions::default();
        options.device = self.device;
        options.threads = self.threads;
        options.context = self.context;
        options.cache_tokens = self.cache_tokens;
        options.cache = self.cache_type;
        options.activation = self.activations;
        options.load = self.load;
        options.exact = self.exact;
        options.deterministic = self.deterministic;
        options
    }
}

/// How tokens are chosen.
#[derive(clap::Args, Clone)]
pub(crate) struct SampleArgs {
    /// Temperature; 0 takes the likeliest token
    #[arg(long = "temp", default_value_t = 0.0, help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Only the K likeliest tokens; 0 for all
    #[arg(long, default_value_t = 0, help_heading = "Sampling", allow_negative_numbers = true, value_parser = whole)]
    top_k: usize,
    /// Only the likeliest tokens that together reach this probability
    #[arg(long, default_value_t = 1.0, help_heading = "Sampling", allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Only tokens at least this likely relative to the likeliest
    #[arg(long, default_value_t = 0.0, help_heading = "Sampling", allow_negative_numbers = true)]
    min_p: f32,
    /// Penalty on tokens that have occurred; 1 for none
    #[arg(long, default_value_t = 1.0, help_heading = "Sampling", allow_negative_numbers = true)]
    repeat_penalty: f32,
    /// Penalty on a generated token for each time it occurred
    #[arg(long, default_value_t = 0.0, help_heading = "Sampling", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Penalty on a token that was generated at all
    #[arg(long, default_value_t = 0.0, help_heading = "Sampling", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Key of the random numbers: the same seed gives the same text
    #[arg(long, default_value_t = 0, help_heading = "Sampling", allow_negative_numbers = true)]
    seed: u64,
}

impl SampleArgs {
    pub(crate) fn params(&self) -> SamplingParams {
        let mut params = SamplingParams::default();
        params.temperature = self.temperature;
        params.top_k = self.top_k;
        params.top_p = self.top_p;
        params.min_p = self.min_p;
        params.repeat_penalty = self.repeat_penalty;
        params.frequency_penalty = self.frequency_penalty;
        params.presence_penalty = self.presence_penalty;
        params.seed = self.seed;
        params
    }
}

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// MODEL and PROMPT, or one of them: what names a model that is there, or looks like a path or a hub name, is the
    /// model; anything else is the prompt, for the default model
    #[arg(value_names = ["MODEL", "PROMPT"], num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    /// A system message
    #[arg(short, long)]
    pub(crate) system: Option<String>,
    /// Most tokens of an answer
    #[arg(short = 'n', long, default_value_t = 1024, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_tokens: usize,
    /// Print times and rates to stderr
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(clap::Args)]
pub(crate) struct GenerateArgs {
    #[arg(short, long, default_value = "smollm2", help = MODEL)]
    pub(crate) model: String,
    /// The prompt; `-` reads it from standard input
    #[arg(short, long)]
    pub(crate) prompt: String,
    /// Most tokens [default: until the model ends]
    #[arg(short = 'n', long, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) max_tokens: Option<usize>,
    /// End at this text, which is not part of the answer; may be given several times
    #[arg(long)]
    pub(crate) stop: Vec<String>,
    /// Continue the prompt as it stands, without the model's chat template
    #[arg(long)]
    pub(crate) no_chat_template: bool,
    /// Go on over the model's end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object in place of the text
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: report log probabilities of the chosen token and of this many others
    #[arg(long, requires = "json", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) logprobs: Option<usize>,
    /// Print times and rates to stderr
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(clap::Args)]
pub(crate) struct LogitsArgs {
    #[arg(short, long, help = MODEL)]
    pub(crate) model: String,
    /// Token ids with commas between them, or a file that holds ids with commas or white space between them
    #[arg(long)]
    pub(crate) ids: String,
    /// Continue greedily for this many tokens
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) greedy: usize,
    /// Compute the ids in chunks of this many
    #[arg(long, default_value_t = 512, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) chunk: usize,
    /// The safetensors file to write: logits f32 [T, vocab], input_ids, greedy_ids, greedy_logits
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    #[arg(short, long, help = MODEL)]
    pub(crate) model: String,
    /// A file with the text
    #[arg(long, value_name = "FILE", required_unless_present = "ids", conflicts_with = "ids")]
    pub(crate) text: Option<PathBuf>,
    /// Token ids in place of a text: with commas between them, or a file that holds them; needs no tokenizer
    #[arg(long)]
    pub(crate) ids: Option<String>,
    /// The safetensors file to write
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    /// Positions to score [default: what the text has, up to 2000]
    #[arg(long, allow_negative_numbers = true, value_parser = whole)]
    positions: Option<usize>,
    /// Rows of a scored step: 1 is token by token
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = whole)]
    width: usize,
    /// Tokens before the first scored position
    #[arg(long, default_value_t = 512, allow_negative_numbers = true, value_parser = whole)]
    context_before: usize,
    /// Compute those in chunks of this many
    #[arg(long, default_value_t = 512, allow_negative_numbers = true, value_parser = whole)]
    chunk: usize,
    /// How many of the likeliest tokens are kept of each position
    #[arg(long, value_name = "K", default_value_t = 256, allow_negative_numbers = true, value_parser = whole)]
    top: usize,
    /// Keep all logits, for an exact KL divergence: positions x vocabulary x 4 bytes
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

impl TraceArgs {
    pub(crate) fn options(&self) -> TraceOptions {
        let mut options = TraceOptions::default();
        options.positions = self.positions;
        options.width = self.width;
        options.context_before = self.context_before;
        options.chunk = self.chunk;
        options.top = self.top;
        options.full = self.full;
        options
    }
}

#[derive(clap::Args)]
pub(crate) struct CompareTracesArgs {
    /// The trace that counts as right
    pub(crate) reference: PathBuf,
    /// The trace that is held against it
    pub(crate) other: PathBuf,
    /// The stated error of a logit: no choice may change whose margin is over twice this
    #[arg(long, default_value_t = DEFAULT_ERROR, value_parser = error_of_a_logit, allow_negative_numbers = true)]
    error: f32,
    /// Compare traces of two checkpoints, such as one model in two formats
    #[arg(long)]
    other_checkpoint: bool,
    /// Compare traces of two widths
    #[arg(long)]
    other_width: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl CompareTracesArgs {
    pub(crate) fn options(&self) -> CompareOptions {
        let mut options = CompareOptions::default();
        options.error = self.error;
        options.other_checkpoint = self.other_checkpoint;
        options.other_width = self.other_width;
        options
    }
}

/// A whole number, with a refusal that a person can read.
fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", usize::MAX))
}

fn error_of_a_logit(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(error) if error.is_finite() && error >= 0.0 => Ok(error),
        _ => Err("expected a number that is not negative".to_owned()),
    }
}

#[derive(clap::Args)]
pub(crate) struct PullArgs {
    #[arg(help = MODEL)]
    pub(crate) name: String,
}

#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    #[arg(help = MODEL)]
    pub(crate) model: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(clap::Args)]
pub(crate) struct ConvertArgs {
    #[arg(value_name = "SRC", help = MODEL)]
    pub(crate) source: String,
    /// The folder to write; it must not be there yet, or be empty
    #[arg(value_name = "DST")]
    pub(crate) destination: PathBuf,
    /// Bits a weight: 2, 3, 4, 5, 6 or 8
    #[arg(long)]
    bits: Option<u8>,
    /// Elements that share a scale: 32, 64 or 128
    #[arg(long)]
    group_size: Option<u16>,
    /// How to quantize: affine, or mxfp4 (4 bits in groups of 32)
    #[arg(long)]
    mode: Option<QuantMode>,
    /// Other bits for some modules, by name or a part of their path; 16 for not quantized; may be given several times
    #[arg(long, value_name = "MODULE=BITS")]
    keep: Vec<Keep>,
    /// Most bytes of a file of tensors, such as 500MB
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    shard_size: u64,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl ConvertArgs {
    pub(crate) fn options(&self) -> ConvertOptions {
        let mut options = ConvertOptions::default();
        options.bits = self.bits;
        options.group_size = self.group_size;
        options.mode = self.mode;
        options.keep = self.keep.clone();
        options.shard_bytes = self.shard_size;
        options
    }
}

/// `5GB`, `500MB`, or a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[number.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "GIB" => 1 << 30,
        "MIB" => 1 << 20,
        _ => return Err("expected a size such as 5GB, 500MB or 2GiB".to_owned()),
    };
    let size = number.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|&n| n > 0);
    size.ok_or_else(|| "expected a size such as 5GB, 500MB or 2GiB".to_owned())
}

#[derive(clap::Args)]
pub(crate) struct PortsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Compile the kernels that a model needs on a GPU, and keep them, so that its first load does not wait
    #[arg(long, value_name = "MODEL", conflicts_with = "json")]
    pub(crate) warm: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    #[arg(short, long, default_value = "smollm2", help = MODEL)]
    pub(crate) model: String,
    /// Tokens of the prompt; several with commas between
    #[arg(short, long, value_delimiter = ',', default_value = "512", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) prompt: Vec<usize>,
    /// Tokens generated; several with commas between
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) generate: Vec<usize>,
    /// Tokens in the cache before either; several with commas between
    #[arg(short, long, value_delimiter = ',', default_value = "0", allow_negative_numbers = true, value_parser = whole)]
    pub(crate) depth: Vec<usize>,
    /// Measured runs of each row
    #[arg(short, long, default_value_t = 5, allow_negative_numbers = true, value_parser = whole)]
    pub(crate) repetitions: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print CSV, a line a run
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print each op's share of the time
    #[arg(long)]
    pub(crate) by_op: bool,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
