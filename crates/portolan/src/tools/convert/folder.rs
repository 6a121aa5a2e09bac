//! The destination: nothing, until the result is whole.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{Error, Result, hub};

fn refuse(path: &Path, reason: impl Into<String>) -> Error {
    Error::Destination { path: path.to_owned(), reason: reason.into() }
}

/// The folder that the destination lies in, if a result may go there.
pub(super) fn check(source: &Path, destination: &Path) -> Result<PathBuf> {
    let Some(name) = destination.file_name() else {
        return Err(refuse(destination, "it does not name a folder: name one that is not there yet"));
    };
    match fs::symlink_metadata(destination) {
        Ok(found) if found.is_symlink() => {
            return Err(refuse(destination, "it is a link: choose another folder"));
        }
        Ok(found) if !found.is_dir() => {
            return Err(refuse(destination, "there is a file of this name: choose another folder"));
        }
        Ok(_) => {
            let entries = fs::read_dir(destination).map_err(|e| refuse(destination, e.to_string()))?.count();
            if entries > 0 {
                let reason = format!("the folder is not empty ({entries} entries): choose another folder");
                return Err(refuse(destination, reason));
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(refuse(destination, format!("it cannot be looked at: {e}"))),
    }
    let parent = destination.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|e| {
        let parent = parent.display();
        refuse(
            destination,
            format!("the folder {parent} that it would lie in: {e}. Make it, or choose another"),
        )
    })?;
    if source.is_dir()
        && let Ok(source) = source.canonicalize()
        && parent.join(name).starts_with(&source)
    {
        let source = source.display();
        return Err(refuse(
            destination,
            format!("it lies within the source {source}: choose another folder"),
        ));
    }
    Ok(parent)
}

/// A folder beside the destination, removed unless it becomes the destination.
pub(super) struct Staging {
    folder: TempDir,
    destination: PathBuf,
}

impl Staging {
    pub(super) fn new(parent: &Path, destination: &Path) -> Result<Self> {
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{name}.converting-");
        builder.prefix(&prefix);
        // Like any folder that a program makes: what the user's umask leaves.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let folder = builder.tempdir_in(parent).map_err(|e| {
            refuse(destination, format!("no folder can be made in {}: {e}", parent.display()))
        })?;
        Ok(Staging { folder, destination: destination.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its name. Its files are on the disk already.
    pub(super) fn publish(self) -> Result<()> {
        hub::sync_folder(self.path());
        fs::rename(self.path(), &self.destination).map_err(|e| {
            refuse(&self.destination, format!("the result cannot be given its name: {e}. Nothing was kept"))
        })?;
        if let Some(parent) = self.folder.keep().parent() {
            hub::sync_folder(parent);
        }
        Ok(())
    }
}

/// The error of a write: a full disk is told with its numbers. `shown` is the name that the file was to have.
pub(super) fn write_error(shown: &Path, real: &Path, written: u64, error: &io::Error) -> Error {
    let (path, reason) = (shown.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::DiskFull { path, written, free: hub::free_bytes(real), reason }
        }
        _ => Error::Write { path, reason },
    }
}
