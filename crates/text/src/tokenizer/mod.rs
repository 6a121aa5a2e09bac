//! One tokenizer type over what checkpoints carry.

mod export;
mod gguf;
mod hf;
mod pieces;
mod pre_tokenizers;
mod special;
mod spm;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::tokenizer::{AddedVocabulary, Encoding, OffsetType, Token};
use tokenizers::{Model, NormalizedString, PreTokenizer};

use crate::template::SpecialTexts;
use crate::{DecodeOptions, RenderedChat, StreamDecoder, TextError};
pub use export::TokenizerFiles;
pub use gguf::GgufVocab;
pub(crate) use hf::{read_json, read_regular};
pub(crate) use pieces::{PieceKind, PieceTable};
pub use special::eos_ids;
use spm::SpmMerger;

/// How text becomes token ids.
///
/// The default adds nothing and takes every character for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Add the tokens that the model wants at the ends of a text, such as the
    /// beginning-of-sequence token. Not for a rendered chat: its template writes them.
    pub add_special: bool,
    /// Let the text of a special token stand for that token. Only for text that nobody else
    /// wrote: a user's `<|im_end|>` must stay text.
    pub parse_special: bool,
}

/// Turns text into token ids and back. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hf: tokenizers::Tokenizer,
    /// The added tokens of `hf` with its special ones left as text.
    plain: AddedVocabulary,
    /// Takes the place of `hf`'s model for SentencePiece vocabularies from GGUF.
    spm: Option<Spm>,
    pieces: Arc<PieceTable>,
    special_texts: SpecialTexts,
    named: BTreeMap<String, String>,
    ids: SpecialIds,
    ends: EndTokens,
    /// The most bytes of a text that one token may take; none where that cannot be said.
    longest: Option<usize>,
}

#[derive(Debug)]
struct Spm {
    merger: SpmMerger,
    space_prefix: bool,
}

/// Tokens with a role, as far as the vocabulary has them.
#[derive(Debug, Clone, Default)]
struct SpecialIds {
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    end_of_generation: Vec<u32>,
}

/// What stands at the ends of a text that is encoded with [`EncodeOptions::add_special`].
#[derive(Debug, Clone, PartialEq, Eq)]
enum EndTokens {
    /// `tokenizer.json` has a post-processor that knows.
    PostProcessor,
    Fixed {
        bos: bool,
        eos: bool,
    },
}

impl Tokenizer {
    /// Encodes `text`.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer's own rules fail on this text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        let encoding = self.run(text, options.parse_special, None)?;
        if !options.add_special {
            return Ok(encoding.get_ids().to_vec());
        }
        match self.0.ends {
            EndTokens::PostProcessor => {
                let ended = || self.0.hf.post_process(encoding, None, true);
                let encoding = guarded(text, || ended().map_err(|e| encode_error(text, e)))?;
                Ok(encoding.get_ids().to_vec())
            }
            EndTokens::Fixed { bos, eos } => {
                let bos = bos.then_some(self.0.ids.bos).flatten();
                let eos = eos.then_some(self.0.ids.eos).flatten();
                Ok(bos.into_iter().chain(encoding.get_ids().iter().copied()).chain(eos).collect())
            }
        }
    }

    /// Encodes a rendered chat: special tokens that its template wrote become tokens, those in
    /// messages stay text, and nothing is added at the ends.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        Ok(self.run(chat.guarded(), true, chat.guard())?.get_ids().to_vec())
    }

    /// The steps of the `tokenizers` crate's own encode, with two differences: special tokens
    /// may stay text, and `guard`, a character that breaks up special tokens in messages, is
    /// taken out once the template's special tokens are found.
    fn run(&self, text: &str, parse: bool, guard: Option<char>) -> Result<Encoding, TextError> {
        guarded(text, || self.run_unguarded(text, parse, guard))
    }

    fn run_unguarded(&self, text: &str, parse: bool, guard: Option<char>) -> Result<Encoding, TextError> {
        let inner = &*self.0;
        let added = if parse { inner.hf.get_added_vocabulary() } else { &inner.plain };
        let mut pieces = added.extract_and_normalize(inner.hf.get_normalizer(), text);
        let steps = || {
            if let Some(guard) = guard {
                pieces.normalize(|piece| {
                    piece.filter(|c| c != guard);
                    Ok(())
                })?;
            }
            if let Some(pre_tokenizer) = inner.hf.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| inner.tokenize(piece))?;
            pieces.into_encoding(None, 0, OffsetType::None)
        };
        let encoding: tokenizers::Result<Encoding> = steps();
        encoding.map_err(|e| encode_error(text, e))
    }

    /// Decodes ids in one go.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> String {
        let mut decoder = StreamDecoder::new(self, options);
        let mut text = String::new();
        ids.iter().for_each(|&id| decoder.push_onto(id, &mut text));
        text += &decoder.finish();
        text
    }

    /// One more than the highest token id. The model's output may be wider: it is often padded.
    pub fn vocab_size(&self) -> usize {
        self.0.pieces.len()
    }

    /// So many tokens at least a text of so many bytes has, known without encoding it; 0 where nothing can be said. For a
    /// text that is far too long an answer at once.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        self.0.longest.map_or(0, |longest| bytes.div_ceil(longest))
    }

    /// The bytes that a token stands for; a character may be spread over several tokens.
    /// `None` if the vocabulary has no such id.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.pieces.get(id).map(|(bytes, _)| bytes)
    }

    /// The id of a token by its text as the vocabulary spells it (`<|im_end|>`, `Ġthe`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.hf.token_to_id(token)
    }

    /// Whether this is a control token, which is no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.pieces.get(id).is_some_and(|(_, kind)| kind == PieceKind::Special)
    }

    /// The beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.0.ids.bos
    }

    /// The end-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.0.ids.eos
    }

    /// The padding token.
    pub fn pad_id(&self) -> Option<u32> {
        self.0.ids.pad
    }

    /// Every token that ends a generation, ascending: what the files declare, and special tokens
    /// that end a turn by their names (`<|eot_id|>`, `<|im_end|>`, `<end_of_turn>`, ...).
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.0.ids.end_of_generation
    }

    /// Whether this token ends a generation.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.0.ids.end_of_generation.binary_search(&id).is_ok()
    }

    /// The texts that templates know as `bos_token`, `eos_token` and so on.
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.0.named
    }

    pub(crate) fn pieces(&self) -> &Arc<PieceTable> {
        &self.0.pieces
    }

    pub(crate) fn special_texts(&self) -> &SpecialTexts {
        &self.0.special_texts
    }
}

impl Inner {
    /// Tokens of a piece that holds no added token.
    fn tokenize(&self, piece: &NormalizedString) -> tokenizers::Result<Vec<Token>> {
        let text = piece.get();
        let tokens = match &self.spm {
            Some(spm) => return Ok(spm.tokenize(text)),
            None => self.hf.get_model().tokenize(text)?,
        };
        // LOCAL_FIX(2): a vocabulary may list a control token beside its words, where the model can find it by
        // its text. Text must not become one, so such a piece is taken character by character.
        let spells_a_control = |token: &Token| match self.pieces.get(token.id) {
            // The unknown token stands for what the vocabulary lacks, unless the text spells it.
            Some((bytes, _)) if Some(token.id) == self.ids.unk => bytes == text.as_bytes(),
            Some((_, kind)) => kind == PieceKind::Special,
            None => false,
        };
        if !tokens.iter().any(spells_a_control) {
            return Ok(tokens);
        }
        let mut plain = Vec::new();
        for (start, c) in text.char_indices() {
            plain.extend(self.hf.get_model().tokenize(&text[start..start + c.len_utf8()])?);
        }
        plain.retain(|token| !spells_a_control(token));
        Ok(plain)
    }
}

impl Spm {
    fn tokenize(&self, text: &str) -> Vec<Token> {
        // A piece always begins at the start of the text or after an added token, and at both
        // SentencePiece vocabularies want a space before the first word.
        let prefix = if self.space_prefix { "\u{2581}" } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', "\u{2581}"));
        let ids = self.merger.encode(&text);
        ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect()
    }
}

/// See [`Inner::longest`]. Only where neither a normalizer nor a pre-tokenizer nor an added token takes text away.
fn longest(hf: &tokenizers::Tokenizer, pieces: &PieceTable, spm: bool) -> Option<usize> {
    let swallows = hf.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip);
    if swallows || hf.get_normalizer().is_some() {
        return None;
    }
    if spm {
        // A space of three bytes (U+2581) decodes to one.
        return pieces.longest().map(|longest| 3 * longest);
    }
    let before = serde_json::to_value(hf.get_pre_tokenizer()?).ok()?;
    let steps = match before.get("pretokenizers").and_then(serde_json::Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(&before),
    };
    let keeps_all = |step: &serde_json::Value| match step.get("type").and_then(serde_json::Value::as_str) {
        Some("ByteLevel" | "Digits") => true,
        Some("Split") => step.get("behavior").is_some_and(|how| how != "Removed"),
        _ => false,
    };
    steps.iter().all(keeps_all).then(|| pieces.longest()).flatten()
}

/// Runs a step of the tokenizers library on `text`.
// LOCAL_FIX(11)
fn guarded<T>(text: &str, step: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(step))
        .unwrap_or_else(|_| Err(encode_error(text, "the tokenizers library fails on it".into())))
}

fn encode_error(text: &str, error: tokenizers::Error) -> TextError {
    TextError::Encode { bytes: text.len(), detail: error.to_string() }
}
