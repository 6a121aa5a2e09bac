//! A model in one GGUF file or in several (`NAME-00001-of-00004.gguf`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::tensors::{GgufFile, read};
use crate::{Checkpoint, ConfigSource, Dialect, Result, WeightError, file::WeightFile};

/// Opens the file, and its siblings when it is one of several.
pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    let files = siblings(path)?.unwrap_or_else(|| vec![path.to_owned()]);
    let mut metadata = None;
    let mut tensors = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        let opened = WeightFile::open(file)?;
        let GgufFile { metadata: found, tensors: table } = read(&opened.file, file, opened.size, index)?;
        if index == 0 && files.len() == 1 && found.u64("split.count").is_some_and(|n| n > 1) {
            return Err(WeightError::Header {
                path: file.clone(),
                reason: format!(
                    "it is one of {} files, and its name does not say which: restore its name, NAME-00001-of-0000N.gguf",
                    found.u64("split.count").unwrap_or(0)
                ),
            });
        }
        metadata.get_or_insert(found);
        for tensor in table {
            if let Some(old) = tensors.insert(tensor.name.clone(), tensor) {
                let first = old.first_file().and_then(|f| files.get(f)).unwrap_or(file);
                return Err(WeightError::DuplicateTensor {
                    tensor: old.name.clone(),
                    first: first.clone(),
                    second: file.clone(),
                });
            }
        }
    }
    Ok(Checkpoint {
        path: path.to_owned(),
        files,
        dialect: Dialect::Gguf,
        tensors,
        config: ConfigSource::Gguf(metadata.unwrap_or_default()),
        metadata: BTreeMap::new(),
    })
}

/// All files of the set that `path` belongs to by its name; none when it stands alone.
fn siblings(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let Some((prefix, total)) = split_name(name) else { return Ok(None) };
    let folder = path.parent().unwrap_or(Path::new(""));
    let names: Vec<String> = (1..=total).map(|i| format!("{prefix}-{i:05}-of-{total:05}.gguf")).collect();
    let missing: Vec<String> = names.iter().filter(|n| !folder.join(n).exists()).cloned().collect();
    if !missing.is_empty() {
        return Err(WeightError::MissingShards { path: folder.to_owned(), missing, total: names.len() });
    }
    Ok(Some(names.iter().map(|n| folder.join(n)).collect()))
}

/// `NAME-00002-of-00004.gguf` as `NAME` and 4.
pub(crate) fn split_name(name: &str) -> Option<(&str, usize)> {
    let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, index) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<usize>().ok())?
    };
    let (index, total) = (number(index)?, number(total)?);
    (1..=total).contains(&index).then_some((prefix, total))
}
