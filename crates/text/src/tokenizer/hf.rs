use std::collections::BTreeMap;
use std::io;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper};

use super::pieces::{PieceCoding, PieceKind, PieceTable, coding_of_decoder};
use super::{EndTokens, Inner, SpecialIds, Tokenizer, eos_ids, longest, special};
use crate::TextError;
use crate::template::SpecialTexts;

/// Names of single special tokens in `tokenizer_config.json` and `special_tokens_map.json`.
const NAMED: &[&str] =
    &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// Tokenizer classes whose own code puts BOS and EOS at the ends by `add_bos_token` and
/// `add_eos_token`, whatever the post-processor in `tokenizer.json` says.
const ENDS_BY_FLAG: &[&str] = &["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"];

/// Room above the number of tokens for gaps in the ids, before a file is taken to be broken.
const MAX_ID_GAP: usize = 1 << 20;

impl Tokenizer {
    /// Reads a folder's `tokenizer.json` with what stands beside it: `tokenizer_config.json`,
    /// `special_tokens_map.json`, and the end tokens of `generation_config.json`.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] if there is no `tokenizer.json`; otherwise an error that names
    /// the file at fault.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            let hint = match folder.join("tokenizer.model").exists() {
                true => " (only tokenizer.model, which this program does not read)",
                false => "",
            };
            return Err(TextError::NoTokenizer { folder: folder.to_owned(), hint });
        }
        let json = read_regular(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
        let mut config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        if let (Value::Object(config), Value::Object(map)) = (&mut config, map) {
            for (name, token) in map {
                config.entry(name).or_insert(token);
            }
        }
        let generation_path = folder.join("generation_config.json");
        let generation = read_json(&generation_path)?.unwrap_or_default();
        let ends = eos_ids(&generation, &generation_path.display().to_string())?;
        Self::from_json(&json, &config, &ends).map_err(|e| match e {
            TextError::InvalidFile { detail, .. } => {
                TextError::InvalidFile { file: path.display().to_string(), detail }
            }
            other => other,
        })
    }

    /// Builds a tokenizer from the contents of `tokenizer.json` and `tokenizer_config.json`
    /// (`Value::Null` if there is none), and the ids that `generation_config.json` ends at.
    ///
    /// # Errors
    /// [`TextError::InvalidFile`] if the JSON is no tokenizer, [`TextError::UnsupportedDecoder`]
    /// if its tokens cannot be decoded one by one.
    pub fn from_json(json: &[u8], config: &Value, ends: &[u32]) -> Result<Self, TextError> {
        let invalid = |detail: String| TextError::InvalidFile { file: "tokenizer.json".into(), detail };
        // LOCAL_FIX(11)
        let read = catch_unwind(|| tokenizers::Tokenizer::from_bytes(json));
        let read = read.map_err(|_| invalid("the tokenizers library cannot read a part of it".to_owned()))?;
        let mut hf = read.map_err(|e| invalid(e.to_string()))?;
        // Training settings that some files carry along: a prompt is neither cut nor filled up.
        hf.with_padding(None);
        hf.with_truncation(None).map_err(|e| invalid(e.to_string()))?;
        // With a dropout the same text would be other tokens each time.
        if let ModelWrapper::BPE(bpe) = hf.get_model()
            && bpe.dropout.is_some()
        {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            hf.with_model(bpe);
        }

        add_configured_tokens(&mut hf, config);
        let named = named_tokens(config);
        let roles = unmarked_roles(&hf, &named, config);
        hf.add_special_tokens(&roles);

        let decoder = hf.get_decoder().map(serde_json::to_value).transpose();
        let decoder = decoder.map_err(|e| invalid(e.to_string()))?.unwrap_or_default();
        let (coding, strip_start) = coding_of_decoder(&decoder)?;
        let added = hf.get_added_tokens_decoder();
        let vocab = hf.get_vocab(true);
        let size = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if size > vocab.len() + MAX_ID_GAP {
            return Err(invalid(format!("{} tokens, but ids up to {}", vocab.len(), size - 1)));
        }
        let mut by_id: Vec<Option<&str>> = vec![None; size];
        for (text, &id) in &vocab {
            by_id[id as usize] = Some(text);
        }
        let mut pieces = PieceTable::new(strip_start);
        for (id, text) in by_id.iter().enumerate() {
            match (text, added.get(&(id as u32))) {
                (_, Some(token)) if token.special => {
                    pieces.push(token.content.as_bytes(), PieceKind::Special);
                }
                (_, Some(token)) => pieces.push(token.content.as_bytes(), PieceKind::Text),
                (Some(text), None) => pieces.push(&coding.bytes(text), PieceKind::Text),
                (None, None) => pieces.push(&[], PieceKind::Absent),
            }
        }

        let mut plain = hf.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let special = added.iter().filter(|(_, token)| token.special);
        let special = special.map(|(&id, token)| (id, token.content.as_str()));
        let id_of = |name: &str| named.get(name).and_then(|text| hf.token_to_id(text));
        let model_unk = serde_json::to_value(hf.get_model())
            .ok()
            .and_then(|model| hf.token_to_id(model.get("unk_token")?.as_str()?));
        let eos = id_of("eos_token");
        let ids = SpecialIds {
            bos: id_of("bos_token"),
            eos,
            unk: model_unk.or(id_of("unk_token")),
            pad: id_of("pad_token"),
            end_of_generation: special::end_ids(ends.iter().copied().chain(eos), special.clone()),
        };
        let special_texts = SpecialTexts::new(special.map(|(_, text)| text));
        let ends = end_tokens(config, &ids);
        // Without the byte-level spelling a token's text is not that of the prompt.
        let longest = (coding == PieceCoding::ByteLevel).then(|| longest(&hf, &pieces, false)).flatten();
        let pieces = Arc::new(pieces);
        Ok(Self(Arc::new(Inner { hf, plain, spm: None, pieces, special_texts, named, ids, ends, longest })))
    }
}

/// Most bytes of a tokenizer or a template: those of the largest vocabularies take some 40 MiB.
const MOST: u64 = 256 << 20;

/// Reads a regular file whole, without the mark that some editors put in front of UTF-8. Anything else is refused
/// without opening it, since to open a pipe waits for whoever writes to it; and so is a file that would fill the memory.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    if metadata.len() > MOST {
        return refuse(format!("it has {} bytes, where at most {MOST} were expected", metadata.len()));
    }
    let mut bytes = std::fs::read(path)?;
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    Ok(bytes)
}

/// Reads a JSON file that may be missing.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, TextError> {
    let text = match read_regular(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TextError::Read { path: path.to_owned(), source }),
    };
    let json = serde_json::from_slice(&text);
    json.map(Some)
        .map_err(|e| TextError::InvalidFile { file: path.display().to_string(), detail: e.to_string() })
}

/// Adds the tokens that only `tokenizer_config.json` lists (`added_tokens_decoder`).
fn add_configured_tokens(hf: &mut tokenizers::Tokenizer, config: &Value) {
    let Some(listed) = config.get("added_tokens_decoder").and_then(Value::as_object) else { return };
    let mut listed: Vec<(u32, &Value)> =
        listed.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
    listed.sort_by_key(|&(id, _)| id);
    for (id, token) in listed {
        let Some(text) = token.get("content").and_then(Value::as_str) else { continue };
        if hf.token_to_id(text).is_some() {
            continue;
        }
        let flag = |key: &str| token.get(key).and_then(Value::as_bool).unwrap_or(false);
        let added = AddedToken::from(text, flag("special"))
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized"));
        // The library gives out ids in order; a token that would get another id than the one it
        // was trained with is better left out.
        if hf.get_vocab_size(true) as u32 == id {
            hf.add_tokens(&[added]);
        } else {
            tracing::warn!(token = text, id, "tokenizer_config.json lists a token that tokenizer.json lacks");
        }
    }
}

/// A token in a config: its text, or an object that holds it.
fn token_text(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

fn named_tokens(config: &Value) -> BTreeMap<String, String> {
    let named = NAMED.iter().filter_map(|&name| Some((name.to_owned(), token_text(config.get(name)?)?)));
    named.collect()
}

/// Tokens with a role that `tokenizer.json` does not mark as special, as it should.
fn unmarked_roles(
    hf: &tokenizers::Tokenizer,
    named: &BTreeMap<String, String>,
    config: &Value,
) -> Vec<AddedToken> {
    let more = config.get("additional_special_tokens").and_then(Value::as_array);
    let more = more.into_iter().flatten().filter_map(token_text);
    let roles = named.values().cloned().chain(more).filter(|text| hf.token_to_id(text).is_some());
    let unmarked = roles.filter(|text| !hf.get_added_vocabulary().is_special_token(text));
    unmarked.map(|text| AddedToken::from(text, true)).collect()
}

fn end_tokens(config: &Value, ids: &SpecialIds) -> EndTokens {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    let by_flag = ENDS_BY_FLAG.contains(&class.trim_end_matches("Fast"));
    match flag("add_bos_token") {
        Some(bos) if by_flag && ids.bos.is_some() => {
            EndTokens::Fixed { bos, eos: flag("add_eos_token").unwrap_or(false) }
        }
        _ => EndTokens::PostProcessor,
    }
}
