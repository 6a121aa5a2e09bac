//! A file that is still arriving.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::HubError;
use super::store::{io_error, make_folder, publish};

/// What a finished file must be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Its bytes, where known.
    pub(super) size: Option<u64>,
    /// Its sha256 in lower-case hex, where known.
    pub(super) sha256: Option<String>,
}

/// A file under a temporary name, hashed while it is written.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    expected: Expected,
}

impl Partial {
    /// Opens `path` to go on where it ends; what is there already is read once, for the hash. A file longer
    /// than expected starts again.
    pub(super) fn open(path: PathBuf, expected: Expected) -> Result<Self, HubError> {
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let err = |op| {
            let path = path.clone();
            move |source| io_error(op, &path, None, source)
        };
        let mut file =
            File::options().create(true).read(true).append(true).open(&path).map_err(err("open"))?;
        let len = file.metadata().map_err(err("read"))?.len();
        let mut hasher = Sha256::new();
        let mut left = len;
        let mut buffer = vec![0; BUFFER];
        file.seek(SeekFrom::Start(0)).map_err(err("read"))?;
        while left > 0 {
            let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = file.read(&mut buffer[..want]).map_err(err("read"))?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            left -= n as u64;
        }
        let mut partial = Self { path, file, hasher, len: len - left, expected };
        if partial.expected.size.is_some_and(|size| partial.len > size) {
            partial.restart()?;
        }
        Ok(partial)
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes it will have, where known.
    pub(super) fn expected_size(&self) -> Option<u64> {
        self.expected.size
    }

    /// Whether every byte is there.
    pub(super) fn is_full(&self) -> bool {
        self.expected.size == Some(self.len)
    }

    /// Throws away what is there.
    pub(super) fn restart(&mut self) -> Result<(), HubError> {
        if self.len > 0 {
            self.file.set_len(0).map_err(|source| io_error("truncate", &self.path, None, source))?;
        }
        self.len = 0;
        self.hasher = Sha256::new();
        Ok(())
    }

    /// Appends.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let needed = self.expected.size.map(|size| size.saturating_sub(self.len));
        self.file.write_all(bytes).map_err(|source| io_error("write", &self.path, needed, source))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Compares size and hash with what was announced. A file that differs is removed.
    pub(super) fn verify(&self, name: &str) -> Result<(), HubError> {
        let got = hex(&self.hasher.clone().finalize());
        let error = match &self.expected {
            Expected { size: Some(want), .. } if *want != self.len => {
                HubError::SizeMismatch { file: name.to_owned(), want: *want, got: self.len }
            }
            Expected { sha256: Some(want), .. } if !want.eq_ignore_ascii_case(&got) => {
                HubError::HashMismatch { file: name.to_owned(), want: want.clone(), got }
            }
            _ => return Ok(()),
        };
        // If it cannot be removed, its wrong contents are found again next time.
        let _ = fs::remove_file(&self.path);
        Err(error)
    }

    /// Puts the file on the disk and under its final name.
    pub(super) fn publish(self, to: &Path) -> Result<(), HubError> {
        self.file.sync_all().map_err(|source| io_error("flush", &self.path, None, source))?;
        publish(&self.path, to)
    }
}

/// Bytes that are read from a file, a socket or an archive at a time.
pub(super) const BUFFER: usize = 256 << 10;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
