//! What a conversion would do, from headers alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{Path, PathBuf},
};

use portolan_models::{Model, hf_name};
use portolan_weights::{
    Checkpoint, Encoding, Expr, LoadPlan, LoadRequest, NewTensor, Source, cut_into_shards, new_header,
    plan_load,
};
use serde_json::{Value, json};

use crate::{Error, Result, core::check_shapes, hub};

use super::{
    choose::{Choice, How, matrix, plain, plain_type},
    config, folder,
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

/// One weight of the result.
pub(super) struct Item {
    /// Its name in the graph, for messages.
    pub(super) weight: String,
    /// The tensor of the source that it is read from.
    pub(super) source: String,
    /// As it is stored; decoding is added where it is read.
    pub(super) expr: Expr,
    pub(super) from: Encoding,
    pub(super) choice: Choice,
    /// The tensors that are written for it, in their order.
    pub(super) tensors: Vec<NewTensor>,
}

impl Item {
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(NewTensor::bytes).sum()
    }
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

/// The tensors of some items, in order.
pub(super) fn tensors(items: &[Item]) -> Vec<NewTensor> {
    items.iter().flat_map(|item| item.tensors.iter().cloned()).collect()
}

/// An expression without the conversion to f32 that a graph asks for on top of norms and biases.
fn as_stored(expr: &Expr) -> Expr {
    match expr {
        Expr::Dequantize { of, .. } => (**of).clone(),
        other => other.clone(),
    }
}

/// Parameters of the source's tensors, each once.
fn parameters(load: &LoadPlan) -> u64 {
    let once = load.tensors.iter().filter(|t| t.same_as.is_none());
    once.map(|t| t.resolved.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

/// The weights of the result, and whether the embedding is the output matrix.
fn items(checkpoint: &Checkpoint, load: &LoadPlan, options: &ConvertOptions) -> Result<(Vec<Item>, bool)> {
    let mut items = Vec::new();
    // A graph lists a weight that serves twice once, or a second time as the same bytes.
    let tied = !load.tensors.iter().any(|t| t.request.name == "lm_head" && t.same_as.is_none());
    let mut met = vec![false; options.keep.len()];
    for tensor in &load.tensors {
        let name = &tensor.request.name;
        if tensor.same_as.is_some() {
            continue;
        }
        let from = tensor.resolved.encoding;
        let shape = &tensor.resolved.shape;
        let source = tensor.resolved.sources.first().unwrap_or(name).clone();
        let fail = |reason: String| Error::Unconvertible {
            path: checkpoint.path.clone(),
            tensor: source.clone(),
            reason,
        };
        let Some(dtype) = plain_type(from) else {
            return Err(fail(format!(
                "its numbers are stored as {from}, which holds no weights by itself. Convert from a checkpoint in f32, \
                 f16 or bf16"
            )));
        };
        let full = hf_name(name);
        let module = full.strip_suffix(".weight");
        let choice = match (shape.as_slice(), module) {
            ([_, k], Some(module)) => {
                let mut keep = None;
                for (keep_of, met) in options.keep.iter().zip(&mut met) {
                    if keep_of.matches(module) {
                        (keep, *met) = (Some(keep_of.bits), true);
                    }
                }
                matrix(from, dtype, *k, options, keep)
            }
            ([_], _) => plain(from, dtype),
            _ => {
                return Err(fail(format!("it has shape {shape:?}, where a vector or a matrix was expected")));
            }
        };
        let tensors = new_tensors(&full, shape, choice.to);
        items.push(Item {
            weight: name.clone(),
            source,
            expr: tensor.request.expr.clone(),
            from,
            choice,
            tensors,
        });
    }
    if let Some((keep, _)) = options.keep.iter().zip(met).find(|(_, met)| !met) {
        return Err(Error::NoSuchModule { module: keep.module.clone(), known: known(&items, tied) });
    }
    Ok((items, tied))
}

/// What `--keep` could have named.
fn known(items: &[Item], tied: bool) -> String {
    let kinds: BTreeSet<String> = items
        .iter()
        .filter(|i| i.tensors.iter().any(|t| t.shape.len() == 2))
        .map(|i| kind_of(&i.weight))
        .collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
    let tied = if tied { "; its output matrix is embed_tokens" } else { "" };
    format!("It has {kinds}{tied}")
}

/// The tensors that a weight of this shape is written as.
fn new_tensors(full: &str, shape: &[usize], to: Encoding) -> Vec<NewTensor> {
    let tensor = |name: String, dtype, last: usize| {
        let mut shape = shape.to_vec();
        if let Some(k) = shape.last_mut() {
            *k = last;
        }
        NewTensor { name, dtype, shape }
    };
    use portolan_device::DType;
    let k = shape.last().copied().unwrap_or(1);
    let module = full.strip_suffix(".weight").unwrap_or(full);
    let codes = || tensor(full.to_owned(), DType::U32, k * to.code_bits() / 32);
    match to {
        Encoding::Dense(dtype) => vec![tensor(full.to_owned(), dtype, k)],
        Encoding::Affine { group, meta, .. } => {
            let groups = k / usize::from(group);
            let of_groups = |what: &str| tensor(format!("{module}.{what}"), meta, groups);
            vec![codes(), of_groups("scales"), of_groups("biases")]
        }
        _ => vec![codes(), tensor(format!("{module}.scales"), DType::U8, k / to.group())],
    }
}

fn quantized_modules(items: &[Item]) -> Vec<(String, Encoding, u64)> {
    let quantized = items.iter().filter(|item| item.choice.to.is_quantized());
    quantized
        .map(|item| {
            let full = hf_name(&item.weight);
            (full.strip_suffix(".weight").unwrap_or(&full).to_owned(), item.choice.to, item.bytes())
        })
        .collect()
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

/// `layers.3.self_attn.q_proj` is a `layers.*.self_attn.q_proj`.
fn kind_of(name: &str) -> String {
    match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, kind)) => format!("layers.*.{kind}"),
        None => name.to_owned(),
    }
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
