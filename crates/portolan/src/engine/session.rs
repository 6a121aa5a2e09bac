use super::{Engine, GenerateOptions, Generation, Prompt, generation::Keeper};
use crate::Result;

/// A sequence of tokens that grows by prompts and answers.
///
/// It holds tokens, not memory on the device: what the cache still has of it is found again when it goes on.
/// Cloning forks it, and both go on from the same pages.
#[derive(Clone, Debug)]
pub struct Session {
    engine: Engine,
    tokens: Vec<u32>,
}

impl Session {
    pub(super) fn new(engine: Engine) -> Self {
        Session { engine, tokens: Vec::new() }
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Adds a prompt and starts to generate after it. On an error the session is as it was. What was generated,
    /// up to a cancellation, is part of the session once the [`Generation`] is dropped.
    pub fn generate<'p>(
        &mut self,
        prompt: impl Into<Prompt<'p>>,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>> {
        let prompt = prompt.into();
        // Only the first prompt begins the text.
        let more = match (&prompt, self.tokens.is_empty()) {
            (Prompt::Tokens(_), _) | (_, true) => self.engine.encode(prompt)?,
            (Prompt::Text(text) | Prompt::Raw(text), false) => {
                self.engine.check_length(text.len())?;
                let parse_special = matches!(prompt, Prompt::Raw(_));
                let options = portolan_text::EncodeOptions { add_special: false, parse_special };
                self.engine.tokenizer()?.encode(text, options)?
            }
        };
        let mut all = self.tokens.clone();
        all.extend(more);
        let generation = self.engine.submit(all.clone(), options)?;
        self.tokens = all;
        Ok(generation.kept_by(Keeper::Session(&mut self.tokens)))
    }

    /// Forgets all tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.tokens.clear();
    }
}
