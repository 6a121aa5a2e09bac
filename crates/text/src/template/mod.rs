//! Chat templates: a conversation becomes the text that the model was trained on.

mod bounds;
mod clock;
mod environment;
mod expression;
mod guard;
mod input;
mod methods;
mod python_json;
mod set;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde_json::{Map, Value};

use crate::{TextError, Tokenizer};
use bounds::MOST_BYTES;
pub use clock::{Clock, LocalTime};
use environment::{Raised, environment, fuel};
use guard::Guard;
pub(crate) use guard::SpecialTexts;
pub use input::{ChatInput, Message};
pub use set::ChatTemplates;

/// A parsed chat template. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatTemplate(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    name: String,
    source: String,
    env: Environment<'static>,
}

/// The engine's name of the one template in an environment.
const TEMPLATE: &str = "chat";

/// Bytes of a format of `strftime_now`: each two may become twenty.
const MOST_TIME_FORMAT: usize = 1000;

/// A conversation as text, with the special tokens in messages told apart from the template's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    guarded: String,
    guard: Option<char>,
}

impl RenderedChat {
    /// The text, as any other engine would render it.
    pub fn text(&self) -> String {
        match self.guard {
            Some(guard) => self.guarded.replace(guard, ""),
            None => self.guarded.clone(),
        }
    }

    /// The text in which every special token of a message is broken up by [`Self::guard`].
    pub(crate) fn guarded(&self) -> &str {
        &self.guarded
    }

    pub(crate) fn guard(&self) -> Option<char> {
        self.guard
    }
}

impl ChatTemplate {
    /// Parses a template. `name` is used in messages only.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Result<Self, TextError> {
        let (name, source) = (name.into(), source.into());
        let mut env = environment();
        let syntax = |line, detail| TextError::TemplateSyntax { name: name.clone(), line, detail };
        let engine = source::to_engine(&source).map_err(|(line, detail)| syntax(line, detail))?;
        env.add_template_owned(TEMPLATE, engine).map_err(|e| {
            syntax(e.line().unwrap_or(0), e.detail().map_or_else(|| e.to_string(), str::to_owned))
        })?;
        Ok(Self(Arc::new(Parsed { name, source, env })))
    }

    /// The template's name: `default`, `tool_use`, or what the caller gave it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Renders a conversation for `tokenizer`, whose special tokens in messages stay text.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] if the template itself refuses the conversation,
    /// [`TextError::TemplateEndless`] if it does not come to an end, and
    /// [`TextError::TemplateRender`] for what else fails in it.
    pub fn render(&self, input: &ChatInput<'_>, tokenizer: &Tokenizer) -> Result<RenderedChat, TextError> {
        self.render_guarded(input, tokenizer.named_tokens(), tokenizer.special_texts())
    }

    /// Renders a conversation to plain text, with no thought of special tokens in messages.
    /// `named` are the texts of `bos_token`, `eos_token` and so on.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_text(
        &self,
        input: &ChatInput<'_>,
        named: &BTreeMap<String, String>,
    ) -> Result<String, TextError> {
        let messages: Vec<&Map<String, Value>> = input.messages.iter().map(Message::fields).collect();
        self.run(input, &messages, input.tools.map(<[Value]>::to_vec), input.documents, named)
    }

    fn render_guarded(
        &self,
        input: &ChatInput<'_>,
        named: &BTreeMap<String, String>,
        texts: &SpecialTexts,
    ) -> Result<RenderedChat, TextError> {
        let mut found = BTreeSet::new();
        let mut by_model = BTreeSet::new();
        for message in input.messages {
            let found = if message.role() == "assistant" { &mut by_model } else { &mut found };
            message.fields().values().for_each(|v| guard::special_texts_in(texts, v, found));
        }
        let extra = input.tools.unwrap_or_default().iter().chain(input.documents.unwrap_or_default());
        extra.clone().for_each(|value| guard::special_texts_in(texts, value, &mut found));
        if found.is_empty() && by_model.is_empty() {
            let guarded = self.render_text(input, named)?;
            return Ok(RenderedChat { guarded, guard: None });
        }

        let source = Value::String(self.0.source.clone());
        let fields = input.messages.iter().flat_map(|message| message.fields().values());
        let values = fields.chain(extra).chain([&source]);
        let character = guard::unused_guard(values).ok_or_else(|| TextError::TemplateRender {
            name: self.0.name.clone(),
            line: 0,
            detail: "the messages use all of the noncharacters U+FDD0 to U+FDEF".to_owned(),
        })?;
        let render = |let_through: &BTreeSet<String>| {
            let text = self.run_guarded(input, named, texts, character, let_through)?;
            Ok(RenderedChat { guarded: text, guard: Some(character) })
        };
        // Templates look into what the model said, for example to take its reasoning out, and
        // must find the tokens there. So what stands in the model's own messages is guarded only
        // as far as that changes nothing in the text.
        let reference = render(&by_model);
        if by_model.is_empty() {
            return reference;
        }
        let reference = reference?;
        let same = |rendered: &RenderedChat| rendered.text() == reference.text();
        if let Some(all) = render(&BTreeSet::new()).ok().filter(same) {
            return Ok(all);
        }
        let mut let_through = by_model.clone();
        let mut best = reference.clone();
        for text in by_model {
            let_through.remove(&text);
            match render(&let_through).ok().filter(same) {
                Some(rendered) => best = rendered,
                None => drop(let_through.insert(text)),
            }
        }
        Ok(best)
    }

    /// Renders with guards in everything but those `let_through` in the model's messages.
    fn run_guarded(
        &self,
        input: &ChatInput<'_>,
        named: &BTreeMap<String, String>,
        texts: &SpecialTexts,
        character: char,
        let_through: &BTreeSet<String>,
    ) -> Result<String, TextError> {
        let nothing = BTreeSet::new();
        let strict = Guard { texts, character, let_through: &nothing };
        let lenient = Guard { texts, character, let_through };
        let guarded = input.messages.iter().map(|message| match message.role() {
            "assistant" => lenient.message(message.fields()),
            _ => strict.message(message.fields()),
        });
        let guarded: Vec<Map<String, Value>> = guarded.collect();
        let all = |values: &[Value]| values.iter().map(|v| strict.value(v)).collect::<Vec<_>>();
        let documents = input.documents.map(all);
        let messages: Vec<&Map<String, Value>> = guarded.iter().collect();
        self.run(input, &messages, input.tools.map(all), documents.as_deref(), named)
    }

    fn run(
        &self,
        input: &ChatInput<'_>,
        messages: &[&Map<String, Value>],
        tools: Option<Vec<Value>>,
        documents: Option<&[Value]>,
        named: &BTreeMap<String, String>,
    ) -> Result<String, TextError> {
        let now = input.clock.now();
        let strftime = move |format: &str| match format.len() {
            0..=MOST_TIME_FORMAT => Ok(now.format(format)),
            len => Err(minijinja::Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: a format of {len} bytes, at most {MOST_TIME_FORMAT}"),
            )),
        };
        let mut context: BTreeMap<&str, Jinja> = BTreeMap::new();
        for (name, text) in named {
            context.insert(name, Jinja::from(text.as_str()));
        }
        context.insert("messages", Jinja::from(Serde(messages)));
        context.insert("tools", Jinja::from(Serde(tools)));
        context.insert("documents", Jinja::from(Serde(documents)));
        context.insert("add_generation_prompt", input.add_generation_prompt.into());
        context.insert("strftime_now", Jinja::from_function(strftime));
        for (name, value) in &input.variables {
            context.insert(name, Jinja::from(Serde(value)));
        }
        let fuel = fuel(messages.len());
        let mut env = self.0.env.clone();
        env.set_fuel(Some(fuel));
        let template = env.get_template(TEMPLATE).map_err(|e| self.failed(&e, fuel))?;
        let text = template.render(Jinja::from(context)).map_err(|e| self.failed(&e, fuel))?;
        match text.len() {
            len if len > MOST_BYTES => Err(TextError::TemplateRender {
                name: self.0.name.clone(),
                line: 0,
                detail: format!("a prompt of {len} bytes, more than {MOST_BYTES}; shorten the conversation"),
            }),
            _ => Ok(text),
        }
    }

    fn failed(&self, whole: &minijinja::Error, fuel: u64) -> TextError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(whole);
        while let Some(error) = cause {
            if let Some(Raised(message)) = error.downcast_ref() {
                return TextError::TemplateRefused { message: message.clone() };
            }
            if error.downcast_ref().map(minijinja::Error::kind) == Some(ErrorKind::OutOfFuel) {
                let line = error.downcast_ref().and_then(minijinja::Error::line);
                let line = line.or(whole.line()).unwrap_or(0);
                return TextError::TemplateEndless { name: self.0.name.clone(), line, fuel };
            }
            cause = error.source();
        }
        let (name, line) = (self.0.name.clone(), whole.line().unwrap_or(0));
        if matches!(whole.kind(), ErrorKind::BadInclude | ErrorKind::TemplateNotFound) {
            let detail = "a chat template stands alone: it can include, import or extend nothing".to_owned();
            return TextError::TemplateRender { name, line, detail };
        }
        TextError::TemplateRender {
            name,
            line,
            detail: whole
                .detail()
                .map_or_else(|| whole.to_string(), |detail| format!("{}: {detail}", whole.kind())),
        }
    }
}
