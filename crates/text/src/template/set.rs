use std::path::Path;

use serde_json::Value;

use super::ChatTemplate;
use crate::tokenizer::{read_json, read_regular};
use crate::{GgufVocab, TextError};

/// A model's chat templates; most have one, named `default`.
#[derive(Debug, Clone, Default)]
pub struct ChatTemplates(Vec<ChatTemplate>);

impl ChatTemplates {
    /// Reads a folder's templates: `chat_template.jinja` and `additional_chat_templates/`, or
    /// else `chat_template` in `tokenizer_config.json` or `chat_template.json`. A folder without
    /// any gives an empty set.
    ///
    /// # Errors
    /// A file that cannot be read, is not valid, or holds a template that does not parse.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let mut set = Self::default();
        for file in ["tokenizer_config.json", "chat_template.json"] {
            let path = folder.join(file);
            if let Some(templates) = read_json(&path)?.as_ref().and_then(|c| c.get("chat_template")) {
                set.extend(Self::from_value(templates, &path.display().to_string())?);
            }
        }
        // Files of their own are the newer form and win.
        if let Some(source) = read_text(&folder.join("chat_template.jinja"))? {
            set.insert(ChatTemplate::new("default", source)?);
        }
        let more = folder.join("additional_chat_templates");
        let entries = std::fs::read_dir(more).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "jinja")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if let Some(source) = read_text(path)? {
                set.insert(ChatTemplate::new(name, source)?);
            }
        }
        Ok(set)
    }

    /// The templates in a `chat_template` entry: one text, or a list of `{name, template}`.
    /// `file` names the place in messages.
    ///
    /// # Errors
    /// [`TextError::InvalidFile`] if it is neither, [`TextError::TemplateSyntax`] if a template
    /// does not parse.
    pub fn from_value(value: &Value, file: &str) -> Result<Self, TextError> {
        let mut set = Self::default();
        let one = |entry: &Value| {
            let text = |key: &str| entry.get(key).and_then(Value::as_str);
            let parts = text("name").zip(text("template"));
            let (name, source) = parts.ok_or_else(|| TextError::InvalidFile {
                file: file.to_owned(),
                detail: "chat_template is a list, but not of {name, template}".to_owned(),
            })?;
            ChatTemplate::new(name, source)
        };
        match value {
            Value::Null => {}
            Value::String(source) => set.insert(ChatTemplate::new("default", source.as_str())?),
            Value::Array(entries) => {
                for entry in entries {
                    set.insert(one(entry)?);
                }
            }
            _ => {
                return Err(TextError::InvalidFile {
                    file: file.to_owned(),
                    detail: "chat_template is neither a text nor a list".to_owned(),
                });
            }
        }
        Ok(set)
    }

    /// The templates that a GGUF file carries.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] if one does not parse.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TextError> {
        let mut set = Self::default();
        for (name, source) in &vocab.named_chat_templates {
            set.insert(ChatTemplate::new(name.as_str(), source.as_str())?);
        }
        if let Some(source) = &vocab.chat_template {
            set.insert(ChatTemplate::new("default", source.as_str())?);
        }
        Ok(set)
    }

    /// Picks a template: the one `named`; or else, for a conversation with tools, `tool_use`
    /// where there is one; or else `default`.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`], with the names that exist.
    pub fn pick(&self, named: Option<&str>, with_tools: bool) -> Result<&ChatTemplate, TextError> {
        let by_name = |name: &str| self.0.iter().find(|template| template.name() == name);
        let found = match named {
            Some(name) => by_name(name),
            None => with_tools.then(|| by_name("tool_use")).flatten().or_else(|| by_name("default")),
        };
        found.ok_or_else(|| TextError::NoTemplate {
            wanted: named.unwrap_or("default").to_owned(),
            known: match self.0.is_empty() {
                true => "none".to_owned(),
                false => self.names().collect::<Vec<_>>().join(", "),
            },
        })
    }

    /// The names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(ChatTemplate::name)
    }

    /// Whether the model has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a template, in the place of one with the same name.
    pub fn insert(&mut self, template: ChatTemplate) {
        self.0.retain(|other| other.name() != template.name());
        self.0.push(template);
    }

    fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|template| self.insert(template));
    }
}

fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    let text = read_regular(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e))
    });
    match text {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}
