//! From what a user named to a loaded model: finding it, choosing the device, reading its texts.

use std::path::{Path, PathBuf};

use portolan_device::{Device, DeviceChoice, DeviceId, DeviceKind, cpu::CpuOptions, cuda, env, rocm};
use portolan_kernels::{OpKind, has_kernel_port};
use portolan_text::{ChatTemplates, GgufVocab, Tokenizer};
use portolan_weights::{Checkpoint, ConfigSource, gguf::Metadata};

use crate::{
    Core, Error, LoadOptions, Plan, Result,
    hub::{self, HubOptions},
    options::MOST_THREADS,
};

/// Told how far a load is.
pub trait Progress {
    /// A file is being fetched.
    fn fetch(&mut self, _progress: &hub::Progress<'_>) {}
    /// So many of so many bytes of weights are loaded.
    fn load(&mut self, _done: u64, _total: u64) {}
}

/// Tells nobody.
#[derive(Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {}

/// The path of the model that a user named, fetched if need be.
pub fn find(model: &str, progress: &mut dyn Progress) -> Result<PathBuf> {
    // A model that is there needs no cache folder, so none has to be known.
    let options =
        if Path::new(model).exists() { HubOptions::new(PathBuf::new()) } else { HubOptions::from_env()? };
    Ok(hub::resolve(model, &options, &mut |p| progress.fetch(&p))?)
}

/// The plan of a checkpoint on the device that the options ask for. `auto` takes the first GPU that runs the model and
/// has room for it, and else the CPU; what it took, and why, is logged.
pub fn plan(path: &Path, options: &LoadOptions) -> Result<Plan> {
    let id = match options.device {
        DeviceChoice::Only(id) => id,
        DeviceChoice::Auto => return automatic(path, options),
    };
    Plan::new(path, &device(id, options)?, options)
}

/// A device by its name.
fn device(id: DeviceId, options: &LoadOptions) -> Result<Device> {
    match id.kind {
        DeviceKind::Cpu => cpu(options),
        DeviceKind::Cuda => Ok(Device::cuda(id.ordinal)?),
        DeviceKind::Rocm => Ok(Device::rocm(id.ordinal)?),
    }
}

/// The GPUs that `auto` tries, in this order: NVIDIA's, then AMD's. A kind that no kernel is there for, or whose runtime
/// is not there, has none.
fn gpus() -> Vec<DeviceId> {
    let mut gpus = Vec::new();
    let with_kernels = |kind: &DeviceKind| has_kernel_port(OpKind::Embed, *kind);
    for kind in [DeviceKind::Cuda, DeviceKind::Rocm].into_iter().filter(with_kernels) {
        let count = if kind == DeviceKind::Cuda { cuda::count() } else { rocm::count() };
        match count {
            Ok(count) => gpus.extend((0..count).map(|ordinal| DeviceId { kind, ordinal })),
            Err(error) => tracing::debug!("the model does not run on {kind}: {error}"),
        }
    }
    gpus
}

fn automatic(path: &Path, options: &LoadOptions) -> Result<Plan> {
    for id in gpus() {
        let found = device(id, options).and_then(|gpu| {
            let plan = Plan::new(path, &gpu, options)?;
            // A GPU that is too small is passed by, whatever PORTOLAN_MEMORY_GUARD says: the CPU may have the room.
            match plan.memory.shortage() {
                None => Ok(plan),
                Some((pool, need, available)) => Err(Error::DoesNotFit {
                    model: path.to_owned(),
                    pool: plan.memory.pools[pool].name.clone(),
                    need,
                    available,
                    plan: plan.memory.to_string(),
                }),
            }
        });
        match found {
            Ok(plan) => {
                let caps = plan.device.caps();
                tracing::info!("the model runs on {} ({}): its plan fits", caps.id, caps.name);
                return Ok(plan);
            }
            // What is wrong with the checkpoint is wrong on the CPU too, and is told from there.
            Err(error) => tracing::warn!("{id} is not taken: {error}"),
        }
    }
    Plan::new(path, &cpu(options)?, options)
}

fn cpu(options: &LoadOptions) -> Result<Device> {
    let threads = match options.threads {
        0 => env::number("PORTOLAN_THREADS")?.unwrap_or(0),
        threads => threads,
    };
    if threads > MOST_THREADS {
        let value = threads.to_string();
        return Err(Error::BadOption { option: "threads", value, expected: "at most 1024" });
    }
    Ok(Device::cpu(&CpuOptions { threads })?)
}

/// Loads a plan.
pub(crate) fn load_core(plan: &Plan, progress: &mut dyn Progress) -> Result<Core> {
    Core::load(plan, &mut |done, total| progress.load(done, total))
}

/// Tokenizer and templates of a checkpoint. A model without them can still be asked for logits, so a missing or
/// broken tokenizer is kept as a reason, for whoever asks for text.
pub fn texts(checkpoint: &Checkpoint) -> (Result<Tokenizer, String>, ChatTemplates) {
    match &checkpoint.config {
        ConfigSource::Gguf(metadata) => {
            let vocab = gguf_vocab(metadata);
            let templates = ChatTemplates::from_gguf(&vocab).unwrap_or_else(|error| {
                tracing::warn!("{}: {error}", checkpoint.path.display());
                ChatTemplates::default()
            });
            (Tokenizer::from_gguf(&vocab).map_err(|e| e.to_string()), templates)
        }
        _ => {
            let folder = checkpoint_folder(&checkpoint.path);
            let templates = ChatTemplates::from_folder(folder).unwrap_or_else(|error| {
                tracing::warn!("{}: {error}", folder.display());
                ChatTemplates::default()
            });
            (Tokenizer::from_folder(folder).map_err(|e| e.to_string()), templates)
        }
    }
}

/// The folder that a checkpoint's other files lie in.
pub(crate) fn checkpoint_folder(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) }
}

/// The vocabulary in a GGUF file's metadata.
pub(crate) fn gguf_vocab(metadata: &Metadata) -> GgufVocab {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.u32(&key(name));
    let named_chat_templates = metadata
        .iter()
        .filter_map(|(name, _)| {
            let template = name.strip_prefix("tokenizer.chat_template.")?;
            Some((template.to_owned(), metadata.str(name)?.to_owned()))
        })
        .collect();
    GgufVocab {
        name: metadata.str("general.name").map(str::to_owned),
        model: metadata.str(&key("model")).unwrap_or_default().to_owned(),
        pre: metadata.str(&key("pre")).map(str::to_owned),
        tokens: metadata.strings(&key("tokens")).unwrap_or_default().to_vec(),
        scores: metadata.floats(&key("scores")).unwrap_or_default().iter().map(|&s| s as f32).collect(),
        token_types: metadata
            .ints(&key("token_type"))
            .unwrap_or_default()
            .iter()
            .map(|&t| t as i32)
            .collect(),
        merges: metadata.strings(&key("merges")).unwrap_or_default().to_vec(),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        add_bos: metadata.bool(&key("add_bos_token")),
        add_eos: metadata.bool(&key("add_eos_token")),
        add_space_prefix: metadata.bool(&key("add_space_prefix")),
        chat_template: metadata.str("tokenizer.chat_template").map(str::to_owned),
        named_chat_templates,
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use portolan_device::DeviceError;

    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_refused_in_the_words_of_its_own_runtime() {
        for kind in [DeviceKind::Cuda, DeviceKind::Rocm] {
            // No machine has so many: the number is wrong even where the runtime is there.
            let error = device(DeviceId { kind, ordinal: 9999 }, &LoadOptions::default()).map(drop);
            let Err(Error::Device(DeviceError::Unavailable { kind: found, .. })) = &error else {
                panic!("{error:?}")
            };
            assert_eq!(*found, kind);
        }
    }

    #[test]
    fn auto_asks_no_runtime_whose_kernels_are_not_there() {
        assert!(gpus().iter().all(|gpu| has_kernel_port(OpKind::Matmul, gpu.kind)));
    }
}
