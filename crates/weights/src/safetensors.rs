//! The safetensors format: eight bytes of length, a JSON header, then the tensors.
//!
//! Types and shapes are parsed by the `safetensors` crate. The checks are made here, since an error has to
//! name the file, the tensor and the sizes, and since only the header is ever in memory.

use std::{collections::BTreeMap, fmt, path::Path};

use portolan_device::DType;
use safetensors::{Dtype, tensor::TensorInfo as Entry};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    Encoding, Foreign, NotWeights, Result, WeightError,
    checkpoint::count_elements,
    file::{PositionedRead, WeightFile, pread_exact, sniff},
};

/// The longest header that is read, as in the reference implementation.
const HEADER_LIMIT: u64 = 100_000_000;

/// The types that are read, for messages.
const SUPPORTED: &str =
    "F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I64, I32, I16, I8, U64, U32, U16, U8, BOOL";

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub encoding: Encoding,
    /// Its shape.
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What a safetensors file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their offsets.
    pub tensors: Vec<HeaderTensor>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// Reads and checks the header of a file; the file's size must be what the header says.
pub fn read_header(path: &Path) -> Result<Header> {
    let file = WeightFile::open(path)?;
    header_of(&file.file, path, file.size)
}

pub(crate) fn header_of(source: &(impl PositionedRead + ?Sized), path: &Path, size: u64) -> Result<Header> {
    let mut head = [0; 64];
    let known = size.min(64) as usize;
    pread_exact(source, path, &mut head[..known], 0)?;
    if let Some(what) = sniff(&head[..known]) {
        return Err(WeightError::NotACheckpoint { path: path.to_owned(), what });
    }
    let truncated = |part: &str, header_end, expected| WeightError::Truncated {
        path: path.to_owned(),
        part: part.to_owned(),
        header_end,
        expected,
        size,
    };
    let Some(length) = head.first_chunk::<8>().filter(|_| known >= 8) else {
        return Err(truncated("the header's length field", 8, 8));
    };
    let length = u64::from_le_bytes(*length);
    // A zip (a torch .bin) or a pickle under a safetensors name gives a length by accident.
    // (So does a header of 640 bytes, whose length is spelled as a pickle begins.)
    let torch = head.starts_with(b"PK\x03\x04") || head.starts_with(b"\x80\x02");
    if torch && head[8] != b'{' {
        return Err(WeightError::NotACheckpoint { path: path.to_owned(), what: NotWeights::OtherFormat });
    }
    if length == 0 || length > HEADER_LIMIT {
        return Err(WeightError::HeaderLength {
            path: path.to_owned(),
            declared: length,
            limit: HEADER_LIMIT,
        });
    }
    let header_end = 8 + length;
    if known > 8 && head[8] != b'{' {
        return Err(bad_header(path, format!("it begins with byte {:#04x} in place of '{{'", head[8])));
    }
    if header_end > size {
        return Err(truncated("the header", header_end, header_end));
    }
    let mut json = vec![0; length as usize];
    pread_exact(source, path, &mut json, 8)?;
    parse(&json, path, header_end, size)
}

fn bad_header(path: &Path, reason: impl Into<String>) -> WeightError {
    WeightError::Header { path: path.to_owned(), reason: reason.into() }
}

/// More tensors than this are not believed.
const MOST_TENSORS: usize = 1 << 20;

/// Longest entry of one tensor. What is parsed to a tree takes up to forty times its text, so only a short text is.
const MOST_ENTRY: usize = 1 << 16;

/// A JSON object in the order of the file, with repeated keys kept and the values unread.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MOST_TENSORS {
                        return Err(A::Error::custom(format!("it has more than {MOST_TENSORS} entries")));
                    }
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

fn parse(json: &[u8], path: &Path, header_end: u64, size: u64) -> Result<Header> {
    let Entries(entries) = serde_json::from_slice(json).map_err(|e| bad_header(path, e.to_string()))?;
    let mut header = Header::default();
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        if !seen.insert(name.clone()) {
            return Err(WeightError::DuplicateTensor {
                tensor: name,
                first: path.to_owned(),
                second: path.to_owned(),
            });
        }
        if name == "__metadata__" {
            header.metadata = metadata(path, value)?;
            continue;
        }
        let entry = entry(path, &name, value)?;
        found.push((name, entry));
    }
    found.sort_by_key(|(_, entry)| entry.data_offsets);
    header.tensors = place(found, path, header_end, size)?;
    Ok(header)
}

/// `__metadata__`: texts by name, or null.
fn metadata(path: &Path, value: &RawValue) -> Result<BTreeMap<String, String>> {
    let bad = |e: serde_json::Error| bad_header(path, format!("__metadata__: {e}"));
    let Some(Entries(entries)) = serde_json::from_str(value.get()).map_err(bad)? else {
        return Ok(BTreeMap::new());
    };
    let text = |(key, value): (String, &RawValue)| Ok((key, serde_json::from_str(value.get())?));
    entries.into_iter().map(text).collect::<Result<_, _>>().map_err(bad)
}

/// An entry of the header. Where it is no tensor, the error says whether its type is unknown or it is malformed.
fn entry(path: &Path, name: &str, value: &RawValue) -> Result<Entry> {
    let text = value.get();
    if text.len() > MOST_ENTRY {
        let reason =
            format!("tensor '{name}': its entry has {} bytes, at most {MOST_ENTRY} are read", text.len());
        return Err(bad_header(path, reason));
    }
    serde_json::from_str(text).map_err(|error| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        match value.get("dtype") {
            Some(dtype) if Dtype::deserialize(dtype).is_err() => {
                unsupported(path, name, dtype.as_str().map_or_else(|| dtype.to_string(), str::to_owned))
            }
            _ => bad_header(path, format!("tensor '{name}': {error}")),
        }
    })
}

fn unsupported(path: &Path, name: &str, dtype: String) -> WeightError {
    WeightError::UnsupportedType {
        path: path.to_owned(),
        tensor: name.to_owned(),
        dtype,
        supported: SUPPORTED,
    }
}

/// Checks that the tensors, sorted by offset, fill the file without gap or overlap.
fn place(found: Vec<(String, Entry)>, path: &Path, header_end: u64, size: u64) -> Result<Vec<HeaderTensor>> {
    let mut tensors = Vec::with_capacity(found.len());
    let mut at = 0u64;
    for (name, entry) in found {
        let (begin, end) = (entry.data_offsets.0 as u64, entry.data_offsets.1 as u64);
        let offsets = |reason: String| WeightError::Offsets {
            path: path.to_owned(),
            tensor: name.clone(),
            begin,
            end,
            reason,
        };
        if end < begin {
            return Err(offsets("which run backwards".to_owned()));
        }
        if begin < at {
            return Err(offsets(format!("which overlap the tensor before, that ends at {at}")));
        }
        if begin > at {
            return Err(offsets(format!("which leave a gap: the tensor before ends at {at}")));
        }
        let encoding =
            encoding(entry.dtype).ok_or_else(|| unsupported(path, &name, format!("{:?}", entry.dtype)))?;
        let size = encoding.code_bits() as u64 / 8;
        let expected = count_elements(&entry.shape).and_then(|n| size.checked_mul(n as u64));
        if expected != Some(end - begin) {
            return Err(WeightError::TensorSize {
                path: path.to_owned(),
                tensor: name,
                shape: entry.shape,
                dtype: format!("{:?}", entry.dtype).into(),
                expected,
                found: end - begin,
            });
        }
        if header_end.checked_add(end).is_none() {
            return Err(offsets("which are beyond any file".to_owned()));
        }
        at = end;
        tensors.push(HeaderTensor {
            name,
            encoding,
            shape: entry.shape,
            offset: header_end + begin,
            len: end - begin,
        });
    }
    let expected = header_end + at;
    if expected > size {
        let cut = tensors.iter().find(|t| t.offset + t.len > size);
        return Err(WeightError::Truncated {
            path: path.to_owned(),
            part: cut.map_or("the data".to_owned(), |t| format!("the data, from tensor '{}' on,", t.name)),
            header_end,
            expected,
            size,
        });
    }
    if expected < size {
        return Err(WeightError::TrailingBytes { path: path.to_owned(), expected, size });
    }
    Ok(tensors)
}

fn encoding(dtype: Dtype) -> Option<Encoding> {
    Some(match dtype {
        Dtype::F32 => Encoding::Dense(DType::F32),
        Dtype::F16 => Encoding::Dense(DType::F16),
        Dtype::BF16 => Encoding::Dense(DType::BF16),
        Dtype::I32 => Encoding::Dense(DType::I32),
        Dtype::U32 => Encoding::Dense(DType::U32),
        Dtype::I8 => Encoding::Dense(DType::I8),
        Dtype::U8 => Encoding::Dense(DType::U8),
        Dtype::F64 => Encoding::Foreign(Foreign::F64),
        Dtype::I64 => Encoding::Foreign(Foreign::I64),
        Dtype::U64 => Encoding::Foreign(Foreign::U64),
        Dtype::I16 => Encoding::Foreign(Foreign::I16),
        Dtype::U16 => Encoding::Foreign(Foreign::U16),
        Dtype::BOOL => Encoding::Foreign(Foreign::Bool),
        Dtype::F8_E4M3 => Encoding::Foreign(Foreign::F8E4M3),
        Dtype::F8_E5M2 => Encoding::Foreign(Foreign::F8E5M2),
        Dtype::F8_E8M0 => Encoding::Foreign(Foreign::F8E8M0),
        _ => return None,
    })
}
