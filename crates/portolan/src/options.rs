use portolan_device::{DType, DeviceChoice, DeviceKind};

use portolan_weights::LoadMode;

use crate::{Error, Result};

/// How a model is loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Threads of the CPU device; 0 takes one a core.
    pub threads: usize,
    /// Most positions of a sequence; none takes the model's own, up to [`DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Positions that the cache holds in all; none takes `context`. Several sequences, and prefixes that are
    /// kept for reuse, share them.
    pub cache_tokens: Option<usize>,
    /// Type of the cache's elements; none takes f16 (f32 under `exact`).
    pub cache: Option<CacheType>,
    /// Type of activations; none takes the device's own: f32 on the CPU (which has no other), bf16 on a GPU (f32 under
    /// `exact`).
    pub activation: Option<CacheType>,
    /// Plain f32 kernels and an f32 cache: slow, and the reference for everything else.
    pub exact: bool,
    /// Only kernels whose result for a row does not depend on the rows beside it.
    pub deterministic: bool,
    /// When weights are loaded.
    pub load: LoadMode,
    /// Most rows of a step: longer prompts are computed in chunks of this size. 0 takes the device's own: 512 on the CPU,
    /// 2,048 on a GPU.
    pub chunk: usize,
    /// Most sequences of a step.
    pub max_sequences: usize,
    /// Most rows of a step that can ask for logits.
    pub max_logits: usize,
}

/// The longest context that is taken without being asked for: its cache is small beside most models.
pub const DEFAULT_CONTEXT: usize = 8192;

/// Positions and page numbers are i32 on every device. The other limits only keep the arithmetic of a plan sane.
const MOST_CONTEXT: usize = 1 << 30;
const MOST_CACHE_TOKENS: usize = 1 << 35;
const MOST_ROWS: usize = 1 << 20;
/// A thread that has no core of its own only makes the others wait.
pub(crate) const MOST_THREADS: usize = 1024;

/// Type of the cache's elements, or of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CacheType {
    F32,
    F16,
    BF16,
}

impl std::str::FromStr for CacheType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(CacheType::F32),
            "f16" => Ok(CacheType::F16),
            "bf16" => Ok(CacheType::BF16),
            _ => Err(format!("unknown cache type '{text}': expected f32, f16 or bf16")),
        }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            device: DeviceChoice::Auto,
            threads: 0,
            context: None,
            cache_tokens: None,
            cache: None,
            activation: None,
            exact: false,
            deterministic: false,
            load: LoadMode::Eager,
            chunk: 0,
            max_sequences: 16,
            max_logits: 16,
        }
    }
}

impl LoadOptions {
    /// Refuses numbers that no device could serve, by name and value. A load does it first of all; a program may do it
    /// before it looks for the model.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub fn check(&self) -> Result<()> {
        if self.context == Some(0) {
            return Err(Error::BadOption { option: "context", value: "0".into(), expected: "at least 1" });
        }
        let most = |option, value: usize, most, expected| {
            if value <= most {
                return Ok(());
            }
            Err(Error::BadOption { option, value: value.to_string(), expected })
        };
        most("context", self.context.unwrap_or(0), MOST_CONTEXT, "at most 1073741824")?;
        most("cache tokens", self.cache_tokens.unwrap_or(0), MOST_CACHE_TOKENS, "at most 34359738368")?;
        most("threads", self.threads, MOST_THREADS, "at most 1024")?;
        most("chunk", self.chunk, MOST_ROWS, "at most 1048576")?;
        most("max_sequences", self.max_sequences, MOST_ROWS, "at most 1048576")?;
        most("max_logits", self.max_logits, MOST_ROWS, "at most 1048576")
    }

    /// Most positions of a sequence for a model made for `model` of them.
    pub(crate) fn context_of(&self, model: usize) -> Result<usize> {
        match self.context {
            None => Ok(model.min(DEFAULT_CONTEXT)),
            Some(asked) if asked > model => {
                tracing::warn!(
                    "a context of {asked} was asked for, but the model was made for {model}; \
                     beyond that its answers may make no sense"
                );
                Ok(asked)
            }
            Some(asked) => Ok(asked),
        }
    }

    /// Refuses what a kind of device has no kernels for.
    pub(crate) fn check_device(&self, device: DeviceKind) -> Result<()> {
        match self.activation {
            Some(CacheType::F16 | CacheType::BF16) if device == DeviceKind::Cpu => Err(Error::BadOption {
                option: "activations",
                value: "of 16 bits".to_owned(),
                expected: "f32 on the CPU",
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn chunk_of(&self, device: DeviceKind) -> usize {
        match (self.chunk, device) {
            (0, DeviceKind::Cpu) => 512,
            (0, _) => 2048,
            (rows, _) => rows,
        }
    }

    pub(crate) fn activation_dtype(&self, device: DeviceKind) -> DType {
        match self.activation {
            Some(CacheType::F32) => DType::F32,
            Some(CacheType::BF16) => DType::BF16,
            Some(CacheType::F16) => DType::F16,
            None if self.exact => DType::F32,
            None => portolan_kernels::activation_dtype(device),
        }
    }

    pub(crate) fn cache_dtype(&self) -> DType {
        match self.cache {
            Some(CacheType::F32) => DType::F32,
            Some(CacheType::BF16) => DType::BF16,
            Some(CacheType::F16) => DType::F16,
            None if self.exact => DType::F32,
            None => DType::F16,
        }
    }
}
