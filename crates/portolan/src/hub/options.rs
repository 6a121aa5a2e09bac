//! Where models are kept, where they come from, and how progress is told.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

/// Where models are kept and where they come from.
#[derive(Clone)]
#[non_exhaustive]
pub struct HubOptions {
    /// The cache folder. Made when something is fetched.
    pub models_dir: PathBuf,
    /// The hub's address, with no slash at the end.
    pub endpoint: String,
    /// The access token for private and gated models. Never printed, and sent to the hub's host alone.
    pub token: Option<String>,
    /// Whether the proxy variables of the environment (HTTPS_PROXY, NO_PROXY, ...) are followed.
    pub env_proxy: bool,
    /// How failing requests are repeated.
    pub retry: Retry,
}

impl HubOptions {
    /// The public hub, no token, no proxy, and models kept in `models_dir`.
    pub fn new(models_dir: impl Into<PathBuf>) -> Self {
        Self {
            models_dir: models_dir.into(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            env_proxy: false,
            retry: Retry::default(),
        }
    }

    /// The options that the environment asks for.
    ///
    /// The cache folder is PORTOLAN_MODELS_DIR, else `$XDG_CACHE_HOME/portolan/models`, else
    /// `~/.cache/portolan/models`. HF_ENDPOINT and HF_TOKEN are those of Hugging Face's own tools. This is the
    /// only place of the module that reads the environment.
    ///
    /// # Errors
    /// [`HubError::NoCacheFolder`] if none of these variables, nor HOME, is set.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    pub(super) fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let folder = |name: &str| var(name).map(PathBuf::from);
        // The XDG rules say that a relative path in the variable is to be ignored.
        let cache = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let models_dir = folder("PORTOLAN_MODELS_DIR")
            .or_else(|| cache.map(|cache| cache.join("portolan/models")))
            .or_else(|| folder("HOME").map(|home| home.join(".cache/portolan/models")))
            .ok_or(HubError::NoCacheFolder)?;
        let mut options = Self { env_proxy: true, ..Self::new(models_dir) };
        if let Some(endpoint) = text("HF_ENDPOINT") {
            options.endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        options.token = text("HF_TOKEN").map(|token| token.trim().to_owned());
        Ok(options)
    }
}

impl fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubOptions")
            .field("models_dir", &self.models_dir)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("env_proxy", &self.env_proxy)
            .field("retry", &self.retry)
            .finish()
    }
}

/// How requests that fail on the way, or with a server's fault (5xx, 408, 429), are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// How many times in a row a request may fail without a new byte having arrived; at least 1.
    pub attempts: u32,
    /// The pause before the second attempt. It doubles each time, up to 30 s.
    pub first_pause: Duration,
    /// A read that brings nothing for this long has failed.
    pub stall: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, first_pause: Duration::from_millis(500), stall: Duration::from_secs(60) }
    }
}

/// What a fetch is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A leg begins: a download, or an unpacking.
    Started {
        /// What it brings, for people.
        what: &'a str,
        /// Its bytes, where known.
        total: Option<u64>,
    },
    /// So many bytes of the leg are here. It may go back when a server makes a download start again.
    Bytes {
        /// Bytes so far, those of an earlier, interrupted call included.
        done: u64,
    },
    /// An attempt failed and another follows.
    Retrying {
        /// The file or address asked for.
        what: &'a str,
        /// Failures in a row so far.
        failures: u32,
        /// How many are borne.
        attempts: u32,
        /// Why it failed.
        cause: &'a str,
    },
    /// Another process fetches the same model; this one waits until it is done.
    Waiting {
        /// The lock it holds.
        lock: &'a Path,
    },
    /// The leg is done.
    Finished,
}
