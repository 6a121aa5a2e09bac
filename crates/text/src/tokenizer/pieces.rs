use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::TextError;

/// The raw bytes of every token, in one allocation, with what decoding needs to know beside it.
#[derive(Debug, Default)]
pub(crate) struct PieceTable {
    blob: Vec<u8>,
    /// End of each token's bytes in `blob`; a token begins where the one before ends.
    ends: Vec<u32>,
    kinds: Vec<PieceKind>,
    /// How many spaces to drop at the very beginning of a text (SentencePiece puts one there).
    pub(crate) strip_start: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// The vocabulary has no token with this id.
    Absent,
    Text,
    /// A control token: not text that the model says.
    Special,
}

impl PieceTable {
    pub(crate) fn new(strip_start: usize) -> Self {
        Self { strip_start, ..Self::default() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8], kind: PieceKind) {
        self.blob.extend_from_slice(bytes);
        // A vocabulary's text is far below 4 GiB: it was read from a file into memory.
        self.ends.push(self.blob.len() as u32);
        self.kinds.push(kind);
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The most bytes of text that a token may stand for, if no text is lost on the way: if every byte has a token of
    /// its own.
    pub(crate) fn longest(&self) -> Option<usize> {
        let pieces = || (0..self.len() as u32).filter_map(|id| self.get(id)).map(|(bytes, _)| bytes);
        let mut has = [false; 256];
        for bytes in pieces() {
            if let [byte] = bytes {
                has[usize::from(*byte)] = true;
            }
        }
        has.iter().all(|&has| has).then(|| pieces().map(<[u8]>::len).max().unwrap_or(1).max(1))
    }

    pub(crate) fn get(&self, id: u32) -> Option<(&[u8], PieceKind)> {
        let i = id as usize;
        let kind = *self.kinds.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        let bytes = self.blob.get(start..*self.ends.get(i)? as usize)?;
        (kind != PieceKind::Absent).then_some((bytes, kind))
    }
}

/// How a vocabulary spells bytes in the text of an ordinary token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PieceCoding {
    /// GPT-2's: each byte is one printable character.
    ByteLevel,
    /// SentencePiece's: some strings stand for others (`▁` for a space), `<0x0A>` is a byte.
    Text { replace: Vec<(String, String)>, byte_fallback: bool },
}

impl PieceCoding {
    pub(crate) fn sentencepiece() -> Self {
        Self::Text { replace: vec![("\u{2581}".into(), " ".into())], byte_fallback: true }
    }

    /// The bytes an ordinary token stands for.
    pub(crate) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                let map = byte_level_map();
                // A character outside the map cannot come from the encoder; it is kept as it is.
                let mapped: Option<Vec<u8>> = token.chars().map(|c| map.get(&c).copied()).collect();
                mapped.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Text { replace, byte_fallback } => {
                if let Some(byte) = byte_fallback.then(|| fallback_byte(token)).flatten() {
                    return vec![byte];
                }
                let text = token.to_owned();
                replace.iter().fold(text, |text, (from, to)| text.replace(from, to)).into_bytes()
            }
        }
    }
}

/// The byte of a byte-fallback token such as `<0x0A>`.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// GPT-2's table from printable character to byte.
///
/// The printable bytes of Latin-1 stand for themselves; the other 68, in ascending order, are
/// U+0100 and the following characters.
fn byte_level_map() -> &'static HashMap<char, u8> {
    static MAP: OnceLock<HashMap<char, u8>> = OnceLock::new();
    MAP.get_or_init(|| {
        let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let mut others = ('\u{100}'..).take(68);
        let spell = |b| if printable(b) { Some(char::from(b)) } else { others.next() };
        (0..=255u8).zip((0..=255u8).map(spell)).filter_map(|(b, c)| Some((c?, b))).collect()
    })
}

/// Reads the decoder of a `tokenizer.json` as a coding of single tokens plus the number of
/// leading spaces to strip.
///
/// # Errors
/// [`TextError::UnsupportedDecoder`] for one that needs to see neighbouring tokens.
pub(crate) fn coding_of_decoder(decoder: &Value) -> Result<(PieceCoding, usize), TextError> {
    let mut byte_level = false;
    let mut replace = Vec::new();
    let mut byte_fallback = false;
    let mut strip_start = 0;
    let single = [decoder.clone()];
    let parts = match decoder.get("decoders").and_then(Value::as_array) {
        Some(parts) => parts.as_slice(),
        None => &single,
    };
    for part in parts {
        let text = |key: &str| part.get(key).and_then(Value::as_str).map(str::to_owned);
        let kind = text("type").unwrap_or_else(|| "none".into());
        match kind.as_str() {
            "ByteLevel" => byte_level = true,
            "ByteFallback" => byte_fallback = true,
            "Fuse" => {}
            "Replace" => {
                let from = part.pointer("/pattern/String").and_then(Value::as_str);
                match (from, text("content")) {
                    (Some(from), Some(to)) => replace.push((from.to_owned(), to)),
                    _ => return Err(TextError::UnsupportedDecoder { kind: "Replace by regex".into() }),
                }
            }
            "Strip" => {
                let count = |key| part.get(key).and_then(Value::as_u64).unwrap_or(0);
                if text("content").as_deref() != Some(" ") || count("stop") != 0 {
                    return Err(TextError::UnsupportedDecoder { kind: part.to_string() });
                }
                strip_start = count("start") as usize;
            }
            "Metaspace" => {
                let from = text("replacement").unwrap_or_else(|| "\u{2581}".into());
                replace.push((from, " ".into()));
                strip_start = usize::from(text("prepend_scheme").as_deref() != Some("never"));
            }
            _ => return Err(TextError::UnsupportedDecoder { kind }),
        }
    }
    let coding = match byte_level {
        true => PieceCoding::ByteLevel,
        false => PieceCoding::Text { replace, byte_fallback },
    };
    Ok((coding, strip_start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(coding: &PieceCoding, token: &str, expected: &[u8]) {
        assert_eq!(coding.bytes(token), expected);
    }

    #[test]
    fn byte_level() {
        assert_eq!(byte_level_map().len(), 256);
        check(&PieceCoding::ByteLevel, "ĠHello", b" Hello");
        check(&PieceCoding::ByteLevel, "Ċ", b"\n");
        check(&PieceCoding::ByteLevel, "ðŁ¦Ļ", "🦙".as_bytes());
        check(&PieceCoding::ByteLevel, "Ń", &[0xAD]);
        check(&PieceCoding::ByteLevel, "你", "你".as_bytes());
    }

    #[test]
    fn sentencepiece() {
        let coding = PieceCoding::sentencepiece();
        check(&coding, "▁Hello", b" Hello");
        check(&coding, "▁▁", b"  ");
        check(&coding, "<0xF0>", &[0xF0]);
        check(&coding, "<0xZZ>", b"<0xZZ>");
        check(&coding, "<0x+1>", b"<0x+1>");
    }

    #[test]
    fn decoders() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        assert_eq!(coding_of_decoder(&llama).unwrap(), (PieceCoding::sentencepiece(), 1));
        let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false});
        assert_eq!(coding_of_decoder(&gpt2).unwrap(), (PieceCoding::ByteLevel, 0));
        let bert = json!({"type": "WordPiece", "prefix": "##"});
        assert!(matches!(coding_of_decoder(&bert), Err(TextError::UnsupportedDecoder { .. })));
    }
}
