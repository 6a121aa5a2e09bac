use std::path::PathBuf;

use portolan_device::DeviceError;
use portolan_kernels::KernelError;
use portolan_weights::{WeightError, human_bytes};

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Device(#[from] portolan_device::DeviceError),
    /// A variable that cannot be read.
    #[error(transparent)]
    Variable(#[from] portolan_device::env::BadVariable),
    /// The checkpoint's files.
    #[error(transparent)]
    Weights(#[from] portolan_weights::WeightError),
    /// The model's configuration.
    #[error(transparent)]
    Model(#[from] portolan_models::ModelError),
    /// The kernels.
    #[error(transparent)]
    Kernel(#[from] portolan_kernels::KernelError),
    /// Tokenizer, template, stop strings.
    #[error(transparent)]
    Text(#[from] portolan_text::TextError),
    /// Finding or fetching a model.
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    /// Weights do not have the shapes that the configuration asks for.
    #[error("{}: the weights do not fit the configuration: {wrong}. Is this the config.json of another model?", model.display())]
    Shapes {
        /// The checkpoint.
        model: PathBuf,
        /// Every weight that does not fit.
        wrong: String,
    },
    /// The plan of memory does not fit.
    #[error(
        "{}: needs {} of {pool} memory, and {} can be had. Ask for a smaller --context, take a smaller \
         quantization, or another --device; PORTOLAN_MEMORY_GUARD=0 tries all the same.\n{plan}",
        model.display(), human_bytes(*need), human_bytes(*available)
    )]
    DoesNotFit {
        /// The checkpoint.
        model: PathBuf,
        /// The pool.
        pool: String,
        /// Bytes asked of it.
        need: u64,
        /// Bytes that can be had.
        available: u64,
        /// The plan, item by item.
        plan: String,
    },
    /// A device that has no room for a part of the model, though the plan of memory said that it had, or was overruled.
    #[error("no room for {part}: {source}. Ask for a smaller --context, or choose another --device")]
    NoRoomFor {
        /// What the memory was for.
        part: &'static str,
        /// [`DeviceError::OutOfMemory`].
        source: DeviceError,
    },
    /// A layer keeps something that the engine has no cache for.
    #[error("{name}: the engine has no cache of kind {kind} yet")]
    UnsupportedCache {
        /// The layer.
        name: String,
        /// What it keeps.
        kind: String,
    },
    /// More positions than the context has.
    #[error(
        "the context is full: {need} tokens are needed, and the context has {context}. Shorten the prompt, or load the model with a larger --context"
    )]
    ContextOverflow {
        /// Tokens needed.
        need: usize,
        /// Tokens that there is room for.
        context: usize,
    },
    /// A text that has more tokens than the context, whatever they are.
    #[error(
        "the context is full: the prompt's {bytes} bytes are {least} tokens or more, and the context has {context}. Shorten the prompt, or load the model with a larger --context"
    )]
    PromptTooLong {
        /// Bytes of the text, with what a chat template puts around it.
        bytes: usize,
        /// Tokens that it has at least.
        least: usize,
        /// Tokens that there is room for.
        context: usize,
    },
    /// A request that the cache can never hold.
    #[error(
        "the request needs {need} tokens of cache, and the cache has {have} in all. Load the model with more --cache-tokens"
    )]
    NeverFits {
        /// Tokens needed.
        need: usize,
        /// Tokens that the cache holds.
        have: usize,
    },
    /// No free page for a step.
    #[error("the cache is full: the step needs {needed} pages, {free} of {total} are free")]
    CacheFull {
        /// Pages needed.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages in all.
        total: usize,
    },
    /// A step asks for more than the program was built for.
    #[error("a step of {value} {what}: the program was built for at most {most}")]
    StepTooLarge {
        /// Of what.
        what: &'static str,
        /// How many.
        value: usize,
        /// How many there may be.
        most: usize,
    },
    /// A token id beyond the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    BadToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// An empty prompt.
    #[error(
        "the prompt has no tokens, so there is nothing to continue from; give a text, or at least one token id"
    )]
    EmptyPrompt,
    /// Positions that a windowed cache no longer has.
    #[error("a sequence of {len} tokens cannot go back to {to}: its cache keeps a sliding window only")]
    CannotRollBack {
        /// Its length.
        len: usize,
        /// Where it was to go.
        to: usize,
    },
    /// The sequence does not exist.
    #[error("the sequence does not exist (any more)")]
    UnknownSequence,
    /// An option that cannot be used.
    #[error("{option} is {value}, expected {expected}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Logits that are not numbers.
    #[error(
        "token {position} of the sequence: the model's logits are not finite ({what}). The checkpoint is damaged, or its numbers do not fit the compute type; try --exact to tell the two apart"
    )]
    BadLogits {
        /// The position whose logits are bad.
        position: usize,
        /// `NaN`, `all -inf`.
        what: &'static str,
    },
    /// The model has no tokenizer.
    #[error("{}: no tokenizer ({reason}). Put the model's tokenizer.json into its folder; `portolan logits` works without one", model.display())]
    NoTokenizer {
        /// The checkpoint.
        model: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },
    /// The model has no chat template.
    #[error(
        "the model has no chat template. Use `portolan generate --no-chat-template`, or put a chat_template.jinja into its folder"
    )]
    NoChatTemplate,
    /// The engine's thread has ended.
    #[error("the engine has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// A corpus with fewer tokens than a trace asks for.
    #[error(
        "the corpus is too short: {need} tokens are needed, and it has {have}. Give a longer one, fewer --positions or less --context-before"
    )]
    CorpusTooShort {
        /// Tokens needed.
        need: usize,
        /// Tokens that it has.
        have: usize,
    },
    /// A file could not be read.
    #[error("{}: cannot be read: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file that is no trace, or a damaged one.
    #[error("{}: not a whole trace: {what}. Write it again with `portolan trace`", path.display())]
    BadTrace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file could not be written.
    #[error("{}: cannot be written: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A folder that a conversion cannot write to.
    #[error("{}: {reason}", path.display())]
    Destination {
        /// The folder.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A tensor that has no form in an MLX checkpoint.
    #[error("{}: tensor '{tensor}' cannot be converted: {reason}", path.display())]
    Unconvertible {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor, by its name in the checkpoint.
        tensor: String,
        /// Its type or numbers, and what to do.
        reason: String,
    },
    /// A `--keep` that names no matrix of the model.
    #[error("--keep {module}: the model has no such matrix. {known}")]
    NoSuchModule {
        /// As it was given.
        module: String,
        /// What the model has.
        known: String,
    },
    /// A result that the disk has no room for. Nothing was written.
    #[error(
        "{}: the result takes {} and {} are free there. Free some, choose another folder, or convert to fewer bits",
        path.display(), human_bytes(*need), human_bytes(*free)
    )]
    NoRoomOnDisk {
        /// The destination.
        path: PathBuf,
        /// Bytes of the result.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// A disk that was full before the result was whole. What was written has been removed.
    #[error(
        "{}: the disk was full after {written} bytes of this file ({reason}; free: {}). What was written has been removed: \
         free some room, or choose another folder",
        path.display(), free.map_or("unknown".to_owned(), |n| format!("{n} bytes"))
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes of it that were written.
        written: u64,
        /// Bytes that were free then, where the system says.
        free: Option<u64>,
        /// What the system said.
        reason: String,
    },
    /// Somebody asked for an end.
    #[error("{what} was interrupted; nothing of it was kept")]
    Interrupted {
        /// What was going on.
        what: &'static str,
    },
    /// A fault in Portolan itself.
    #[error("internal error: {what}. Please report it")]
    Internal {
        /// What is wrong.
        what: &'static str,
    },
}

impl Error {
    /// The device's own error, where that is the cause.
    pub fn device_error(&self) -> Option<&DeviceError> {
        match self {
            Error::Device(error)
            | Error::Kernel(KernelError::Device(error))
            | Error::Weights(WeightError::Device(error))
            | Error::NoRoomFor { source: error, .. } => Some(error),
            _ => None,
        }
    }

    /// The loss of the device, where that is the cause: whatever is asked of it from then on ends the same way.
    pub fn device_lost(&self) -> Option<&DeviceError> {
        self.device_error().filter(|error| matches!(error, DeviceError::Lost { .. }))
    }

    /// Says what a refused allocation was for.
    pub(crate) fn taking(self, part: &'static str) -> Self {
        match self {
            Error::Device(source @ DeviceError::OutOfMemory { .. })
            | Error::Kernel(KernelError::Device(source @ DeviceError::OutOfMemory { .. })) => {
                Error::NoRoomFor { part, source }
            }
            other => other,
        }
    }
}
