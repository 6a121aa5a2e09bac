//! What stands beside the weights: tokenizer, templates, the tokens that end a text.

use std::path::{Path, PathBuf};

use portolan_text::{ChatTemplates, Tokenizer};
use portolan_weights::{Checkpoint, ConfigSource};
use serde_json::{Map, Value};

use crate::{
    Result,
    loader::{checkpoint_folder, gguf_vocab},
};

/// Files that are carried along, where the source has them.
const CARRIED: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tiktoken.model",
];

/// A file of the result.
pub(super) enum Text {
    Copy { from: PathBuf, bytes: u64 },
    Made(Vec<u8>),
}

impl Text {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Text::Copy { bytes, .. } => *bytes,
            Text::Made(text) => text.len() as u64,
        }
    }
}

/// The files by their paths in the result; and why there is no tokenizer among them, if there is none.
pub(super) type Texts = (Vec<(String, Text)>, Option<String>);

/// The texts of a checkpoint. From GGUF metadata, `config` gets the tokens that begin and end a text.
pub(super) fn texts(checkpoint: &Checkpoint, config: &mut Map<String, Value>) -> Result<Texts> {
    match &checkpoint.config {
        ConfigSource::Gguf(metadata) => {
            let vocab = gguf_vocab(metadata);
            if let Err(error) = ChatTemplates::from_gguf(&vocab) {
                tracing::warn!("{}: {error}", checkpoint.path.display());
            }
            let files = match Tokenizer::files_from_gguf(&vocab) {
                Ok(files) => files,
                Err(error) => {
                    for (field, id) in [("bos_token_id", vocab.bos), ("eos_token_id", vocab.eos)] {
                        if let Some(id) = id {
                            config.insert(field.to_owned(), id.into());
                        }
                    }
                    return Ok((Vec::new(), Some(error.to_string())));
                }
            };
            for field in ["bos_token_id", "eos_token_id", "pad_token_id"] {
                if let Some(id) = files.generation.get(field) {
                    config.insert(field.to_owned(), id.clone());
                }
            }
            let made = [
                ("tokenizer.json", files.tokenizer),
                ("tokenizer_config.json", files.config),
                ("generation_config.json", files.generation),
            ];
            let made = made.map(|(name, value)| (name.to_owned(), Text::Made(json_bytes(&value))));
            Ok((Vec::from(made), None))
        }
        _ => Ok(carried(checkpoint_folder(&checkpoint.path))),
    }
}

fn carried(folder: &Path) -> Texts {
    let mut files = Vec::new();
    let mut take = |name: String| {
        let from = folder.join(&name);
        if let Some(found) = std::fs::metadata(&from).ok().filter(|m| m.is_file()) {
            files.push((name, Text::Copy { from, bytes: found.len() }));
        }
    };
    CARRIED.iter().for_each(|name| take((*name).to_owned()));
    let more = "additional_chat_templates";
    let mut templates: Vec<String> = std::fs::read_dir(folder.join(more))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".jinja"))
        .collect();
    templates.sort();
    templates.into_iter().for_each(|name| take(format!("{more}/{name}")));
    let missing = (!files.iter().any(|(name, _)| name.starts_with("token") || name == "vocab.json"))
        .then(|| format!("{} holds none", folder.display()));
    (files, missing)
}

/// JSON as a person reads it, with a line's end.
pub(super) fn json_bytes(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
