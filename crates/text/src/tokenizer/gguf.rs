use std::collections::BTreeMap;
use std::sync::Arc;

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::pieces::{PieceCoding, PieceKind, PieceTable, fallback_byte};
use super::pre_tokenizers::PreTokenizerSpec;
use super::spm::SpmMerger;
use super::{EndTokens, Inner, SpecialIds, Spm, Tokenizer, special};
use crate::TextError;
use crate::template::SpecialTexts;

/// The vocabulary in a GGUF file's metadata, as plain data.
///
/// Each field is the metadata key in its comment; a key that the file lacks is `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `general.name`: some models' token attributes are known by it alone.
    pub name: Option<String>,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of a byte-level BPE.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each token, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`: the score of each token.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused,
    /// 6 byte.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: two tokens with a space between, the best merge first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`: the chat template, if there is but one.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.NAME`: further templates by name.
    pub named_chat_templates: Vec<(String, String)>,
}

/// The kinds of token that `tokenizer.ggml.token_type` tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Byte,
}

impl GgufVocab {
    fn token_type(&self, id: usize) -> TokenType {
        match self.token_types.get(id) {
            Some(2) => TokenType::Unknown,
            Some(6) => TokenType::Byte,
            // Converters have left end-of-turn tokens marked as ordinary text.
            _ if special::names_an_end(&self.tokens[id]) => TokenType::Control,
            Some(3) => TokenType::Control,
            Some(4) => TokenType::UserDefined,
            _ if self.model == "llama" && fallback_byte(&self.tokens[id]).is_some() => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }

    /// Ids, texts and types of all tokens.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, &str, TokenType)> + Clone {
        let tokens = self.tokens.iter().enumerate();
        tokens.map(|(id, text)| (id as u32, text.as_str(), self.token_type(id)))
    }

    /// Phi-3's special tokens swallow the white space after them, which GGUF does not record.
    fn swallows_space(&self, token: &str) -> bool {
        let name = self.name.as_deref().unwrap_or_default().to_lowercase();
        (name.contains("phi-3") || name.contains("phi3"))
            && !["<unk>", "<s>", "<|endoftext|>"].contains(&token)
    }

    fn check(&self) -> Result<(), TextError> {
        let count = self.tokens.len();
        let invalid = |key, detail| Err(TextError::InvalidVocab { key, detail });
        if count == 0 || u32::try_from(count).is_err() {
            return invalid("tokenizer.ggml.tokens", format!("{count} tokens"));
        }
        let lists = [
            ("tokenizer.ggml.scores", self.scores.len()),
            ("tokenizer.ggml.token_type", self.token_types.len()),
        ];
        for (key, len) in lists {
            if len != 0 && len < count {
                return invalid(key, format!("{len} entries for {count} tokens"));
            }
        }
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.eom_token_id", self.eom),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return invalid(key, format!("token {id} of a vocabulary of {count}"));
            }
        }
        Ok(())
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF vocabulary.
    ///
    /// # Errors
    /// [`TextError::UnknownVocabModel`] and [`TextError::UnknownPreTokenizer`] name what is not
    /// supported and what is; [`TextError::InvalidVocab`] a vocabulary that contradicts itself.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TextError> {
        vocab.check()?;
        match vocab.model.as_str() {
            "gpt2" => byte_level_bpe(vocab),
            "llama" => sentencepiece(vocab),
            other => {
                Err(TextError::UnknownVocabModel { model: other.to_owned(), known: "gpt2, llama".to_owned() })
            }
        }
    }
}

fn byte_level_bpe(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    let pre = match vocab.pre.as_deref() {
        Some(pre) => PreTokenizerSpec::find(pre)?,
        None => {
            tracing::warn!("the GGUF file names no pre-tokenizer; token ids may be wrong");
            PreTokenizerSpec::find("default")?
        }
    };
    let mut hf = model(vocab, merges(vocab)?, pre.ignore_merges)?;
    let build_error =
        |e: tokenizers::Error| TextError::InvalidVocab { key: "tokenizer.ggml.pre", detail: e.to_string() };
    hf.with_pre_tokenizer(Some(pre.build().map_err(build_error)?));
    let ends =
        EndTokens::Fixed { bos: vocab.add_bos.unwrap_or(pre.add_bos), eos: vocab.add_eos.unwrap_or(false) };
    Ok(assemble(vocab, hf, None, PieceCoding::ByteLevel, 0, ends))
}

fn sentencepiece(vocab: &GgufVocab) -> Result<Tokenizer, TextError> {
    let hf = model(vocab, Merges::new(), false)?;
    let of_type = |wanted| vocab.entries().filter(move |&(_, _, kind)| kind == wanted);
    let score = |id: u32| vocab.scores.get(id as usize).copied().unwrap_or(0.0);
    let merger = SpmMerger::new(
        of_type(TokenType::Normal).map(|(id, text, _)| (id, text, score(id))),
        of_type(TokenType::Byte).map(|(id, text, _)| (id, text)),
        vocab.unk,
    );
    let space_prefix = vocab.add_space_prefix.unwrap_or(true);
    let ends = EndTokens::Fixed { bos: vocab.add_bos.unwrap_or(true), eos: vocab.add_eos.unwrap_or(false) };
    let spm = Some(Spm { merger, space_prefix });
    let strip = usize::from(space_prefix);
    Ok(assemble(vocab, hf, spm, PieceCoding::sentencepiece(), strip, ends))
}

fn merges(vocab: &GgufVocab) -> Result<Merges, TextError> {
    let known: std::collections::HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
    let mut merges = Merges::with_capacity(vocab.merges.len());
    for (rank, merge) in vocab.merges.iter().enumerate() {
        // A token may itself begin with a space, so the separator is never the first byte.
        let cut = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let Some(at) = cut else {
            return Err(TextError::InvalidVocab {
                key: "tokenizer.ggml.merges",
                detail: format!("merge {rank} is {merge:?}, not two tokens with a space between"),
            });
        };
        let (left, right) = (&merge[..at], &merge[at + 1..]);
        // A merge of tokens that do not exist can never apply.
        if [left, right, &format!("{left}{right}")].iter().all(|token| known.contains(token)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

fn model(vocab: &GgufVocab, merges: Merges, ignore_merges: bool) -> Result<tokenizers::Tokenizer, TextError> {
    let mut ids = Vocab::default();
    for (id, text, _) in vocab.entries().filter(|(_, text, _)| !text.is_empty()) {
        ids.entry(text.to_owned()).or_insert(id);
    }
    let bpe = BPE::builder().vocab_and_merges(ids, merges).ignore_merges(ignore_merges).build();
    let bpe =
        bpe.map_err(|e| TextError::InvalidVocab { key: "tokenizer.ggml.merges", detail: e.to_string() })?;
    Ok(tokenizers::Tokenizer::new(bpe))
}

fn assemble(
    vocab: &GgufVocab,
    mut hf: tokenizers::Tokenizer,
    spm: Option<Spm>,
    coding: PieceCoding,
    strip_start: usize,
    ends: EndTokens,
) -> Tokenizer {
    let mut pieces = PieceTable::new(strip_start);
    let mut added = Vec::new();
    for (_, text, kind) in vocab.entries() {
        let special = matches!(kind, TokenType::Control | TokenType::Unknown);
        if special || kind == TokenType::UserDefined {
            pieces.push(text.as_bytes(), if special { PieceKind::Special } else { PieceKind::Text });
            let token = AddedToken::from(text, special).normalized(false);
            added.push(token.rstrip(special && vocab.swallows_space(text)));
        } else {
            pieces.push(&coding.bytes(text), PieceKind::Text);
        }
    }
    hf.add_tokens(&added);
    let mut plain = hf.get_added_vocabulary().clone();
    plain.set_encode_special_tokens(true);

    let controls = vocab.entries().filter(|&(_, _, kind)| kind == TokenType::Control);
    let controls = controls.map(|(id, text, _)| (id, text));
    let declared = [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten();
    let text_of = |id: Option<u32>| vocab.tokens.get(id? as usize).cloned();
    let named = [
        ("bos_token", text_of(vocab.bos)),
        ("eos_token", text_of(vocab.eos)),
        ("unk_token", text_of(vocab.unk)),
        ("pad_token", text_of(vocab.pad)),
    ];
    let named: BTreeMap<String, String> =
        named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?))).collect();
    let ids = SpecialIds {
        bos: vocab.bos,
        eos: vocab.eos,
        unk: vocab.unk,
        pad: vocab.pad,
        end_of_generation: special::end_ids(declared, controls),
    };
    let specials = added.iter().filter(|token| token.special);
    let special_texts = SpecialTexts::new(specials.map(|token| token.content.as_str()));
    let longest = super::longest(&hf, &pieces, spm.is_some());
    Tokenizer(Arc::new(Inner {
        hf,
        plain,
        spm,
        pieces: Arc::new(pieces),
        special_texts,
        named,
        ids,
        ends,
        longest,
    }))
}
