use portolan_text::{ChatInput, ChatTemplate, Message};

use super::{Engine, GenerateOptions, Generation, generation::Keeper};
use crate::{Error, Result};

/// A conversation through the model's own chat template.
#[derive(Clone)]
pub struct Chat {
    engine: Engine,
    template: ChatTemplate,
    messages: Vec<Message>,
}

impl Chat {
    pub(super) fn new(engine: Engine) -> Result<Self> {
        engine.tokenizer()?;
        if engine.templates().is_empty() {
            return Err(Error::NoChatTemplate);
        }
        let template = engine.templates().pick(None, false)?.clone();
        Ok(Chat { engine, template, messages: Vec::new() })
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message without answering it: a system message, or a turn that was held elsewhere.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Forgets all messages but a leading system message.
    pub fn reset(&mut self) {
        let keep = usize::from(self.messages.first().is_some_and(|m| m.role() == "system"));
        self.messages.truncate(keep);
    }

    /// The tokens that the model will be given if `self` is answered now.
    pub fn prompt_tokens(&self) -> Result<Vec<u32>> {
        self.render(&self.messages)
    }

    fn render(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let tokenizer = self.engine.tokenizer()?;
        let rendered = self.template.render(&ChatInput::new(messages), tokenizer)?;
        self.engine.check_length(rendered.text().len())?;
        Ok(tokenizer.encode_chat(&rendered)?)
    }

    /// Adds a user's message and starts to answer it. On an error the conversation is as it was. The answer, up to
    /// a cancellation, is part of the conversation once the [`Generation`] is dropped; where not a word of it had
    /// come by then, the user's message is taken back.
    pub fn send(&mut self, text: &str, options: &GenerateOptions) -> Result<Generation<'_>> {
        self.messages.push(Message::user(text));
        let started = self.render(&self.messages).and_then(|tokens| self.engine.submit(tokens, options));
        match started {
            Ok(generation) => Ok(generation.kept_by(Keeper::Chat(&mut self.messages))),
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chat({} messages)", self.messages.len())
    }
}
