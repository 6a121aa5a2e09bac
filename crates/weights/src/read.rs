//! From a path to a [`Checkpoint`]: which files belong to it, and what their headers say together.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Checkpoint, ConfigSource, Dialect, NotWeights, Result, Source, Span, TensorInfo, WeightError,
    config_json,
    file::{WeightFile, io_error, sniff},
    gguf, mlx,
    quant_config::QuantConfig,
    safetensors::read_header,
};

/// More shards than this are not believed of a name.
const MOST_SHARDS: usize = 10_000;

pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    let kind = std::fs::metadata(path).map_err(|e| io_error(path, "look at", e))?;
    if kind.is_dir() {
        return open_folder(path);
    }
    let head = WeightFile::open(path)?.head(64)?;
    let other = |what| Err(WeightError::NotACheckpoint { path: path.to_owned(), what });
    if let Some(what) = sniff(&head) {
        return other(what);
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if head.starts_with(b"GGUF") || extension == "gguf" {
        return gguf::open(path);
    }
    // A blob of a cache has no extension, but a safetensors header begins like no other file.
    if extension == "safetensors" || head.get(8) == Some(&b'{') {
        let config = path.with_file_name("config.json");
        return open_safetensors(path, vec![path.to_owned()], config.exists().then_some(config), None);
    }
    other(NotWeights::OtherFormat)
}

fn open_folder(folder: &Path) -> Result<Checkpoint> {
    let names = file_names(folder)?;
    let with = |suffix: &str| names.iter().filter(|n| n.ends_with(suffix)).cloned().collect::<Vec<_>>();
    let config = folder.join("config.json");
    let config = config.exists().then_some(config);
    let (shards, indices) = (with(".safetensors"), with(".safetensors.index.json"));
    let index = match indices.as_slice() {
        [] => None,
        [only] => Some(only),
        several => several.iter().find(|n| *n == "model.safetensors.index.json").or(several.first()),
    };
    if let Some(index) = index {
        let index_path = folder.join(index);
        let listed = read_index(&index_path)?;
        let files: BTreeSet<&String> = listed.values().collect();
        let missing: Vec<String> =
            files.iter().filter(|f| !names.contains(**f)).map(|f| (*f).clone()).collect();
        if missing.is_empty() {
            let paths = files.iter().map(|f| folder.join(f)).collect();
            return open_safetensors(folder, paths, config, Some((&index_path, &listed)));
        }
        if !names.contains("model.safetensors") {
            return Err(WeightError::MissingShards { path: folder.to_owned(), missing, total: files.len() });
        }
        tracing::warn!(
            "{}: names files that are not there ({}); model.safetensors is read in their place",
            index_path.display(),
            missing.join(", ")
        );
    }
    if names.contains("model.safetensors") {
        return open_safetensors(folder, vec![folder.join("model.safetensors")], config, None);
    }
    if !shards.is_empty() {
        check_numbering(folder, &shards)?;
        if shards.len() > 1 {
            tracing::warn!("{}: no index; all {} safetensors files are read", folder.display(), shards.len());
        }
        return open_safetensors(folder, shards.iter().map(|n| folder.join(n)).collect(), config, None);
    }
    one_gguf(folder, &with(".gguf"), &names)
}

/// Names of the files in a folder.
fn file_names(folder: &Path) -> Result<BTreeSet<String>> {
    let fail = |e| io_error(folder, "list", e);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        // A name that is not UTF-8 is none that a checkpoint has.
        if let Ok(name) = entry.map_err(fail)?.file_name().into_string() {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Without an index, `model-00001-of-00004.safetensors` still says how many shards there should be.
fn check_numbering(folder: &Path, shards: &[String]) -> Result<()> {
    // A set of shards is told from another by all that does not count them.
    let mut sets = BTreeSet::new();
    for shard in shards {
        let Some((prefix, total)) = shard.strip_suffix(".safetensors").and_then(|n| n.rsplit_once("-of-"))
        else {
            continue;
        };
        let Some((prefix, index)) = prefix.rsplit_once('-') else { continue };
        let (Ok(_), Ok(count)) = (index.parse::<usize>(), total.parse::<usize>()) else { continue };
        if count <= MOST_SHARDS {
            sets.insert((prefix, total, index.len(), count));
        }
    }
    let there: BTreeSet<&str> = shards.iter().map(String::as_str).collect();
    let (mut missing, mut total) = (Vec::new(), 0);
    for (prefix, of, width, count) in sets {
        total += count;
        let names = (1..=count).map(|i| format!("{prefix}-{i:0width$}-of-{of}.safetensors"));
        missing.extend(names.filter(|name| !there.contains(name.as_str())));
        // Whoever made up that many sets needs no list of all that they lack.
        if missing.len() > MOST_SHARDS {
            break;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(WeightError::MissingShards { path: folder.to_owned(), missing, total })
}

/// The folder's GGUF file, if there is one model's worth of them.
fn one_gguf(folder: &Path, ggufs: &[String], names: &BTreeSet<String>) -> Result<Checkpoint> {
    let models: BTreeSet<&str> =
        ggufs.iter().map(|n| gguf::split_name(n).map_or(n.as_str(), |(prefix, _)| prefix)).collect();
    if let ([first, ..], 1) = (ggufs, models.len()) {
        return gguf::open(&folder.join(first));
    }
    let reason = if models.len() > 1 {
        format!("it holds several GGUF models; name one of them: {}", ggufs.join(", "))
    } else if let Some(torch) =
        names.iter().find(|n| n.ends_with(".bin") || n.ends_with(".pth") || n.ends_with(".pt"))
    {
        format!("it holds no safetensors or GGUF file, but {torch}: convert it to safetensors")
    } else {
        "it holds no safetensors or GGUF file: download the model's weights".to_owned()
    };
    Err(WeightError::NoWeights { path: folder.to_owned(), reason })
}

/// `weight_map` of an index: the file of each tensor.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let bad = |reason: String| WeightError::Header { path: path.to_owned(), reason };
    let index = config_json::read_index(path)?;
    let Some(Value::Object(map)) = index.get("weight_map") else {
        return Err(bad("it has no weight_map".to_owned()));
    };
    let mut files = BTreeMap::new();
    for (tensor, file) in map {
        match file.as_str() {
            // A file of this folder and nothing else.
            Some(file) if !file.contains(['/', '\\']) && file != ".." => {
                files.insert(tensor.clone(), file.to_owned());
            }
            _ => return Err(bad(format!("tensor '{tensor}' lies in {file}, which is no file name"))),
        }
    }
    if files.is_empty() {
        return Err(bad("its weight_map is empty".to_owned()));
    }
    Ok(files)
}

fn open_safetensors(
    path: &Path,
    files: Vec<PathBuf>,
    config: Option<PathBuf>,
    index: Option<(&Path, &BTreeMap<String, String>)>,
) -> Result<Checkpoint> {
    let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for (file, shard) in files.iter().enumerate() {
        let header = read_header(shard)?;
        metadata.extend(header.metadata);
        for t in header.tensors {
            let span = Span { file, offset: t.offset, len: t.len };
            let info = TensorInfo {
                name: t.name,
                shape: t.shape,
                encoding: t.encoding,
                source: Source::Planes(vec![span]),
            };
            if let Some(old) = tensors.insert(info.name.clone(), info) {
                let first = old.first_file().and_then(|f| files.get(f)).unwrap_or(shard);
                return Err(WeightError::DuplicateTensor {
                    tensor: old.name,
                    first: first.clone(),
                    second: shard.clone(),
                });
            }
        }
    }
    if let Some((index, listed)) = index {
        check_index(index, listed, &tensors)?;
    }
    let json = match &config {
        Some(config) => Some(config_json::read_config(config)?),
        None => None,
    };
    let quantization = match &json {
        Some(json) => QuantConfig::parse(json).map_err(|(module, reason)| WeightError::Quantization {
            path: config.unwrap_or_default(),
            module,
            reason,
        })?,
        None => QuantConfig::default(),
    };
    let folded = mlx::fold(&mut tensors, &quantization, path)?;
    let by_mlx = folded > 0 || metadata.get("format").is_some_and(|f| f == "mlx");
    Ok(Checkpoint {
        path: path.to_owned(),
        files,
        dialect: if by_mlx { Dialect::Mlx } else { Dialect::Hf },
        tensors,
        config: json.map_or(ConfigSource::None, ConfigSource::Json),
        metadata,
    })
}

/// Tensors that the index promises must be there. What it forgot is there all the same, and is used.
fn check_index(
    index: &Path,
    listed: &BTreeMap<String, String>,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<()> {
    let absent: Vec<String> = listed.keys().filter(|n| !tensors.contains_key(*n)).cloned().collect();
    let unlisted: Vec<String> = tensors.keys().filter(|n| !listed.contains_key(*n)).cloned().collect();
    let mismatch = WeightError::IndexMismatch { path: index.to_owned(), absent, unlisted };
    match &mismatch {
        WeightError::IndexMismatch { absent, .. } if !absent.is_empty() => return Err(mismatch),
        WeightError::IndexMismatch { unlisted, .. } if !unlisted.is_empty() => tracing::warn!("{mismatch}"),
        _ => {}
    }
    Ok(())
}
