use std::path::PathBuf;

/// What can go wrong with tokenizers, chat templates, detokenizing and stop strings.
///
/// Every variant names the thing at fault (file, template, token) and its message says what to
/// do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file of the tokenizer or template could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder holds no `tokenizer.json`.
    #[error(
        "no tokenizer.json in {folder}{hint}; fetch the model's tokenizer.json, or use a GGUF file, which carries its vocabulary",
        folder = folder.display()
    )]
    NoTokenizer {
        /// The folder that was searched.
        folder: PathBuf,
        /// What was found in its place, or nothing.
        hint: &'static str,
    },
    /// A JSON file (or an entry in it) does not have the expected form.
    #[error("{file} is not valid: {detail}; download it again or correct it")]
    InvalidFile {
        /// The file or document at fault.
        file: String,
        /// What is wrong, with its place.
        detail: String,
    },
    /// A GGUF vocabulary of a kind this crate does not have.
    #[error("GGUF tokenizer model {model:?} is not supported; known are {known}")]
    UnknownVocabModel {
        /// `tokenizer.ggml.model`.
        model: String,
        /// The kinds that are supported, comma separated.
        known: String,
    },
    /// A byte-level BPE vocabulary names a pre-tokenizer this crate does not have.
    #[error(
        "GGUF pre-tokenizer {pre:?} is not known, and a guess would give wrong token ids; known are {known}"
    )]
    UnknownPreTokenizer {
        /// `tokenizer.ggml.pre`.
        pre: String,
        /// The names that are supported, comma separated.
        known: String,
    },
    /// A GGUF vocabulary contradicts itself.
    #[error("GGUF vocabulary: {key}: {detail}; convert the model again")]
    InvalidVocab {
        /// The metadata key at fault.
        key: &'static str,
        /// What is wrong, with the numbers.
        detail: String,
    },
    /// `tokenizer.json` decodes tokens in a way this crate cannot do byte by byte.
    #[error(
        "tokenizer decoder {kind:?} is not supported; only byte-level and SentencePiece style decoders are"
    )]
    UnsupportedDecoder {
        /// The decoder's type.
        kind: String,
    },
    /// The tokenizer failed on a text.
    #[error(
        "cannot encode a text of {bytes} bytes: {detail}; the model's tokenizer may be damaged: download it again"
    )]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        detail: String,
    },
    /// A chat template does not parse.
    #[error("chat template {name:?}, line {line}: {detail}; pass a corrected template")]
    TemplateSyntax {
        /// The template's name.
        name: String,
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// What the parser said.
        detail: String,
    },
    /// The template itself refused the conversation through `raise_exception`.
    ///
    /// The request is at fault, not the template: a server answers 400.
    #[error("the model's chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// A template failed while rendering.
    #[error("chat template {name:?}, line {line}: {detail}")]
    TemplateRender {
        /// The template's name.
        name: String,
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// What failed.
        detail: String,
    },
    /// A template did more work than any real one does, so it is taken to be endless.
    #[error(
        "chat template {name:?}, line {line}: not done within {fuel} steps; it may loop without end, or its text grow \
         without end. Pass a corrected template, or do without one"
    )]
    TemplateEndless {
        /// The template's name.
        name: String,
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// The limit, in template instructions.
        fuel: u64,
    },
    /// A model has no chat template of this name.
    #[error("no chat template {wanted:?}; the model has {known}")]
    NoTemplate {
        /// The name asked for.
        wanted: String,
        /// The names that exist, comma separated.
        known: String,
    },
    /// More stop strings than a text can be searched for as it comes.
    #[error("{count} stop strings, at most {most} are taken; give fewer")]
    TooManyStops {
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A stop string so long that all of a text might be held back for it.
    #[error("stop string {index} has {bytes} bytes, at most {most} are taken; shorten it")]
    StopTooLong {
        /// Its place in the list, from 0.
        index: usize,
        /// Its length.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// An empty stop string would stop every text at once.
    #[error("stop string {index} is empty; remove it")]
    EmptyStop {
        /// Its place in the list, from 0.
        index: usize,
    },
}
