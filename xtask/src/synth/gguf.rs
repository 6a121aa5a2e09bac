//! A GGUF file, version 3.

use super::fill::Fill;
use super::models::Spec;
use super::tensor::{GgufType, Tensor};
use super::vocab::Tokens;
use super::write::{File, Part};

/// Where tensors may begin: a multiple of this.
const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Ints(Vec<i32>),
    Texts(Vec<String>),
}

impl Meta {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Meta::Text(text.into())
    }

    /// The number of its type, then its value.
    fn write(&self, out: &mut Vec<u8>) {
        let kind = |id: u32, out: &mut Vec<u8>| out.extend(id.to_le_bytes());
        match self {
            Meta::U32(n) => {
                kind(4, out);
                out.extend(n.to_le_bytes());
            }
            Meta::F32(n) => {
                kind(6, out);
                out.extend(n.to_le_bytes());
            }
            Meta::Bool(b) => {
                kind(7, out);
                out.push(u8::from(*b));
            }
            Meta::Text(text) => {
                kind(8, out);
                write_text(text, out);
            }
            Meta::Ints(list) => {
                kind(9, out);
                kind(5, out);
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
            Meta::Texts(list) => {
                kind(9, out);
                kind(8, out);
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|text| write_text(text, out));
            }
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Lays out the file.
pub(super) fn layout(spec: &Spec, kind: GgufType, tensors: Vec<Tensor>) -> File {
    let metadata = metadata(spec, kind);
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in &metadata {
        write_text(key, &mut head);
        value.write(&mut head);
    }
    let mut offset = 0u64;
    for tensor in &tensors {
        write_text(&tensor.name, &mut head);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        // Innermost dimension first.
        tensor.shape.iter().rev().for_each(|&n| head.extend((n as u64).to_le_bytes()));
        head.extend(tensor.dtype.ggml.to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    let mut end = head.len() as u64;
    let mut parts = vec![Part { offset: 0, bytes: end, stream: 0, fill: Fill::Literal(head).into() }];
    for tensor in tensors {
        parts.push(Part { offset: end, bytes: tensor.bytes, stream: tensor.stream, fill: tensor.fill });
        // What is between two tensors stays zero.
        end = (end + tensor.bytes).next_multiple_of(ALIGNMENT);
    }
    File { name: format!("{}-{}.gguf", spec.name, kind.name()), bytes: end, parts }
}

fn metadata(spec: &Spec, kind: GgufType) -> Vec<(String, Meta)> {
    // MOSTLY_MXFP4_MOE: its experts are, whatever the rest is.
    let file_type = if spec.is_mxfp4() { 38 } else { kind.file_type() };
    let mut all = vec![
        ("general.architecture".to_owned(), Meta::text(spec.architecture)),
        ("general.type".to_owned(), Meta::text("model")),
        ("general.name".to_owned(), Meta::text(format!("{} (random weights)", spec.name))),
        ("general.file_type".to_owned(), Meta::U32(file_type)),
        ("general.quantization_version".to_owned(), Meta::U32(2)),
        ("general.alignment".to_owned(), Meta::U32(ALIGNMENT as u32)),
    ];
    let of_architecture =
        |(key, value): &(&str, Meta)| (format!("{}.{key}", spec.architecture), value.clone());
    all.extend(spec.metadata.iter().map(of_architecture));
    let Tokens { texts, types, merges } = Tokens::of(&spec.vocab);
    let id = |id: usize| Meta::U32(id.min(spec.vocab.size - 1) as u32);
    let tokenizer = [
        ("model", Meta::text("gpt2")),
        ("pre", Meta::text(spec.vocab.pre)),
        ("tokens", Meta::Texts(texts)),
        ("token_type", Meta::Ints(types)),
        ("merges", Meta::Texts(merges)),
        ("bos_token_id", id(spec.vocab.bos)),
        ("eos_token_id", id(spec.vocab.eos)),
        ("add_bos_token", Meta::Bool(spec.vocab.add_bos)),
    ];
    all.extend(tokenizer.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)));
    all
}
