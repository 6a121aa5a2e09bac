//! A request on its way through the engine's thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Instant,
};

use portolan_text::{DecodeOptions, StopMatcher, StreamDecoder, Tokenizer};
use portolan_weights::LoadTransferStats;

use super::generation::{Event, FinishReason, Generation, GenerationStats, Piece, Summary};
use crate::{
    Error, Result, SeqId,
    sample::{Sampled, Sampler, SamplingParams},
};

/// How a text is generated.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens; none goes on until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// Go on over the model's end tokens.
    pub ignore_eos: bool,
    /// Write special tokens out as text.
    pub show_special: bool,
}

impl GenerateOptions {
    /// At most `max_tokens`, greedily.
    pub fn tokens(max_tokens: usize) -> Self {
        GenerateOptions { max_tokens: Some(max_tokens), ..Default::default() }
    }

    /// Refuses what no model could honour, so that nobody waits for one to be loaded first.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the option, its value and what would be right; [`Error::Text`] for a stop string.
    pub fn check(&self) -> Result<()> {
        if self.max_tokens == Some(0) {
            return Err(Error::BadOption { option: "max_tokens", value: "0".into(), expected: "at least 1" });
        }
        self.sampling.check()?;
        StopMatcher::new(self.stop.iter().cloned())?;
        Ok(())
    }
}

/// What the engine's thread is told.
pub(super) enum Command {
    Run(Box<Request>),
    Stop,
}

/// A request and how far it is.
pub(super) struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) generated: Vec<u32>,
    pub(super) seq: Option<SeqId>,
    sampler: Sampler,
    text: Option<TextState>,
    eos: Vec<u32>,
    max_tokens: usize,
    /// The limit is the context's, not the caller's.
    limited_by_context: bool,
    events: mpsc::Sender<Event>,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// What loading had done when the first token was there.
    transfers: Option<LoadTransferStats>,
    reused: usize,
}

struct TextState {
    decoder: StreamDecoder,
    stops: StopMatcher,
    stop_strings: Vec<String>,
}

impl Request {
    pub(super) fn new(
        prompt: Vec<u32>,
        options: &GenerateOptions,
        tokenizer: Option<Tokenizer>,
        context: usize,
    ) -> Result<(Self, Generation<'static>)> {
        options.check()?;
        let room = context - prompt.len();
        let asked = options.max_tokens.unwrap_or(usize::MAX);
        let sampler = Sampler::new(options.sampling.clone())?;
        let stops = StopMatcher::new(options.stop.iter().cloned())?;
        let eos = match &tokenizer {
            Some(tokenizer) if !options.ignore_eos => tokenizer.end_of_generation_ids().to_vec(),
            _ => Vec::new(),
        };
        let text = tokenizer.map(|tokenizer| {
            let decoding = DecodeOptions { skip_special: !options.show_special, ..Default::default() };
            let stop_strings = options.stop.clone();
            TextState { decoder: StreamDecoder::new(&tokenizer, decoding), stops, stop_strings }
        });
        let (events, receiver) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let generation = Generation::new(receiver, cancelled.clone());
        let request = Request {
            prompt,
            generated: Vec::new(),
            seq: None,
            sampler,
            text,
            eos,
            max_tokens: asked.min(room),
            limited_by_context: asked > room,
            events,
            cancelled,
            submitted: Instant::now(),
            started: None,
            first_token: None,
            transfers: None,
            reused: 0,
        };
        Ok((request, generation))
    }

    /// Is told what loading has done, before its first token.
    pub(super) fn note_transfers(&mut self, now: impl FnOnce() -> LoadTransferStats) {
        self.transfers.get_or_insert_with(now);
    }

    /// Tokens known so far.
    pub(super) fn known(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// Tokens `from..from + n` of prompt and text.
    pub(super) fn tokens(&self, from: usize, n: usize) -> Vec<u32> {
        self.prompt.iter().chain(&self.generated).skip(from).take(n).copied().collect()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Notes that it has a place in the cache, and how much of it was there.
    pub(super) fn admitted(&mut self, seq: SeqId, reused: usize) {
        self.seq = Some(seq);
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.reused = reused;
        }
    }

    /// Chooses the next token from logits and sends what text it completes. Returns true when the request ends.
    pub(super) fn advance(&mut self, logits: &[f32]) -> Result<bool> {
        let sampled = self.sampler.sample(logits, &self.prompt, &self.generated)?;
        self.first_token.get_or_insert_with(Instant::now);
        if self.eos.contains(&sampled.id) {
            let rest = self.flush();
            self.end(FinishReason::EndOfText, rest);
            return Ok(true);
        }
        self.generated.push(sampled.id);
        let (text, stop) = match &mut self.text {
            Some(state) => {
                let piece = state.decoder.push(sampled.id);
                let out = state.stops.push(&piece);
                (out.text, out.stop.map(|i| state.stop_strings.get(i).cloned().unwrap_or_default()))
            }
            None => (String::new(), None),
        };
        if let Some(stop) = stop {
            self.send_piece(sampled, text);
            self.end(FinishReason::StopString(stop), String::new());
            return Ok(true);
        }
        let done = self.generated.len() >= self.max_tokens;
        let gone = self.send_piece(sampled, text);
        if done {
            let reason =
                if self.limited_by_context { FinishReason::ContextFull } else { FinishReason::MaxTokens };
            let rest = self.flush();
            self.end(reason, rest);
        }
        Ok(done || gone)
    }

    /// Text that was held back for a stop string or a split character.
    fn flush(&mut self) -> String {
        let Some(state) = &mut self.text else { return String::new() };
        let held = state.decoder.finish();
        let mut rest = state.stops.push(&held).text;
        rest.push_str(&state.stops.finish());
        rest
    }

    /// Returns true when nobody listens any more.
    fn send_piece(&self, sampled: Sampled, text: String) -> bool {
        let piece = Piece { text, token: Some(sampled.id), logprob: sampled.logprob, top: sampled.top };
        self.events.send(Event::Piece(piece)).is_err()
    }

    fn end(&self, reason: FinishReason, rest: String) {
        if !rest.is_empty() {
            let piece = Piece { text: rest, token: None, logprob: None, top: Vec::new() };
            let _ = self.events.send(Event::Piece(piece));
        }
        let transfers = self.transfers.clone().unwrap_or_default();
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        let stats = GenerationStats {
            prompt_tokens: self.prompt.len(),
            reused_tokens: self.reused,
            generated_tokens: self.generated.len(),
            queue_time: started - self.submitted,
            prefill_time: first - started,
            decode_time: now - first,
        };
        let _ = self.events.send(Event::End(Summary { reason, stats, transfers }));
    }

    /// Ends it because it was cancelled.
    pub(super) fn cancel(&self) {
        self.end(FinishReason::Cancelled, String::new());
    }

    /// Ends it with an error.
    pub(super) fn fail(&self, error: Error) {
        let _ = self.events.send(Event::Failed(error));
    }
}
