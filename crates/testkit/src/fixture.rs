//! Small checkpoint files made in a test: what is asked for, byte for byte, be it right or wrong.

use std::path::Path;

/// A safetensors file with this header and these data, whatever they say.
pub fn safetensors_with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Builds a safetensors file.
#[derive(Clone, Debug, Default)]
pub struct Safetensors {
    metadata: serde_json::Map<String, serde_json::Value>,
    entries: Vec<(String, serde_json::Value)>,
    data: Vec<u8>,
}

impl Safetensors {
    /// Without tensors.
    pub fn new() -> Self {
        Safetensors::default()
    }

    /// Adds an entry of `__metadata__`.
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a tensor; `dtype` is the format's own name (`BF16`, `U32`, ...).
    pub fn tensor(mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Self {
        let begin = self.data.len();
        self.data.extend_from_slice(bytes);
        let entry = serde_json::json!({
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, self.data.len()],
        });
        self.entries.push((name.to_owned(), entry));
        self
    }

    /// Adds a tensor of f32.
    pub fn f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        self.tensor(name, "F32", shape, &f32_bytes(values))
    }

    /// The file: header (padded to eight bytes), then the tensors as they were added.
    pub fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        if !self.metadata.is_empty() {
            header.insert("__metadata__".to_owned(), self.metadata.clone().into());
        }
        header.extend(self.entries.iter().cloned());
        let mut header = serde_json::Value::from(header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        safetensors_with_header(&header, &self.data)
    }

    /// Writes the file.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>) {
        std::fs::write(path, self.bytes()).expect("the fixture can be written");
    }
}

/// Builds a GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: usize,
    entries: u64,
    metadata: Vec<u8>,
    tensors: u64,
    table: Vec<u8>,
    data: Vec<u8>,
}

impl Default for Gguf {
    fn default() -> Self {
        Gguf {
            version: 3,
            alignment: 32,
            entries: 0,
            metadata: Vec::new(),
            tensors: 0,
            table: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl Gguf {
    /// Version 3, alignment 32, without metadata or tensors.
    pub fn new() -> Self {
        Gguf::default()
    }

    /// Another version.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Another alignment, noted in the metadata. Before the first tensor.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// A metadata entry of any type: its number and its bytes.
    pub fn entry(mut self, key: &str, kind: u32, bytes: &[u8]) -> Self {
        self.entries += 1;
        self.metadata.extend(string(key));
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend_from_slice(bytes);
        self
    }

    /// An u32.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    /// An f32.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    /// A flag.
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.entry(key, 7, &[value.into()])
    }

    /// A text.
    pub fn str(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &string(value))
    }

    /// A list of texts.
    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|v| string(v)).collect();
        self.list(key, 8, values.len(), &items)
    }

    /// A list of i32.
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.list(key, 5, values.len(), &items)
    }

    /// A list of f32.
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.list(key, 6, values.len(), &f32_bytes(values))
    }

    /// A list of any type: its elements' number, how many, and their bytes.
    pub fn list(self, key: &str, kind: u32, len: usize, items: &[u8]) -> Self {
        self.entry(key, 9, &[&kind.to_le_bytes(), (len as u64).to_le_bytes().as_slice(), items].concat())
    }

    /// Adds a tensor of ggml type `kind`; `shape` is outermost first, as everywhere but in the file.
    pub fn tensor(mut self, name: &str, kind: u32, shape: &[usize], bytes: &[u8]) -> Self {
        self.tensors += 1;
        self.table.extend(string(name));
        self.table.extend((shape.len() as u32).to_le_bytes());
        for &n in shape.iter().rev() {
            self.table.extend((n as u64).to_le_bytes());
        }
        self.table.extend(kind.to_le_bytes());
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        self.table.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(bytes);
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensors.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend_from_slice(&self.metadata);
        file.extend_from_slice(&self.table);
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend_from_slice(&self.data);
        file
    }

    /// Writes the file.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>) {
        std::fs::write(path, self.bytes()).expect("the fixture can be written");
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
