//! One GGUF file: its metadata and where its tensors lie.

use std::{collections::HashSet, path::Path};

use super::{
    Metadata,
    block_format::{SUPPORTED, TensorType},
    reader::Reader,
};
use crate::{
    NotWeights, Result, Source, Span, TensorInfo, WeightError,
    checkpoint::count_elements,
    file::{PositionedRead, pread_exact, sniff},
};

/// Longest tensor table and most metadata entries that are believed.
const MOST_ENTRIES: u64 = 1 << 20;

/// What one file holds.
#[derive(Debug)]
pub(super) struct GgufFile {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

/// A line of the tensor table.
struct Row {
    name: String,
    shape: Vec<usize>,
    kind: TensorType,
    offset: u64,
    len: u64,
}

/// Reads and checks a header. `file` is what the spans will say.
pub(super) fn read(
    source: &(impl PositionedRead + ?Sized),
    path: &Path,
    size: u64,
    file: usize,
) -> Result<GgufFile> {
    let mut head = [0; 64];
    let known = size.min(64) as usize;
    pread_exact(source, path, &mut head[..known], 0)?;
    if let Some(what) = sniff(&head[..known]) {
        return Err(WeightError::NotACheckpoint { path: path.to_owned(), what });
    }
    let mut reader = Reader::new(source, path, size);
    let magic = reader.u32()?;
    if magic.to_le_bytes() != *b"GGUF" {
        return Err(WeightError::NotACheckpoint { path: path.to_owned(), what: NotWeights::OtherFormat });
    }
    let version = reader.u32()?;
    let refuse = |reason| Err(WeightError::GgufVersion { path: path.to_owned(), version, reason });
    match version {
        2 | 3 => {}
        1 => return refuse("only 2 and 3 are: convert the model again with a recent llama.cpp"),
        v if (1..=3).contains(&v.swap_bytes()) => {
            return refuse("it is big-endian: convert it to little-endian with gguf_convert_endian.py");
        }
        _ => return refuse("only 2 and 3 are: the file is newer than this program, or damaged"),
    }
    let (tensor_count, entry_count) = (reader.u64()?, reader.u64()?);
    if tensor_count > MOST_ENTRIES || entry_count > MOST_ENTRIES {
        return Err(reader.bad(format!("it claims {tensor_count} tensors and {entry_count} entries")));
    }
    let mut metadata = Metadata::new();
    let mut keys = HashSet::new();
    for _ in 0..entry_count {
        let key = reader.string()?;
        let value = reader.value()?;
        if !keys.insert(key.clone()) {
            return Err(reader.bad(format!("key '{key}' stands twice")));
        }
        metadata.push(key, value);
    }
    let mut rows = Vec::new();
    for _ in 0..tensor_count {
        rows.push(row(&mut reader, path)?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(value) => {
            match metadata.u64("general.alignment").filter(|a| a.is_power_of_two() && *a <= 1 << 24) {
                Some(alignment) => alignment,
                None => {
                    let reason = format!("general.alignment is '{value}', and not a power of two up to 2^24");
                    return Err(reader.bad(reason));
                }
            }
        }
    };
    let data = reader.position().next_multiple_of(alignment);
    let tensors = place(rows, path, data, alignment, size, file)?;
    Ok(GgufFile { metadata, tensors })
}

fn row<S: PositionedRead + ?Sized>(reader: &mut Reader<'_, S>, path: &Path) -> Result<Row> {
    let name = reader.string()?;
    let dims = reader.u32()?;
    if dims > 8 {
        return Err(reader.bad(format!("tensor '{name}' has {dims} dimensions")));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let n = reader.u64()?;
        shape.push(
            usize::try_from(n).map_err(|_| reader.bad(format!("tensor '{name}' has a dimension of {n}")))?,
        );
    }
    shape.reverse();
    let kind = TensorType::from_id(reader.u32()?).map_err(|dtype| WeightError::UnsupportedType {
        path: path.to_owned(),
        tensor: name.clone(),
        dtype,
        supported: SUPPORTED,
    })?;
    let offset = reader.u64()?;
    let elements = count_elements(&shape).map(|n| n as u64);
    let (block, bytes, type_name) = match kind {
        TensorType::Plain(encoding) => (1, encoding.code_bits() as u64 / 8, encoding.to_string()),
        TensorType::Blocks(format) => {
            (format.elements() as u64, format.bytes() as u64, format.name().to_owned())
        }
    };
    let k = shape.last().map_or(1, |&k| k as u64);
    if !k.is_multiple_of(block) {
        return Err(
            reader.bad(format!("tensor '{name}' has rows of {k}, which are no whole blocks of {type_name}"))
        );
    }
    match elements.and_then(|n| (n / block).checked_mul(bytes)) {
        Some(len) => Ok(Row { name, shape, kind, offset, len }),
        None => Err(WeightError::TensorSize {
            path: path.to_owned(),
            tensor: name,
            shape,
            dtype: type_name.into(),
            expected: None,
            found: 0,
        }),
    }
}

/// Checks that each tensor lies within the file and beside the others.
fn place(
    mut rows: Vec<Row>,
    path: &Path,
    data: u64,
    alignment: u64,
    size: u64,
    file: usize,
) -> Result<Vec<TensorInfo>> {
    rows.sort_by_key(|row| (row.offset, row.len));
    let mut tensors = Vec::with_capacity(rows.len());
    let mut at = 0u64;
    let mut cut = None;
    for Row { name, shape, kind, offset, len } in rows {
        let end = offset.checked_add(len);
        let bad = |reason: String| WeightError::Offsets {
            path: path.to_owned(),
            tensor: name.clone(),
            begin: offset,
            end: end.unwrap_or(u64::MAX),
            reason,
        };
        if !offset.is_multiple_of(alignment) {
            return Err(bad(format!("which are not aligned to {alignment}")));
        }
        if offset < at {
            return Err(bad(format!("which overlap the tensor before, that ends at {at}")));
        }
        let in_file = end.and_then(|end| data.checked_add(end));
        let (Some(end), Some(file_end)) = (end, in_file) else {
            return Err(bad("which are beyond any file".to_owned()));
        };
        if file_end > size && cut.is_none() {
            cut = Some(name.clone());
        }
        at = end;
        let span = Span { file, offset: data + offset, len };
        let (encoding, source) = match kind {
            TensorType::Plain(encoding) => (encoding, Source::Planes(vec![span])),
            TensorType::Blocks(format) => (format.encoding(), Source::Blocks { span, format }),
        };
        tensors.push(TensorInfo { name, shape, encoding, source });
    }
    if let Some(name) = cut {
        return Err(WeightError::Truncated {
            path: path.to_owned(),
            part: format!("the data, from tensor '{name}' on,"),
            header_end: data,
            expected: data + at,
            size,
        });
    }
    if !tensors.is_empty() && size > (data + at).next_multiple_of(alignment) {
        let more = size - data - at;
        tracing::warn!("{}: {more} bytes follow the last tensor", path.display());
    }
    Ok(tensors)
}
