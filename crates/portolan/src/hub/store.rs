//! The cache folder: making it, room in it, and one fetch of a model at a time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;

use super::{HubError, Progress};

/// Gives an I/O error its place, and a full disk its numbers.
pub(super) fn io_error(op: &'static str, path: &Path, needed: Option<u64>, source: io::Error) -> HubError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            HubError::NoSpace { path: path.to_owned(), needed, free: free_bytes(path) }
        }
        _ => HubError::Io { op, path: path.to_owned(), source },
    }
}

pub(super) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(|source| io_error("create the folder", path, None, source))
}

/// Bytes that may be written at `path`, or at the nearest folder above it that is there. `None` where the file
/// system does not say.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|path| path.is_dir())?;
    let stat = statvfs(there).ok()?;
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Refuses before the first byte what cannot fit.
pub(super) fn check_room(folder: &Path, needed: u64) -> Result<(), HubError> {
    match free_bytes(folder) {
        Some(free) if free < needed => {
            Err(HubError::NoSpace { path: folder.to_owned(), needed: Some(needed), free: Some(free) })
        }
        _ => Ok(()),
    }
}

/// Renames, so that the name is there whole or not at all, and asks the disk to keep it.
pub(super) fn publish(from: &Path, to: &Path) -> Result<(), HubError> {
    fs::rename(from, to).map_err(|source| io_error("move into place", to, None, source))?;
    if let Some(folder) = to.parent() {
        sync_folder(folder);
    }
    Ok(())
}

/// Asks the disk to keep the names in a folder. Not every file system can; what was done is done either way.
pub(crate) fn sync_folder(path: &Path) {
    if let Ok(folder) = File::open(path) {
        let _ = folder.sync_all();
    }
}

/// Removes what an interrupted fetch left behind: the entries of `folder` that begin with `prefix`. Call it
/// with the lock held.
pub(super) fn sweep(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let path = entry.path();
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            if let Err(error) = gone {
                tracing::warn!(path = %path.display(), %error, "cannot remove a leftover");
            }
        }
    }
}

/// An exclusive lock on one model's place, held until dropped. The system releases it if the process dies. The
/// empty lock file stays: to remove it would let two processes hold locks on two files of one name.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
    /// False on file systems without locks. Then only one fetch at a time is safe, and leftovers are not swept.
    pub(super) held: bool,
}

impl Lock {
    /// Waits for the lock, and says so when it is taken.
    pub(super) fn acquire(path: PathBuf, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Self, HubError> {
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|source| io_error("open the lock", &path, None, source))?;
        let mut told = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    return Ok(Self { _file: file, held: true });
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    if !told {
                        progress(Progress::Waiting { lock: &path });
                        told = true;
                    }
                    thread::sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    tracing::warn!(lock = %path.display(), %error, "this file system has no locks");
                    return Ok(Self { _file: file, held: false });
                }
            }
        }
    }
}
