//! Text in and out of a language model: tokenizers, chat templates, detokenizing, stop strings.
//!
//! - [`Tokenizer`] turns text into token ids and back. It is read from a folder with
//!   `tokenizer.json` ([`Tokenizer::from_folder`]) or built from the vocabulary that a GGUF file
//!   carries ([`Tokenizer::from_gguf`]). Text that a user wrote never becomes a special token:
//!   with [`EncodeOptions::parse_special`] off, `<|im_end|>` is a handful of ordinary tokens.
//! - [`ChatTemplate`] renders a conversation through the model's own Jinja template. The result,
//!   a [`RenderedChat`], remembers which special tokens come from the template and which stand in
//!   somebody's message; [`Tokenizer::encode_chat`] makes tokens of the former only, and adds no
//!   second beginning-of-sequence token.
//! - [`StreamDecoder`] turns token ids into text one by one and never splits a character.
//! - [`StopMatcher`] finds stop strings that span tokens, and never lets one out.
//!
//! ```no_run
//! use portolan_text::{ChatInput, ChatTemplate, Message, StopMatcher, StreamDecoder, Tokenizer};
//!
//! # fn main() -> Result<(), portolan_text::TextError> {
//! let folder = std::path::Path::new("SmolLM2-135M-Instruct");
//! let tokenizer = Tokenizer::from_folder(folder)?;
//! let templates = portolan_text::ChatTemplates::from_folder(folder)?;
//! let template = templates.pick(None, false)?;
//! let chat = template.render(&ChatInput::new(&[Message::user("Hello!")]), &tokenizer)?;
//! let prompt = tokenizer.encode_chat(&chat)?;
//!
//! let mut decoder = StreamDecoder::new(&tokenizer, Default::default());
//! let mut stops = StopMatcher::new(["\n\n"])?;
//! // A model would go on from the prompt; here its own tokens stand for the answer.
//! for id in prompt {
//!     let out = stops.push(&decoder.push(id));
//!     print!("{}", out.text);
//!     if out.stop.is_some() {
//!         break;
//!     }
//! }
//! print!("{}", stops.push(&decoder.finish()).text);
//! print!("{}", stops.finish());
//! # Ok(())
//! # }
//! ```
//!
//! This crate knows no model, device or checkpoint format: a GGUF vocabulary comes in as plain
//! data, [`GgufVocab`].
#![forbid(unsafe_code)]

mod error;
mod stop;
mod stream;
mod template;
mod tokenizer;

pub use error::TextError;
pub use stop::{StopMatcher, StopOutput};
pub use stream::{DecodeOptions, StreamDecoder};
pub use template::{ChatInput, ChatTemplate, ChatTemplates, Clock, LocalTime, Message, RenderedChat};
pub use tokenizer::{EncodeOptions, GgufVocab, Tokenizer, TokenizerFiles, eos_ids};
