//! Compiled device code on disk.
//!
//! A file is named by the hash of everything that decides its content. It ends with a hash of that name and of what is
//! before, so a file that was cut, damaged or renamed is compiled again. It is written under another name and renamed, so that several processes
//! may compile the same kernel at once; the last rename wins, and both files are the same.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sha2::{Digest, Sha256};

use crate::{KernelSource, env};

/// Where compiled kernels are kept; none where no folder for caches is known.
fn folder() -> Option<PathBuf> {
    if let Some(folder) = env::path("PORTOLAN_CACHE_DIR") {
        return Some(folder);
    }
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("portolan").join("kernels"))
}

/// The name of a kernel's file.
pub(crate) fn key(compiler: &str, options: &[String], source: &KernelSource<'_>) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(compiler);
    options.iter().for_each(|option| add(option));
    add(source.text);
    for (name, text) in source.headers {
        add(name);
        add(text);
    }
    add(source.entry);
    for (name, value) in source.defines {
        add(name);
        add(value);
    }
    let digest = hash.finalize();
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hex}", source.entry)
}

/// The end of a file: a hash of the name it was written under and of the code, so that neither a damaged file nor one
/// that was renamed is taken.
fn seal(key: &str, code: &[u8]) -> impl AsRef<[u8]> {
    let mut hash = Sha256::new();
    hash.update((key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(code);
    hash.finalize()
}

const SEAL_BYTES: usize = 32;

/// What a process that was killed while it wrote leaves behind is removed once it is so old.
const STALE: Duration = Duration::from_secs(3600);

/// The compiled kernels of one target.
#[derive(Debug)]
pub(crate) struct KernelCache {
    /// None where nothing is kept.
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// That of a target, where the environment says.
    pub(crate) fn of(target: &str) -> Self {
        KernelCache { folder: folder().map(|folder| folder.join(target)) }
    }

    /// The code that is kept under a name, or else what `compile` makes, which is kept then.
    pub(crate) fn get_or_compile<E>(
        &self,
        key: &str,
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        if let Some(code) = self.get(key) {
            return Ok(code);
        }
        let code = compile()?;
        self.put(key, &code);
        Ok(code)
    }

    fn file(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.bin")))
    }

    /// What was kept under a name, if it is whole.
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.file(key)?;
        let mut bytes = fs::read(&path).ok()?;
        let (code, end) = bytes.split_at_checked(bytes.len().checked_sub(SEAL_BYTES)?)?;
        if seal(key, code).as_ref() != end {
            tracing::debug!("{}: damaged, so it is compiled again", path.display());
            return None;
        }
        bytes.truncate(bytes.len() - SEAL_BYTES);
        Some(bytes)
    }

    /// Keeps a compiled kernel. What cannot be kept is compiled again the next time: said once, and no error.
    fn put(&self, key: &str, code: &[u8]) {
        let (Some(folder), Some(path)) = (&self.folder, self.file(key)) else { return };
        if let Err(error) = write(folder, &path, key, code) {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(
                    "compiled kernels cannot be kept in {}: {error}; they will be compiled again each time. \
                     PORTOLAN_CACHE_DIR names another folder",
                    folder.display()
                );
            });
        }
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(folder, STALE));
    }
}

/// Writes a file under another name and renames it.
fn write(folder: &Path, path: &Path, key: &str, code: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{TEMPORARY}{key}.{}.{count}", std::process::id()));
    let attempt = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(code)?;
        file.write_all(seal(key, code).as_ref())?;
        drop(file);
        fs::rename(&temporary, path)
    };
    attempt().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// How the names of files begin that are not whole yet.
const TEMPORARY: &str = ".";

/// Removes the temporary files of a folder that nobody has written to for so long.
fn sweep(folder: &Path, age: Duration) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok().map(|since| since >= age);
        if ours && old() == Some(true) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
