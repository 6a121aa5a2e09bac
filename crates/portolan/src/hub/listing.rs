//! What a repository on a hub holds, and which of it is needed.

use serde_json::Value;

use super::http::{Client, encode};
use super::partial::Expected;
use super::spec::{HubName, is_safe_relative};
use super::{HubError, Progress};

/// The longest listing that is read. The largest repositories have a few thousand files of about 300 bytes.
const MAX_LISTING: u64 = 64 << 20;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    /// Its path in the repository; safe to join to a folder.
    pub(super) name: String,
    pub(super) expected: Expected,
}

/// The files of a repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    /// The commit that the revision stands for, if the hub says. Files are asked for by it, so that a push in
    /// the middle of a download cannot mix two versions.
    pub(super) commit: Option<String>,
    pub(super) files: Vec<Remote>,
}

impl Listing {
    /// Asks the hub at `endpoint`.
    pub(super) fn fetch(
        client: &Client,
        endpoint: &str,
        name: &HubName,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Self, HubError> {
        let revision = encode(&name.revision, false);
        let url = format!("{endpoint}/api/models/{}/revision/{revision}?blobs=true", name.repo());
        let json = client.insist(&url, progress, |_, _| {
            let mut response = client.get(&url, 0)?;
            let body = response.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
            body.map_err(super::http::Failure::again)
        });
        let json = json.map_err(|error| explain(error, client, endpoint, name))?;
        let json = serde_json::from_slice(&json).map_err(|error| error.to_string());
        json.and_then(|json| Self::parse(&json))
            .map_err(|reason| HubError::BadListing { url, reason })?
            .checked(name)
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let siblings =
            json.get("siblings").and_then(Value::as_array).ok_or("it has no array \"siblings\"")?;
        let mut files = Vec::with_capacity(siblings.len());
        for sibling in siblings {
            let name = sibling.get("rfilename").and_then(Value::as_str);
            let name = name.ok_or("one of \"siblings\" has no \"rfilename\"")?;
            let lfs = sibling.get("lfs");
            let size = lfs.and_then(|lfs| lfs.get("size")).or_else(|| sibling.get("size"));
            let sha256 = lfs.and_then(|lfs| lfs.get("sha256")).and_then(Value::as_str);
            if sha256.is_some_and(|hash| hash.len() != 64 || !is_hex(hash)) {
                return Err(format!("the sha256 of {name:?} is not 64 hex digits"));
            }
            let expected =
                Expected { size: size.and_then(Value::as_u64), sha256: sha256.map(str::to_ascii_lowercase) };
            files.push(Remote { name: name.to_owned(), expected });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files.dedup_by(|a, b| a.name == b.name);
        let commit = json.get("sha").and_then(Value::as_str).filter(|sha| !sha.is_empty() && is_hex(sha));
        Ok(Self { commit: commit.map(str::to_owned), files })
    }

    /// Refuses the whole listing if one name leads out of the folder: whoever wrote that means no good.
    fn checked(self, name: &HubName) -> Result<Self, HubError> {
        match self.files.iter().find(|file| !is_safe_relative(&file.name)) {
            Some(bad) => Err(HubError::UnsafeName { name: name.repo(), file: bad.name.clone() }),
            None => Ok(self),
        }
    }

    /// The files that are needed of it: the one named, or a checkpoint's at the top of the repository.
    pub(super) fn choose(&self, name: &HubName) -> Result<Vec<Remote>, HubError> {
        let ggufs = || {
            let names = self.files.iter().map(|file| file.name.clone());
            names.filter(|name| name.to_ascii_lowercase().ends_with(".gguf")).collect::<Vec<_>>()
        };
        if let Some(wanted) = &name.file {
            let found = self.files.iter().find(|file| file.name == *wanted).cloned();
            let missing =
                || HubError::NoSuchFile { name: name.repo(), file: wanted.clone(), available: ggufs() };
            return found.map(|file| vec![file]).ok_or_else(missing);
        }
        let top = || self.files.iter().filter(|file| !file.name.contains('/'));
        if !top().any(|file| file.name.ends_with(".safetensors")) {
            let files = ggufs();
            return Err(match files.is_empty() {
                false => HubError::PickOne { name: name.repo(), files },
                true => HubError::NoWeights {
                    name: name.repo(),
                    files: self.files.iter().map(|file| file.name.clone()).collect(),
                },
            });
        }
        // Some repositories hold the weights a second time, as consolidated*.safetensors.
        let has_model =
            top().any(|file| file.name.starts_with("model") && file.name.ends_with(".safetensors"));
        let twin = |name: &str| has_model && name.starts_with("consolidated");
        Ok(top().filter(|file| is_needed(&file.name) && !twin(&file.name)).cloned().collect())
    }
}

fn is_needed(name: &str) -> bool {
    matches!(
        name,
        "config.json"
            | "generation_config.json"
            | "tokenizer.model"
            | "special_tokens_map.json"
            | "chat_template.jinja"
            | "chat_template.json"
    ) || (name.starts_with("tokenizer") && name.ends_with(".json"))
        || name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json")
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Says in the model's terms what a status means.
pub(super) fn explain(error: HubError, client: &Client, endpoint: &str, name: &HubName) -> HubError {
    match error {
        HubError::Status { status: status @ (401 | 403), .. } => {
            HubError::Unauthorized { name: name.repo(), status, token_sent: client.has_token() }
        }
        HubError::Status { status: 404, .. } => HubError::NoSuchModel {
            name: name.repo(),
            revision: name.revision.clone(),
            endpoint: endpoint.to_owned(),
        },
        other => other,
    }
}
