//! What a user may type where a model is wanted.

use std::path::{Component, Path, PathBuf};

use super::HubError;

/// The name of the model that is used when none is given.
pub const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct";

/// A model argument, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Spec {
    /// A folder or file that is there.
    Path(PathBuf),
    /// The default model.
    Default,
    /// A name on the hub.
    Hub(HubName),
}

/// `owner/name[@revision][:file]`. Every part is safe in a path and, but for `/` in the last two, in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubName {
    pub(super) owner: String,
    pub(super) name: String,
    pub(super) revision: String,
    pub(super) file: Option<String>,
}

impl HubName {
    /// `owner/name`.
    pub(super) fn repo(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

impl Spec {
    pub(super) fn parse(spec: &str) -> Result<Self, HubError> {
        let path = Path::new(spec);
        if path.is_dir() {
            return Ok(Self::Path(path.to_owned()));
        }
        if path.exists() {
            return match is_checkpoint_file(spec) {
                true => Ok(Self::Path(path.to_owned())),
                false => Err(HubError::UnsupportedFile { path: path.to_owned() }),
            };
        }
        if spec.eq_ignore_ascii_case("smollm2") || spec.eq_ignore_ascii_case(DEFAULT_MODEL) {
            return Ok(Self::Default);
        }
        if let Some(name) = hub_name(spec) {
            return Ok(Self::Hub(name));
        }
        Err(match looks_like_path(spec) {
            true => HubError::NotFound { path: path.to_owned() },
            false => HubError::BadSpec { spec: spec.to_owned() },
        })
    }
}

fn is_checkpoint_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|e| e.eq_ignore_ascii_case("gguf") || e.eq_ignore_ascii_case("safetensors"))
}

fn looks_like_path(spec: &str) -> bool {
    spec.contains(['/', '\\']) || spec.starts_with(['.', '~']) || is_checkpoint_file(spec)
}

fn hub_name(spec: &str) -> Option<HubName> {
    let (repo, file) = match spec.split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None => (spec, None),
    };
    let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
    let (owner, name) = repo.split_once('/')?;
    // `models/llama.gguf` is a path that is not there, rather than a repository with such a name.
    let ok = is_word(owner)
        && is_word(name)
        && revision.split('/').all(is_word)
        && !(file.is_none() && is_checkpoint_file(name))
        && file.is_none_or(|file| is_safe_relative(file) && file.to_ascii_lowercase().ends_with(".gguf"));
    ok.then(|| HubName {
        owner: owner.to_owned(),
        name: name.to_owned(),
        revision: revision.to_owned(),
        file: file.map(str::to_owned),
    })
}

/// A part of a hub name: letters, digits and `-_.`, not starting with a dot (nor so with the cache's own files).
fn is_word(word: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !word.is_empty() && !word.starts_with('.') && word.len() <= 128 && word.chars().all(allowed)
}

/// Whether joining `name` to a folder stays in the folder, on any system, and hits no hidden file of the cache.
pub(super) fn is_safe_relative(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', ':', '\0'])
        && !name.contains("//")
        && !name.ends_with('/')
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
        && !name.split('/').any(|part| part == ".")
}
