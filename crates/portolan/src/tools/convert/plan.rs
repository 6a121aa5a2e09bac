//! What a conversion would do, from headers alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{Path, PathBuf},
};

use portolan_models::Model;
use portolan_weights::{
    Checkpoint, Encoding, LoadPlan, LoadRequest, Source, cut_into_shards, new_header, plan_load,
};
use serde_json::{Value, json};

use crate::{Error, Result, core::check_shapes, hub};

use super::{
    choose::{Choice, How},
    config, folder,
    items::{Item, as_stored, items, kind_of, quantized_modules, tensors},
    options::ConvertOptions,
    texts::{Text, json_bytes, texts},
    write::{scratch_bytes, shard_name},
};

/// Tensors of one kind that fare alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// `layers.*.self_attn.q_proj`, `embed_tokens`, ...
    pub kind: String,
    /// How the source stores them: a block format of GGUF, or an encoding.
    pub from: String,
    /// How the result does.
    pub to: Encoding,
    /// What happens in between.
    pub how: How,
    /// Why it is not what was asked, if it is not.
    pub note: Option<String>,
    /// How many there are.
    pub tensors: usize,
    /// Their bytes in the result.
    pub bytes: u64,
}

/// A conversion that has been thought through. Nothing has been written.
pub struct ConvertPlan {
    /// The source.
    pub source: PathBuf,
    /// The folder that will be there.
    pub destination: PathBuf,
    /// The source's format: `Hf`, `Mlx`, `Gguf`.
    pub dialect: String,
    /// Its family.
    pub family: &'static str,
    /// Tensors by kind.
    pub rows: Vec<PlanRow>,
    /// Parameters, tied ones once.
    pub parameters: u64,
    /// Bytes of the tensors that are read.
    pub bytes_in: u64,
    /// Bytes of the tensors that are written.
    pub bytes_out: u64,
    /// Bytes of all files of the result.
    pub disk_bytes: u64,
    /// Bytes free where it will lie; none where the system does not say.
    pub free_bytes: Option<u64>,
    /// Most memory that the conversion holds at a time, in bytes.
    pub memory_bytes: u64,
    /// Tensors of the source that the model has no use for, and their bytes. They are left out.
    pub unused: (usize, u64),
    /// Why the result has no tokenizer, if it has none.
    pub no_tokenizer: Option<String>,
    pub(super) checkpoint: Checkpoint,
    pub(super) items: Vec<Item>,
    pub(super) shards: Vec<Range<usize>>,
    pub(super) texts: Vec<(String, Text)>,
    pub(super) parent: PathBuf,
}

impl ConvertPlan {
    /// Plans the conversion of `source` (a folder or a file) to an MLX checkpoint at `destination`, a folder that is not
    /// there yet, or empty.
    ///
    /// # Errors
    /// A checkpoint that Portolan cannot read, a family that it does not know, tensors that MLX has no form for, options
    /// beyond what MLX has, and a destination that cannot be.
    pub fn new(source: &Path, destination: &Path, options: &ConvertOptions) -> Result<Self> {
        options.check()?;
        let parent = folder::check(source, destination)?;
        let checkpoint = Checkpoint::open(source)?;
        let model = Model::from_checkpoint(&checkpoint)?;
        let requests = model
            .graph
            .weights
            .iter()
            .map(|w| LoadRequest { name: w.name.clone(), expr: as_stored(&w.expr), repack: None })
            .collect();
        let load = plan_load(&checkpoint, requests)?;
        check_shapes(&checkpoint, &model.graph, &load)?;
        let (items, tied) = items(&checkpoint, &load, options)?;

        let mut config = config::base(&checkpoint, &model, tied)?;
        config::add_quantization(&mut config, &quantized_modules(&items));
        let (mut texts, no_tokenizer) = texts(&checkpoint, &mut config)?;
        texts.push(("config.json".to_owned(), Text::Made(json_bytes(&config.into()))));

        let sizes: Vec<u64> = items.iter().map(Item::bytes).collect();
        let shards = cut_into_shards(&sizes, options.shard_bytes);
        let parameters = parameters(&load);
        let bytes_out = sizes.iter().sum();
        if shards.len() > 1 {
            let index = index(&items, &shards, bytes_out, parameters);
            texts.push(("model.safetensors.index.json".to_owned(), Text::Made(json_bytes(&index))));
        }
        let headers: u64 =
            shards.iter().map(|s| new_header(&tensors(&items[s.clone()]), &metadata()).len() as u64).sum();
        let used: BTreeSet<&String> = load.tensors.iter().flat_map(|t| &t.resolved.sources).collect();
        Ok(ConvertPlan {
            source: source.to_owned(),
            destination: destination.to_owned(),
            dialect: format!("{:?}", checkpoint.dialect),
            family: model.family.name,
            rows: rows(&checkpoint, &items),
            parameters,
            bytes_in: used.iter().filter_map(|name| checkpoint.get(name)).map(|t| t.file_bytes()).sum(),
            bytes_out,
            disk_bytes: bytes_out + headers + texts.iter().map(|(_, text)| text.bytes()).sum::<u64>(),
            free_bytes: hub::free_bytes(&parent),
            memory_bytes: items.iter().map(scratch_bytes).max().unwrap_or(0),
            unused: (load.unused.len(), load.unused_bytes),
            no_tokenizer,
            items,
            shards,
            texts,
            parent,
            checkpoint,
        })
    }

    /// Bits of the result for each parameter, scales and biases counted.
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes_out as f64 * 8.0 / self.parameters.max(1) as f64
    }

    /// Number of files that hold tensors.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Refuses a result that the disk has no room for.
    ///
    /// # Errors
    /// [`Error::NoRoomOnDisk`], with both numbers.
    pub fn check_room(&self) -> Result<()> {
        match self.free_bytes {
            Some(free) if free < self.disk_bytes => {
                Err(Error::NoRoomOnDisk { path: self.destination.clone(), need: self.disk_bytes, free })
            }
            _ => Ok(()),
        }
    }
}

/// `__metadata__` of every file.
pub(super) fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "mlx".to_owned())])
}

/// Parameters of the source's tensors, each once.
fn parameters(load: &LoadPlan) -> u64 {
    let once = load.tensors.iter().filter(|t| t.same_as.is_none());
    once.map(|t| t.resolved.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

fn index(items: &[Item], shards: &[Range<usize>], bytes: u64, parameters: u64) -> Value {
    let mut files = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        for tensor in tensors(&items[shard.clone()]) {
            files.insert(tensor.name, shard_name(number, shards.len()));
        }
    }
    json!({"metadata": {"total_size": bytes, "total_parameters": parameters}, "weight_map": files})
}

fn rows(checkpoint: &Checkpoint, items: &[Item]) -> Vec<PlanRow> {
    let mut rows: Vec<PlanRow> = Vec::new();
    for item in items {
        let from = match checkpoint.get(&item.source).map(|t| &t.source) {
            Some(Source::Blocks { format, .. }) => format.name().to_owned(),
            _ => item.from.to_string(),
        };
        let Choice { to, how, note } = item.choice.clone();
        let row =
            PlanRow { kind: kind_of(&item.weight), from, to, how, note, tensors: 1, bytes: item.bytes() };
        let alike = |r: &&mut PlanRow| {
            (&r.kind, &r.from, r.to, r.how, &r.note) == (&row.kind, &row.from, row.to, row.how, &row.note)
        };
        match rows.iter_mut().find(alike) {
            Some(same) => {
                same.tensors += 1;
                same.bytes += row.bytes;
            }
            None => rows.push(row),
        }
    }
    rows
}
