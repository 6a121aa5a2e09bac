//! The files of a safetensors checkpoint: one, or shards with an index.

use serde_json::{Map, Value, json};

use super::fill::Fill;
use super::tensor::Tensor;
use super::write::{File, Part};

/// Lays out the tensors in files of at most `limit` bytes of tensors each (a larger tensor has a file of its
/// own), and gives the index where there are several.
pub(super) fn layout(tensors: Vec<Tensor>, limit: u64, format: &str) -> (Vec<File>, Option<Value>) {
    let mut shards: Vec<(u64, Vec<Tensor>)> = Vec::new();
    for tensor in tensors {
        match shards.last_mut() {
            Some((bytes, shard)) if *bytes + tensor.bytes <= limit => {
                *bytes += tensor.bytes;
                shard.push(tensor);
            }
            _ => shards.push((tensor.bytes, vec![tensor])),
        }
    }
    let count = shards.len();
    let total: u64 = shards.iter().map(|(bytes, _)| bytes).sum();
    let (mut files, mut map) = (Vec::new(), Map::new());
    for (i, (_, shard)) in (1..).zip(shards) {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{i:05}-of-{count:05}.safetensors"),
        };
        map.extend(shard.iter().map(|tensor| (tensor.name.clone(), json!(name))));
        files.push(file(name, shard, format));
    }
    let index = (count > 1).then(|| json!({ "metadata": { "total_size": total }, "weight_map": map }));
    (files, index)
}

/// One file: eight bytes of length, the header, the tensors without gaps.
fn file(name: String, tensors: Vec<Tensor>, format: &str) -> File {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": format }));
    let mut end = 0;
    for tensor in &tensors {
        let begin = end;
        end += tensor.bytes;
        let entry =
            json!({ "dtype": tensor.dtype.name, "shape": tensor.shape, "data_offsets": [begin, end] });
        header.insert(tensor.name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Padded with spaces, so that the tensors begin at a multiple of eight.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    let mut offset = bytes.len() as u64;
    let mut parts = vec![Part { offset: 0, bytes: offset, stream: 0, fill: Fill::Literal(bytes).into() }];
    for tensor in tensors {
        parts.push(Part { offset, bytes: tensor.bytes, stream: tensor.stream, fill: tensor.fill });
        offset += tensor.bytes;
    }
    File { name, bytes: offset, parts }
}
