//! Shared by the integration tests: the oracle folder and a reader for GGUF vocabularies.
#![allow(dead_code)]

pub(crate) mod gguf;

use std::path::PathBuf;

use serde_json::{Value, json};

/// A path in the oracle folder that `PORTOLAN_ORACLE` names. `None`, with a line on stderr, if
/// there is none; under `PORTOLAN_ORACLE_REQUIRED=1` that is a failure.
#[track_caller]
pub(crate) fn oracle(sub: &str) -> Option<PathBuf> {
    let found = std::env::var_os("PORTOLAN_ORACLE").map(|root| PathBuf::from(root).join(sub));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        let required = std::env::var_os("PORTOLAN_ORACLE_REQUIRED").is_some_and(|v| v == "1");
        assert!(!required, "PORTOLAN_ORACLE has no {sub}");
        eprintln!("SKIPPED(no oracle: {sub})");
    }
    found
}

/// A small tokenizer.json: letters and words over SentencePiece's coding, with BOS added.
pub(crate) fn small() -> Value {
    let words = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "▁a", "ab", "▁ab"];
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, &word)| (word.to_owned(), id.into())).collect();
    let added = |id: usize| {
        json!({"id": id, "content": words[id], "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "added_tokens": [added(0), added(1), added(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": [["▁", "a"], ["▁a", "b"], ["a", "b"]]}
    })
}
