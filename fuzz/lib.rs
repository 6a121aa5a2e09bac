//! What the fuzz targets share: a file that is rewritten for each input, and what is done with a checkpoint.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use portolan_weights::{Checkpoint, Expr, LoadRequest, WeightError, plan_load};
use tempfile::TempDir;

/// A folder that holds one file. In memory, where the system has a place for that.
pub struct Place {
    folder: TempDir,
}

impl Default for Place {
    fn default() -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Place { folder: tempfile::tempdir_in(parent).expect("a folder for the inputs") }
    }
}

impl Place {
    /// Writes the file, and gives its path.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).expect("the input can be written");
        path
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Opens a file of these bytes; what opens is planned, and its small tensors are decoded. An error must name the file.
pub fn open_and_read(place: &Place, name: &str, bytes: &[u8]) {
    let checkpoint = match Checkpoint::open(&place.file(name, bytes)) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return names_the_file(&error, name),
    };
    let size = bytes.len() as u64;
    for tensor in checkpoint.tensors.values() {
        for span in tensor.spans() {
            assert!(span.offset.checked_add(span.len).is_some_and(|end| end <= size), "{tensor:?} of {size}");
        }
    }
    let request = |name: &String| LoadRequest { name: name.clone(), expr: Expr::source(name), repack: None };
    if let Err(error) = plan_load(&checkpoint, checkpoint.tensors.keys().map(request).collect()) {
        names_the_file(&error, name);
    }
    for tensor in checkpoint.tensors.keys().take(8) {
        if let Err(error) = checkpoint.read_f32(tensor) {
            names_the_file(&error, name);
        }
    }
}

fn names_the_file(error: &WeightError, name: &str) {
    let text = error.to_string();
    assert!(text.contains(name), "'{text}' does not name {name}");
    assert!(text.len() < 1 << 20, "a message of {} bytes", text.len());
}
