//! The folder of a checkpoint: nothing half-written is ever in it under a checkpoint's name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// What a tokenizer consists of, and what goes with one.
const TOKENIZER_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
];

/// How the names of folders begin that are written into.
const WORK: &str = ".synth-";

/// Room that is left on the disk.
const SPARE: u64 = 64 << 20;

/// A folder that is being filled. Files are written into [`Filling::path`], a folder inside, and get their
/// places in [`Filling::finish`]; if that is not reached, they are removed.
pub(super) struct Filling {
    folder: PathBuf,
    work: TempDir,
}

impl Filling {
    /// Makes the folder where it is missing.
    ///
    /// # Errors
    /// If something is in it and `force` is not given, if the disk has less than `bytes` left, or if it cannot
    /// be made.
    pub(super) fn begin(folder: &Path, bytes: u64, force: bool) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        if !force && names(folder)?.next().is_some() {
            bail!(
                "{} is not empty: name another folder, or replace what is there with --force",
                folder.display()
            );
        }
        // What a run that was killed has left.
        for left in names(folder)?.filter(|name| force && name.starts_with(WORK)) {
            let path = folder.join(left);
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let disk = rustix::fs::statvfs(folder)
            .with_context(|| format!("cannot ask for the disk of {}", folder.display()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < bytes.saturating_add(SPARE) {
            bail!(
                "{}: the checkpoint takes {bytes} bytes and {free} are free on the disk: make room, or take fewer --layers",
                folder.display()
            );
        }
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(folder);
        let work = work.with_context(|| format!("cannot make a folder in {}", folder.display()))?;
        Ok(Filling { folder: folder.to_owned(), work })
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        self.work.path()
    }

    /// Copies the files of a tokenizer.
    ///
    /// # Errors
    /// If there is none, or one cannot be copied.
    pub(super) fn copy_tokenizer(&self, from: &Path) -> Result<()> {
        let mut copied = 0;
        for name in TOKENIZER_FILES {
            let path = from.join(name);
            if path.is_file() {
                fs::copy(&path, self.path().join(name))
                    .with_context(|| format!("cannot copy {}", path.display()))?;
                copied += 1;
            }
        }
        if copied == 0 {
            bail!("{} has no file of a tokenizer, such as tokenizer.json", from.display());
        }
        Ok(())
    }

    /// Gives every file its place; the configuration comes last. With a new set of safetensors files, those of
    /// an earlier one go.
    ///
    /// # Errors
    /// If a file cannot be renamed or removed.
    pub(super) fn finish(self) -> Result<()> {
        let mut new: Vec<String> = names(self.path())?.collect();
        new.sort_by_key(|name| (name == "config.json", name.clone()));
        if new.iter().any(|name| is_weights(name)) {
            for old in names(&self.folder)?.filter(|name| is_weights(name) && !new.contains(name)) {
                let path = self.folder.join(old);
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        for name in new {
            let (from, to) = (self.path().join(&name), self.folder.join(&name));
            fs::rename(&from, &to)
                .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))?;
        }
        self.work.close().with_context(|| format!("cannot remove what is left in {}", self.folder.display()))
    }
}

/// Whether a name is that of safetensors files as this command writes them.
fn is_weights(name: &str) -> bool {
    let shard = name.starts_with("model-") && name.ends_with(".safetensors");
    shard || name == "model.safetensors" || name == "model.safetensors.index.json"
}

/// The names in a folder.
fn names(folder: &Path) -> Result<impl Iterator<Item = String>> {
    let list = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let list = list.with_context(|| format!("cannot list {}", folder.display()))?;
    Ok(list.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned()))
}
