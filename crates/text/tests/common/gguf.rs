//! Reads the metadata of a GGUF file, enough to get at its vocabulary.

use std::collections::HashMap;
use std::path::Path;

use portolan_text::GgufVocab;

#[derive(Debug, Clone)]
pub(crate) enum Meta {
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Meta>),
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk::<N>().expect("truncated GGUF");
        self.0 = rest;
        *head
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8_lossy(head).into_owned()
    }

    fn value(&mut self, kind: u32) -> Meta {
        match kind {
            0 | 7 => Meta::Int(u8::from_le_bytes(self.take()).into()),
            1 => Meta::Int(i8::from_le_bytes(self.take()).into()),
            2 => Meta::Int(u16::from_le_bytes(self.take()).into()),
            3 => Meta::Int(i16::from_le_bytes(self.take()).into()),
            4 => Meta::Int(u32::from_le_bytes(self.take()).into()),
            5 => Meta::Int(i32::from_le_bytes(self.take()).into()),
            6 => Meta::Float(f32::from_le_bytes(self.take()).into()),
            8 => Meta::Text(self.text()),
            9 => {
                let kind = u32::from_le_bytes(self.take());
                let len = self.u64();
                Meta::List((0..len).map(|_| self.value(kind)).collect())
            }
            10 | 11 => Meta::Int(self.u64() as i64),
            12 => Meta::Float(f64::from_le_bytes(self.take())),
            other => panic!("GGUF type {other}"),
        }
    }
}

pub(crate) fn metadata(path: &Path) -> HashMap<String, Meta> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes);
    assert_eq!(&reader.take(), b"GGUF");
    let _version = u32::from_le_bytes(reader.take());
    let _tensors = reader.u64();
    let count = reader.u64();
    let entry = |_| {
        let key = reader.text();
        let kind = u32::from_le_bytes(reader.take());
        (key, reader.value(kind))
    };
    (0..count).map(entry).collect()
}

pub(crate) fn vocab(path: &Path) -> GgufVocab {
    let meta = metadata(path);
    let get = |key: &str| meta.get(&format!("tokenizer.{key}"));
    let text = |key: &str| match get(key) {
        Some(Meta::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let int = |key: &str| match get(key) {
        Some(Meta::Int(i)) => Some(*i),
        _ => None,
    };
    let list = |key: &str| match get(key) {
        Some(Meta::List(items)) => items.clone(),
        _ => Vec::new(),
    };
    let texts = |key: &str| -> Vec<String> {
        let text = |item| if let Meta::Text(text) = item { Some(text) } else { None };
        list(key).into_iter().filter_map(text).collect()
    };
    let id = |key: &str| int(key).map(|i| i as u32);
    let flag = |key: &str| int(key).map(|i| i != 0);
    GgufVocab {
        name: match meta.get("general.name") {
            Some(Meta::Text(name)) => Some(name.clone()),
            _ => None,
        },
        model: text("ggml.model").unwrap(),
        pre: text("ggml.pre"),
        tokens: texts("ggml.tokens"),
        scores: list("ggml.scores")
            .into_iter()
            .filter_map(|item| if let Meta::Float(x) = item { Some(x as f32) } else { None })
            .collect(),
        token_types: list("ggml.token_type")
            .into_iter()
            .filter_map(|item| if let Meta::Int(i) = item { Some(i as i32) } else { None })
            .collect(),
        merges: texts("ggml.merges"),
        bos: id("ggml.bos_token_id"),
        eos: id("ggml.eos_token_id"),
        unk: id("ggml.unknown_token_id"),
        pad: id("ggml.padding_token_id"),
        eot: id("ggml.eot_token_id"),
        eom: id("ggml.eom_token_id"),
        add_bos: flag("ggml.add_bos_token"),
        add_eos: flag("ggml.add_eos_token"),
        add_space_prefix: flag("ggml.add_space_prefix"),
        chat_template: text("chat_template"),
        named_chat_templates: Vec::new(),
    }
}
