use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Clock;
use crate::TextError;

/// One message of a conversation: `role`, `content`, and whatever else templates read
/// (`tool_calls`, `reasoning_content`, `name`, ...).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A message with a text.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), role.into());
        fields.insert("content".to_owned(), Value::String(content.into()));
        Self(fields)
    }

    /// What the system is told.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// A message from JSON in the form of OpenAI's API.
    ///
    /// # Errors
    /// [`TextError::InvalidFile`] if it is no object with a `role`.
    pub fn from_json(value: Value) -> Result<Self, TextError> {
        match value {
            Value::Object(fields) if fields.get("role").is_some_and(Value::is_string) => Ok(Self(fields)),
            other => {
                // Its beginning will do.
                let shown: String = other.to_string().chars().take(200).collect();
                let detail = format!("no object with a role: {shown}");
                Err(TextError::InvalidFile { file: "message".to_owned(), detail })
            }
        }
    }

    /// The same with one more field.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// Who speaks.
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Value::as_str).unwrap_or_default()
    }

    /// All fields, `role` and `content` among them.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// What a template renders.
#[derive(Debug, Clone)]
pub struct ChatInput<'a> {
    /// The conversation, oldest message first.
    pub messages: &'a [Message],
    /// Tools in the form of OpenAI's API.
    pub tools: Option<&'a [Value]>,
    /// Documents for models that answer from them.
    pub documents: Option<&'a [Value]>,
    /// End with the beginning of the model's answer. On in [`Self::new`].
    pub add_generation_prompt: bool,
    /// Further variables that the model's template knows, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// What `strftime_now` goes by.
    pub clock: Clock,
}

impl<'a> ChatInput<'a> {
    /// A conversation that the model is to continue.
    pub fn new(messages: &'a [Message]) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            variables: Map::new(),
            clock: Clock::System,
        }
    }
}
