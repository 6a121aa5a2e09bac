//! Compiled device code on disk.
//!
//! A file is named by the hash of everything that decides its content. It ends with the hash of what is before, so a
//! file that was cut is compiled again. It is written under another name and renamed, so that several processes
//! may compile the same kernel at once; the last rename wins, and both files are the same.

use std::{fs, io::Write, path::PathBuf};

use sha2::{Digest, Sha256};

use crate::{KernelSource, env};

/// Where compiled kernels are kept; none where no folder for caches is known.
pub(crate) fn folder() -> Option<PathBuf> {
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

fn file_of(arch: &str, key: &str) -> Option<PathBuf> {
    Some(folder()?.join(arch).join(format!("{key}.bin")))
}

/// What was kept under a name, if it is whole.
pub(crate) fn get(arch: &str, key: &str) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file_of(arch, key)?).ok()?;
    let body = bytes.len().checked_sub(32)?;
    if Sha256::digest(&bytes[..body])[..] != bytes[body..] {
        return None;
    }
    bytes.truncate(body);
    Some(bytes)
}

/// Keeps a compiled kernel. What cannot be kept is compiled again the next time: said once, and no error.
pub(crate) fn put(arch: &str, key: &str, code: &[u8]) {
    let Some(path) = file_of(arch, key) else { return };
    let attempt = || -> std::io::Result<()> {
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent)?;
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let temporary = parent.join(format!(".{key}.{}.{count}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(code)?;
            file.write_all(&Sha256::digest(code))?;
            drop(file);
            fs::rename(&temporary, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&temporary)))
    };
    if let Err(error) = attempt() {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| {
            tracing::warn!(
                "compiled kernels cannot be kept in {}: {error}; they will be compiled again each time. \
                 PORTOLAN_CACHE_DIR names another folder",
                path.parent().unwrap_or(&path).display()
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source<'a>(text: &'a str, defines: &'a [(&'a str, String)]) -> KernelSource<'a> {
        KernelSource { file: "a.cu", text, headers: &[("h", "x")], entry: "a", defines }
    }

    #[test]
    fn whatever_decides_the_code_decides_the_name() {
        let options = ["--std=c++17".to_owned()];
        let (a, b) = ([("A", "1".to_owned())], [("A", "2".to_owned())]);
        let first = key("nvrtc 12.9", &options, &source("text", &a));
        assert_eq!(first, key("nvrtc 12.9", &options, &source("text", &a)));
        for other in [
            key("nvrtc 13.0", &options, &source("text", &a)),
            key("nvrtc 12.9", &[], &source("text", &a)),
            key("nvrtc 12.9", &options, &source("text2", &a)),
            key("nvrtc 12.9", &options, &source("text", &b)),
            key("nvrtc 12.9", &options, &source("text", &[])),
            key("nvrtc 12.9", &options, &KernelSource { headers: &[("h", "y")], ..source("text", &a) }),
        ] {
            assert_ne!(first, other);
        }
    }
}
