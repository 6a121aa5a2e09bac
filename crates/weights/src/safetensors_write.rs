//! Writing safetensors: the header first, since all sizes are known before any number is, then the tensors in order.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    ops::Range,
};

use portolan_device::DType;
use serde_json::{Map, Value, json};

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl NewTensor {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.size() as u64
    }
}

/// The name of a type in a header.
const fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::I8 => "I8",
        DType::U8 => "U8",
    }
}

/// What a file begins with: the header's length, and the header, padded to eight bytes.
pub fn new_header(tensors: &[NewTensor], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes();
        let entry = json!({
            "dtype": dtype_name(tensor.dtype), "shape": tensor.shape, "data_offsets": [at, end],
        });
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut json = Value::from(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), json.as_slice()].concat()
}

/// Cuts a list of sizes into shards of at most `most` bytes; what is larger is a shard of its own.
pub fn cut_into_shards(bytes: &[u64], most: u64) -> Vec<Range<usize>> {
    let mut shards: Vec<Range<usize>> = Vec::new();
    let mut size = 0;
    for (i, &bytes) in bytes.iter().enumerate() {
        match shards.last_mut() {
            Some(last) if size + bytes <= most => {
                last.end = i + 1;
                size += bytes;
            }
            _ => {
                shards.push(i..i + 1);
                size = bytes;
            }
        }
    }
    shards
}

/// Writes one file, tensor after tensor, in pieces of any size.
#[derive(Debug)]
pub struct SafetensorsWriter<W> {
    out: W,
    written: u64,
    total: u64,
}

impl<W: Write> SafetensorsWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// What the file says.
    pub fn new(mut out: W, tensors: &[NewTensor], metadata: &BTreeMap<String, String>) -> io::Result<Self> {
        let header = new_header(tensors, metadata);
        out.write_all(&header)?;
        let header = header.len() as u64;
        Ok(SafetensorsWriter {
            out,
            written: header,
            total: header + tensors.iter().map(NewTensor::bytes).sum::<u64>(),
        })
    }

    /// Appends bytes of the tensor that is next.
    ///
    /// # Errors
    /// What the file says, or more bytes than the header has promised.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written + bytes.len() as u64 > self.total {
            return Err(io::Error::other(format!("more than the {} bytes of its header", self.total)));
        }
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Bytes so far, the header included.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What the file says, or fewer bytes than the header has promised.
    pub fn finish(mut self) -> io::Result<W> {
        if self.written != self.total {
            return Err(io::Error::other(format!(
                "{} bytes where its header says {}",
                self.written, self.total
            )));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_shards(bytes: &[u64], most: u64, ends: &[usize]) {
        let shards = cut_into_shards(bytes, most);
        let starts: Vec<usize> = shards.iter().map(|s| s.start).collect();
        assert_eq!(starts.get(1..).unwrap_or_default(), ends.split_last().map_or(ends, |(_, rest)| rest));
        assert_eq!(shards.iter().map(|s| s.end).collect::<Vec<_>>(), ends, "{bytes:?} of {most}");
    }

    #[test]
    fn shards() {
        check_shards(&[], 10, &[]);
        check_shards(&[4, 4], 10, &[2]);
        check_shards(&[4, 4, 4], 10, &[2, 3]);
        check_shards(&[10, 1, 9], 10, &[1, 3]);
        check_shards(&[40, 1], 10, &[1, 2]);
        check_shards(&[1, 40, 1], 10, &[1, 2, 3]);
    }

    fn tensors() -> Vec<NewTensor> {
        vec![
            NewTensor { name: "a.weight".into(), dtype: DType::U32, shape: vec![2, 3] },
            NewTensor { name: "b".into(), dtype: DType::BF16, shape: vec![5] },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let metadata = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
        let mut writer = SafetensorsWriter::new(Vec::new(), &tensors(), &metadata).unwrap();
        writer.write(&[1; 30]).unwrap();
        writer.write(&[2; 4]).unwrap();
        assert!(writer.write(&[0]).is_err(), "a byte too many");
        let file = writer.finish().unwrap();
        let path = std::path::Path::new("x.safetensors");
        let header = crate::safetensors::header_of(file.as_slice(), path, file.len() as u64).unwrap();
        assert_eq!(header.metadata, metadata);
        let found: Vec<_> =
            header.tensors.iter().map(|t| (t.name.as_str(), t.shape.clone(), t.len)).collect();
        assert_eq!(found, [("a.weight", vec![2, 3], 24), ("b", vec![5], 10)]);
        assert_eq!((file.len() - 34) % 8, 0);
    }

    #[test]
    fn a_file_that_is_too_short_is_not_finished() {
        let mut writer = SafetensorsWriter::new(Vec::new(), &tensors(), &BTreeMap::new()).unwrap();
        writer.write(&[0; 33]).unwrap();
        assert!(writer.finish().is_err());
    }
}
