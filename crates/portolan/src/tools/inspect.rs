//! A look into a checkpoint: what it is and what it would take. Reads headers only.

use std::{collections::BTreeMap, path::Path};

use portolan_weights::{Encoding, MemoryPlan};
use serde_json::{Value, json};

use crate::{LoadOptions, Result, loader};

/// What a checkpoint is.
#[derive(Clone, Debug)]
pub struct Report {
    /// The checkpoint.
    pub path: std::path::PathBuf,
    /// Its format: `Hf`, `Mlx`, `Gguf`.
    pub dialect: String,
    /// Its family.
    pub family: &'static str,
    /// Its architecture's name in the configuration.
    pub model_type: String,
    /// Parameters, tied ones once.
    pub parameters: u64,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Layers, columns of the residual stream, heads, kv heads, elements a head, columns of the MLP, vocabulary.
    pub sizes: [(&'static str, usize); 7],
    /// Positions that the model was made for.
    pub trained_context: usize,
    /// Positions planned for.
    pub context: usize,
    /// By kind of tensor: encoding, number, bytes.
    pub kinds: Vec<KindRow>,
    /// Tensors that the graph lacks, and their bytes.
    pub unused: (usize, u64),
    /// What memory it would take.
    pub memory: MemoryPlan,
    /// Whether there is a tokenizer, and a chat template.
    pub tokenizer: Result<String, String>,
    /// Names of chat templates.
    pub templates: Vec<String>,
}

/// Tensors of one kind and encoding.
#[derive(Clone, Debug)]
pub struct KindRow {
    /// `self_attn.q_proj`, `embed_tokens`, ...
    pub kind: String,
    /// How they are stored.
    pub encoding: Encoding,
    /// How many there are.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Looks into a checkpoint and plans it.
pub fn inspect(path: &Path, options: &LoadOptions) -> Result<Report> {
    let plan = loader::plan(path, options)?;
    let (tokenizer, templates) = loader::texts(&plan.checkpoint);
    let mut kinds: BTreeMap<(String, String), KindRow> = BTreeMap::new();
    let mut parameters = 0;
    for (index, tensor) in plan.load.tensors.iter().enumerate() {
        let kind = kind_of(&tensor.request.name);
        let encoding = tensor.resolved.encoding;
        let row = kinds.entry((kind.clone(), encoding.to_string())).or_insert(KindRow {
            kind,
            encoding,
            tensors: 0,
            bytes: 0,
        });
        row.tensors += 1;
        row.bytes += tensor.resolved.bytes as u64;
        // One weight may serve twice under one expression; the graph lists it once.
        let shape = &plan.model.graph.weights[index].shape;
        parameters += shape.iter().product::<usize>() as u64;
    }
    let config = &plan.model.config;
    Ok(Report {
        path: path.to_owned(),
        dialect: format!("{:?}", plan.checkpoint.dialect),
        family: plan.model.family.name,
        model_type: config.model_type.clone(),
        parameters,
        file_bytes: plan.checkpoint.file_bytes(),
        sizes: [
            ("layers", config.layers),
            ("hidden", config.hidden),
            ("heads", config.heads),
            ("kv heads", config.kv_heads),
            ("head dim", config.head_dim),
            ("intermediate", config.intermediate),
            ("vocabulary", plan.model.graph.vocab),
        ],
        trained_context: config.context,
        context: plan.context,
        kinds: kinds.into_values().collect(),
        unused: (plan.load.unused.len(), plan.load.unused_bytes),
        memory: plan.memory.clone(),
        tokenizer: tokenizer.map(|t| format!("{} tokens", t.vocab_size())),
        templates: templates.names().map(str::to_owned).collect(),
    })
}

/// `layers.3.self_attn.q_proj` is a `self_attn.q_proj`.
fn kind_of(name: &str) -> String {
    match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, kind)) => kind.to_owned(),
        None => name.to_owned(),
    }
}

impl Report {
    /// The report as JSON.
    pub fn json(&self) -> Value {
        let kinds: Vec<Value> = self
            .kinds
            .iter()
            .map(|k| {
                let encoding = k.encoding.to_string();
                json!({"kind": k.kind, "encoding": encoding, "tensors": k.tensors, "bytes": k.bytes})
            })
            .collect();
        let items: Vec<Value> = self
            .memory
            .items
            .iter()
            .map(|i| json!({"what": i.what, "bytes": i.bytes, "pool": self.memory.pools[i.pool].name}))
            .collect();
        let pools: Vec<Value> = self
            .memory
            .pools
            .iter()
            .map(|p| {
                let within = p.within.and_then(|outer| self.memory.pools.get(outer)).map(|p| &p.name);
                json!({"name": p.name, "available": p.available, "source": p.source, "within": within})
            })
            .collect();
        let sources: Vec<Value> = self
            .memory
            .sources
            .iter()
            .map(|s| json!({"source": s.source, "free": s.free, "total": s.total}))
            .collect();
        let sizes: serde_json::Map<String, Value> =
            self.sizes.iter().map(|(name, size)| (name.replace(' ', "_"), json!(size))).collect();
        json!({
            "path": self.path.display().to_string(),
            "format": self.dialect,
            "family": self.family,
            "model_type": self.model_type,
            "parameters": self.parameters,
            "file_bytes": self.file_bytes,
            "sizes": sizes,
            "trained_context": self.trained_context,
            "context": self.context,
            "tensors": kinds,
            "unused": {"tensors": self.unused.0, "bytes": self.unused.1},
            "memory": {
                "items": items, "pools": pools, "sources": sources, "fits": self.memory.shortage().is_none(),
            },
            "tokenizer": self.tokenizer.as_ref().ok(),
            "tokenizer_error": self.tokenizer.as_ref().err(),
            "chat_templates": self.templates,
        })
    }
}
