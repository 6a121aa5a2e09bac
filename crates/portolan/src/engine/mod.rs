//! The engine: a model that many threads can talk to.
//!
//! An [`Engine`] is a handle. Behind it one thread drives the [`crate::Core`]: in each step it takes a row of every
//! request that decodes and chunks of those that still compute their prompt. Requests that begin alike share the
//! cache's pages, so a conversation that goes on is not computed again.

mod chat;
mod generation;
mod request;
mod schedule;
mod session;
mod worker;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use portolan_text::{ChatTemplates, EncodeOptions, Tokenizer};
use portolan_weights::{LoadTransferStats, MemoryPlan};

pub use chat::Chat;
pub use generation::{FinishReason, Generation, GenerationStats, Piece, Summary};
pub use request::GenerateOptions;
pub use session::Session;

use crate::{Error, LoadOptions, Plan, Result, loader};
use request::{Command, Request};
use worker::Worker;

/// A prompt.
#[derive(Clone, Debug)]
pub enum Prompt<'a> {
    /// Text, encoded as it stands, with the tokens that the model's tokenizer puts around a text. What looks like
    /// a special token in it is text.
    Text(&'a str),
    /// Text in which special tokens are written out and meant: a prompt that was rendered by hand.
    Raw(&'a str),
    /// Token ids.
    Tokens(&'a [u32]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Prompt::Text(text)
    }
}

/// What a loaded model is.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The checkpoint.
    pub path: std::path::PathBuf,
    /// Its family.
    pub family: &'static str,
    /// Most positions of a sequence.
    pub context: usize,
    /// Rows of the vocabulary.
    pub vocab: usize,
    /// The device that it runs on.
    pub device: String,
    /// What memory it takes.
    pub memory: MemoryPlan,
    /// Compiling kernels of a GPU, or finding them compiled, and building the program.
    pub prepare_time: Duration,
    /// What loading did, before the first step.
    pub load: LoadTransferStats,
}

struct Shared {
    info: ModelInfo,
    tokenizer: Result<Tokenizer, String>,
    templates: ChatTemplates,
    commands: mpsc::Sender<Command>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last handle is gone: end the thread, so that the model's memory is free when this returns.
        let _ = self.commands.send(Command::Stop);
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take()
            && worker.thread().id() != std::thread::current().id()
        {
            let _ = worker.join();
        }
    }
}

/// A loaded model. Cheap to clone, and every clone may be used from its own thread.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Loads a model: a folder, a `.gguf` or `.safetensors` file, or a name (see [`crate::hub`]), which is fetched
    /// once.
    pub fn load(model: &str, options: &LoadOptions) -> Result<Self> {
        Self::load_with(model, options, &mut loader::NoProgress)
    }

    /// As [`Engine::load`], and says how far it is.
    pub fn load_with(
        model: &str,
        options: &LoadOptions,
        progress: &mut dyn loader::Progress,
    ) -> Result<Self> {
        let path = loader::find(model, progress)?;
        Self::load_path(&path, options, progress)
    }

    /// Loads a checkpoint that is there already.
    pub fn load_path(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn loader::Progress,
    ) -> Result<Self> {
        crate::check_environment()?;
        Self::from_plan(loader::plan(path, options)?, progress)
    }

    /// Loads what was planned: for a program that chooses the device itself, or looks at the plan first.
    pub fn from_plan(plan: Plan, progress: &mut dyn loader::Progress) -> Result<Self> {
        let texts = loader::texts(&plan.checkpoint);
        let core = loader::load_core(&plan, progress)?;
        let info = ModelInfo {
            path: plan.checkpoint.path.clone(),
            family: plan.model.family.name,
            context: plan.context,
            vocab: core.vocab(),
            device: format!("{} ({})", plan.device().id(), plan.device().caps().name),
            memory: plan.memory.clone(),
            prepare_time: core.prepare_time,
            load: core.load_stats.clone(),
        };
        // The plan's headers are not needed any more.
        drop(plan);
        let (commands, receiver) = mpsc::channel();
        let worker = std::thread::Builder::new()
            .name("portolan-engine".to_owned())
            .spawn(move || Worker::new(core, receiver).run())
            .map_err(|e| Error::Stopped { reason: format!("its thread could not be started: {e}") })?;
        let (tokenizer, templates) = texts;
        let worker = Mutex::new(Some(worker));
        Ok(Engine { shared: Arc::new(Shared { info, tokenizer, templates, commands, worker }) })
    }

    /// What was loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.shared.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer {
            model: self.shared.info.path.clone(),
            reason: reason.clone(),
        })
    }

    /// The model's chat templates.
    pub fn templates(&self) -> &ChatTemplates {
        &self.shared.templates
    }

    /// Starts to generate. The text comes as it is made; dropping the [`Generation`] ends it.
    pub fn generate<'p>(
        &self,
        prompt: impl Into<Prompt<'p>>,
        options: &GenerateOptions,
    ) -> Result<Generation<'static>> {
        let tokens = self.encode(prompt.into())?;
        self.submit(tokens, options)
    }

    /// A sequence of tokens that grows by prompts and answers.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// A conversation through the model's chat template.
    pub fn chat(&self) -> Result<Chat> {
        Chat::new(self.clone())
    }

    /// Refuses a text of so many bytes that can have no room, before the wait for its tokens.
    pub(crate) fn check_length(&self, bytes: usize) -> Result<()> {
        // Shorter ones are counted to the token.
        const LONG: usize = 64 << 10;
        let (least, context) = (self.tokenizer()?.least_tokens(bytes), self.shared.info.context);
        if bytes < LONG || least < context {
            return Ok(());
        }
        Err(Error::PromptTooLong { bytes, least, context })
    }

    pub(crate) fn encode(&self, prompt: Prompt<'_>) -> Result<Vec<u32>> {
        if let Prompt::Text(text) | Prompt::Raw(text) = prompt {
            self.check_length(text.len())?;
        }
        Ok(match prompt {
            Prompt::Tokens(tokens) => tokens.to_vec(),
            Prompt::Text(text) => {
                self.tokenizer()?.encode(text, EncodeOptions { add_special: true, parse_special: false })?
            }
            Prompt::Raw(text) => {
                self.tokenizer()?.encode(text, EncodeOptions { add_special: true, parse_special: true })?
            }
        })
    }

    /// Hands a request to the engine's thread. What can never run is refused here.
    pub(crate) fn submit(&self, tokens: Vec<u32>, options: &GenerateOptions) -> Result<Generation<'static>> {
        let context = self.shared.info.context;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        // One token at least must have room.
        if tokens.len() + 1 > context {
            return Err(Error::ContextOverflow { need: tokens.len() + 1, context });
        }
        let vocab = self.shared.info.vocab;
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(Error::BadToken { id, vocab });
        }
        if let Some(&(id, _)) = options.sampling.logit_bias.iter().find(|&&(id, _)| id as usize >= vocab) {
            return Err(Error::BadToken { id, vocab });
        }
        // Without a tokenizer there is no text in which a stop string could be found.
        if !options.stop.is_empty() {
            self.tokenizer()?;
        }
        let tokenizer = self.shared.tokenizer.as_ref().ok().cloned();
        let (request, generation) = Request::new(tokens, options, tokenizer, context)?;
        self.shared
            .commands
            .send(Command::Run(Box::new(request)))
            .map_err(|_| Error::Stopped { reason: "its thread has ended".to_owned() })?;
        Ok(generation)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} on {})", self.shared.info.path.display(), self.shared.info.device)
    }
}
