//! A text that is being generated, on the caller's side.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use portolan_text::Message;
use portolan_weights::LoadTransferStats;

use crate::{Error, Result, sample::TokenLogprob};

/// A piece of text. A piece may be empty: a token that does not yet complete a character, or whose text may be the
/// beginning of a stop string, still is reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The text; never a part of a character.
    pub text: String,
    /// The token that it came with; none for text that was held back until the end.
    pub token: Option<u32>,
    /// Its log probability, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, where asked for.
    pub top: Vec<TokenLogprob>,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its text.
    EndOfText,
    /// One of the stop strings came.
    StopString(String),
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// It was cancelled.
    Cancelled,
}

impl FinishReason {
    /// One word, as in `--json`.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::EndOfText => "end_of_text",
            FinishReason::StopString(_) => "stop_string",
            FinishReason::MaxTokens => "max_tokens",
            FinishReason::ContextFull => "context_full",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Counts and times of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them the cache still held.
    pub reused_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub generated_tokens: usize,
    /// From the request to its place in the cache.
    pub queue_time: Duration,
    /// From there to the first token.
    pub prefill_time: Duration,
    /// From the first token to the last.
    pub decode_time: Duration,
}

impl GenerationStats {
    /// Tokens of the prompt computed a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens.min(self.prompt_tokens), self.prefill_time)
    }

    /// Tokens a second after the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Why.
    pub reason: FinishReason,
    /// Counts and times.
    pub stats: GenerationStats,
    /// What loading had done when the first token was there: more than before the request where weights are loaded at
    /// their first use.
    pub transfers: LoadTransferStats,
}

pub(super) enum Event {
    Piece(Piece),
    End(Summary),
    Failed(Error),
}

/// Where the generated text goes when it is done.
pub(super) enum Keeper<'a> {
    Nobody,
    /// A session keeps the tokens.
    Session(&'a mut Vec<u32>),
    /// A chat keeps the assistant's message.
    Chat(&'a mut Vec<Message>),
}

/// A text that is being generated: an iterator over its pieces. Dropping it cancels the rest.
pub struct Generation<'a> {
    events: mpsc::Receiver<Event>,
    cancelled: Arc<AtomicBool>,
    summary: Option<Summary>,
    failed: bool,
    tokens: Vec<u32>,
    text: String,
    keeper: Keeper<'a>,
}

impl Generation<'static> {
    pub(super) fn new(events: mpsc::Receiver<Event>, cancelled: Arc<AtomicBool>) -> Self {
        let (tokens, text) = (Vec::new(), String::new());
        Generation { events, cancelled, summary: None, failed: false, tokens, text, keeper: Keeper::Nobody }
    }

    pub(super) fn kept_by<'b>(mut self, keeper: Keeper<'b>) -> Generation<'b> {
        // `Generation` has a destructor, so its parts are taken one by one.
        let (_, nothing) = mpsc::channel();
        Generation {
            events: std::mem::replace(&mut self.events, nothing),
            cancelled: std::mem::take(&mut self.cancelled),
            summary: self.summary.take(),
            failed: self.failed,
            tokens: std::mem::take(&mut self.tokens),
            text: std::mem::take(&mut self.text),
            keeper,
        }
    }
}

impl Generation<'_> {
    /// How it ended; none while it runs.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Asks it to end. Pieces that are on their way still come, then the summary.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the end and says how it came.
    pub fn finish(mut self) -> Result<Summary> {
        for piece in &mut self {
            piece?;
        }
        self.summary.clone().ok_or_else(stopped)
    }

    /// Waits for the end and gives the whole text.
    pub fn into_text(mut self) -> Result<String> {
        for piece in &mut self {
            piece?;
        }
        Ok(self.text.clone())
    }
}

fn stopped() -> Error {
    Error::Stopped { reason: "its thread has ended before the text was complete".to_owned() }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.summary.is_some() || self.failed {
            return None;
        }
        match self.events.recv() {
            Ok(Event::Piece(piece)) => {
                self.text.push_str(&piece.text);
                self.tokens.extend(piece.token);
                Some(Ok(piece))
            }
            Ok(Event::End(summary)) => {
                self.summary = Some(summary);
                None
            }
            Ok(Event::Failed(error)) => {
                self.failed = true;
                Some(Err(error))
            }
            Err(mpsc::RecvError) => {
                self.failed = true;
                Some(Err(stopped()))
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.cancel();
        match &mut self.keeper {
            Keeper::Nobody => {}
            Keeper::Session(tokens) => tokens.extend_from_slice(&self.tokens),
            Keeper::Chat(messages) => {
                let ended = self.summary.as_ref().is_some_and(|s| s.reason != FinishReason::Cancelled);
                if ended || !self.text.is_empty() {
                    messages.push(Message::assistant(std::mem::take(&mut self.text)));
                } else {
                    // A message without any answer goes too: many templates insist that the roles take turns.
                    messages.pop();
                }
            }
        }
    }
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({} tokens, {:?})", self.tokens.len(), self.summary)
    }
}
