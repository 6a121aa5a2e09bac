//! A GGUF vocabulary as the files that a folder of Hugging Face has in its place.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::gguf::TokenType;
use super::{EncodeOptions, EndTokens, GgufVocab, Tokenizer};
use crate::TextError;

/// The files that [`Tokenizer::from_folder`] and other programs read.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`, with the chat templates.
    pub config: Value,
    /// `generation_config.json`: the tokens that begin and end a text.
    pub generation: Value,
}

/// A text with most of what tokenizers differ about: it must come to the same ids through the files.
const PROBE: &str = "Hello,  world! It's 1234.5 \u{2014} na\u{ef}ve \u{4f60}\u{597d}\n\n\tlet x_1 = foo(\"bar\");  \u{1f999} END ";

impl Tokenizer {
    /// Writes the tokenizer of a GGUF vocabulary as files. What a text comes to through them is compared with what it
    /// comes to here; a difference is logged, since the files are still of use.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn files_from_gguf(vocab: &GgufVocab) -> Result<TokenizerFiles, TextError> {
        let tokenizer = Self::from_gguf(vocab)?;
        let inner = &*tokenizer.0;
        let invalid = |detail: String| TextError::InvalidVocab { key: "tokenizer.ggml.tokens", detail };
        let mut json = serde_json::to_value(&inner.hf).map_err(|e| invalid(e.to_string()))?;
        match &inner.spm {
            Some(spm) => sentencepiece(vocab, spm.space_prefix, &mut json),
            None => {
                json["decoder"] = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                                         "use_regex": true});
            }
        }
        json["post_processor"] = tokenizer.post_processor();
        let files = TokenizerFiles {
            config: tokenizer_config(vocab, &tokenizer),
            generation: generation_config(&tokenizer),
            tokenizer: json,
        };
        let read_again = Self::from_json(
            files.tokenizer.to_string().as_bytes(),
            &files.config,
            tokenizer.end_of_generation_ids(),
        )?;
        let options = EncodeOptions { add_special: true, parse_special: false };
        if read_again.encode(PROBE, options)? != tokenizer.encode(PROBE, options)? {
            tracing::warn!(
                "tokenizer.json cuts a text in another way than the GGUF vocabulary does: texts with rare characters \
                 may get other token ids"
            );
        }
        Ok(files)
    }

    /// The post-processor that puts the same tokens at the ends of a text; null for none.
    fn post_processor(&self) -> Value {
        let EndTokens::Fixed { bos, eos } = self.0.ends else { return Value::Null };
        let end = |wanted: bool, name: &str, id: Option<u32>| {
            Some((self.0.named.get(name)?.as_str(), id?)).filter(|_| wanted)
        };
        let (bos, eos) = (end(bos, "bos_token", self.bos_id()), end(eos, "eos_token", self.eos_id()));
        if bos.is_none() && eos.is_none() {
            return Value::Null;
        }
        let special = |token: Option<(&str, u32)>, kind: u8| {
            token.map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
        };
        let around = |name: &str, kind: u8| -> Vec<Value> {
            let sequence = json!({"Sequence": {"id": name, "type_id": kind}});
            special(bos, kind).into_iter().chain([sequence]).chain(special(eos, kind)).collect()
        };
        let tokens: Map<String, Value> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|(text, id)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
            .collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": tokens,
        })
    }
}

/// The rules of SentencePiece, in the terms of `tokenizer.json`: a list of merges takes the place of scores. It is made
/// as transformers makes it: for each token every pair of tokens that it consists of, the best score first.
fn sentencepiece(vocab: &GgufVocab, space_prefix: bool, json: &mut Value) {
    let ordinary: HashMap<&str, u32> = vocab
        .entries()
        .filter(|(_, text, kind)| *kind == TokenType::Normal && !text.is_empty())
        .map(|(id, text, _)| (text, id))
        .collect();
    let score = |id: u32| vocab.scores.get(id as usize).copied().unwrap_or(0.0);
    let mut merges: Vec<(f32, u32, u32, u32, &str, &str)> = Vec::new();
    for (&text, &id) in &ordinary {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (ordinary.get(left), ordinary.get(right)) {
                merges.push((score(id), id, l, r, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    let model = &mut json["model"];
    model["merges"] = merges.iter().map(|m| json!([m.4, m.5])).collect();
    model["byte_fallback"] = json!(true);
    model["fuse_unk"] = json!(true);
    model["unk_token"] = json!(vocab.unk.and_then(|id| vocab.tokens.get(id as usize)));
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let mut normalizers = vec![spaces];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if space_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    json["decoder"] = json!({"type": "Sequence", "decoders": decoders});
}

fn tokenizer_config(vocab: &GgufVocab, tokenizer: &Tokenizer) -> Value {
    let mut config = Map::new();
    for (name, text) in tokenizer.named_tokens() {
        config.insert(name.clone(), json!(text));
    }
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    let default = vocab.chat_template.as_ref().map(|template| ("default", template));
    let named = vocab.named_chat_templates.iter().map(|(name, template)| (name.as_str(), template));
    let templates: Vec<_> = default.into_iter().chain(named).collect();
    let templates = match templates.as_slice() {
        [] => None,
        [("default", template)] => Some(json!(template)),
        several => Some(several.iter().map(|(name, t)| json!({"name": name, "template": t})).collect()),
    };
    if let Some(templates) = templates {
        config.insert("chat_template".to_owned(), templates);
    }
    config.into()
}

fn generation_config(tokenizer: &Tokenizer) -> Value {
    let mut generation = Map::new();
    let mut insert = |name: &str, value: Value| drop(generation.insert(name.to_owned(), value));
    if let Some(id) = tokenizer.bos_id() {
        insert("bos_token_id", json!(id));
    }
    match tokenizer.end_of_generation_ids() {
        [] => {}
        [one] => insert("eos_token_id", json!(one)),
        several => insert("eos_token_id", json!(several)),
    }
    if let Some(id) = tokenizer.pad_id() {
        insert("pad_token_id", json!(id));
    }
    generation.into()
}
