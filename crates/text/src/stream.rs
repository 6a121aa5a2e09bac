use std::sync::Arc;

use crate::Tokenizer;
use crate::tokenizer::{PieceKind, PieceTable};

/// How token ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Leave out control tokens such as `<|im_end|>`. On by default.
    pub skip_special: bool,
    /// The text goes on from an earlier one, so a leading space belongs to it.
    ///
    /// SentencePiece vocabularies spell a text's first word with a space before it, which is
    /// dropped at the beginning of a text (the default) and kept in a continuation.
    pub continues: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { skip_special: true, continues: false }
    }
}

/// Turns token ids into text one by one.
///
/// Tokens may end in the middle of a character; its bytes are held back (at most three) until it
/// is complete. Bytes that can never become a character are replaced by U+FFFD. What it gives,
/// joined, is what [`Tokenizer::decode`] gives for the same ids, however they are split.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    table: Arc<PieceTable>,
    skip_special: bool,
    strip: usize,
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer, options: DecodeOptions) -> Self {
        Self::over(Arc::clone(tokenizer.pieces()), options)
    }

    fn over(table: Arc<PieceTable>, options: DecodeOptions) -> Self {
        let strip = if options.continues { 0 } else { table.strip_start };
        Self { table, skip_special: options.skip_special, strip, pending: Vec::new() }
    }

    /// Takes a token and gives the characters that are complete now, often none.
    ///
    /// An id that the vocabulary lacks stands for no text: models pad their output matrix.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_onto(id, &mut text);
        text
    }

    /// Like [`Self::push`], appending to `text`.
    pub fn push_onto(&mut self, id: u32, text: &mut String) {
        let Some((mut bytes, kind)) = self.table.get(id) else { return };
        if kind == PieceKind::Special && self.skip_special {
            return;
        }
        while self.strip > 0 && !bytes.is_empty() {
            match bytes {
                [b' ', rest @ ..] => {
                    bytes = rest;
                    self.strip -= 1;
                }
                _ => self.strip = 0,
            }
        }
        self.pending.extend_from_slice(bytes);
        let complete = take_characters(&self.pending, text);
        self.pending.drain(..complete);
    }

    /// Ends the text: bytes of a character that never got complete become one U+FFFD.
    pub fn finish(&mut self) -> String {
        match std::mem::take(&mut self.pending).is_empty() {
            true => String::new(),
            false => char::REPLACEMENT_CHARACTER.into(),
        }
    }
}

/// Appends every complete character of `bytes` to `text`, U+FFFD for bytes that are none, and
/// gives the number of bytes taken. What is left is the beginning of one character.
fn take_characters(bytes: &[u8], text: &mut String) -> usize {
    let mut taken = 0;
    loop {
        let rest = &bytes[taken..];
        let error = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return bytes.len();
            }
            Err(error) => error,
        };
        let valid = &rest[..error.valid_up_to()];
        text.push_str(std::str::from_utf8(valid).unwrap_or_default());
        taken += valid.len();
        match error.error_len() {
            None => return taken,
            Some(wrong) => {
                text.push(char::REPLACEMENT_CHARACTER);
                taken += wrong;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A vocabulary of the 256 single bytes, then `extra`, then one special token.
    fn decoder(extra: &[&[u8]], strip: usize, options: DecodeOptions) -> StreamDecoder {
        let mut table = PieceTable::new(strip);
        (0..=255u8).for_each(|b| table.push(&[b], PieceKind::Text));
        extra.iter().for_each(|bytes| table.push(bytes, PieceKind::Text));
        table.push(b"<|end|>", PieceKind::Special);
        StreamDecoder::over(Arc::new(table), options)
    }

    fn run(mut decoder: StreamDecoder, ids: impl IntoIterator<Item = u32>) -> String {
        let mut text: String = ids.into_iter().map(|id| decoder.push(id)).collect();
        text += &decoder.finish();
        text
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &[&str], end: &str) {
        let mut decoder = decoder(&[], 0, DecodeOptions::default());
        let got: Vec<String> = bytes.iter().map(|&b| decoder.push(b.into())).collect();
        assert_eq!(got, expected);
        assert_eq!(decoder.finish(), end);
    }

    #[test]
    fn ferrox_124_emoji_split_over_tokens() {
        check("a🦙".as_bytes(), &["a", "", "", "", "🦙"], "");
    }

    #[test]
    fn drama_llama_55_incomplete_character_at_the_end() {
        check(&"🦙".as_bytes()[..3], &["", "", ""], "\u{FFFD}");
    }

    #[test]
    fn lucebox_641_wrong_bytes_do_not_swallow_what_follows() {
        check(&[0xF0, b'a', 0xFF, b'b'], &["", "\u{FFFD}a", "\u{FFFD}", "b"], "");
    }

    #[test]
    fn holds_back_at_most_three_bytes() {
        let mut decoder = decoder(&[], 0, DecodeOptions::default());
        for byte in [0xF0u32, 0x9F, 0xF0, 0xF0, 0x9F, 0xA6, 0xF0].repeat(50) {
            decoder.push(byte);
            assert!(decoder.pending.len() <= 3);
        }
    }

    #[test]
    fn leading_space_and_special_tokens() {
        let (word, special) = (256, 257);
        let keep = DecodeOptions { skip_special: false, ..Default::default() };
        let goes_on = DecodeOptions { continues: true, ..Default::default() };
        let run = |options, ids: &[u32]| run(decoder(&[b" the"], 1, options), ids.iter().copied());
        assert_eq!(run(Default::default(), &[word, word]), "the the");
        assert_eq!(run(Default::default(), &[special, word, special]), "the");
        assert_eq!(run(keep, &[special, word]), "<|end|> the");
        assert_eq!(run(goes_on, &[word]), " the");
        // Only one space is dropped, and only at the beginning.
        assert_eq!(run(Default::default(), &[0x20, 0x20, word]), "  the");
        assert_eq!(run(Default::default(), &[0x61, word]), "a the");
        // An id beyond the vocabulary stands for no text.
        assert_eq!(run(Default::default(), &[0x61, 9999, 0x62]), "ab");
    }

    proptest! {
        #[test]
        fn any_split_of_any_text_joins_to_the_whole(
            text in any::<String>(),
            cuts in prop::collection::vec(0usize..64, 0..16),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let tokens: Vec<&[u8]> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            let ids = 256..256 + tokens.len() as u32;
            prop_assert_eq!(run(decoder(&tokens, 0, DecodeOptions::default()), ids), text);
        }

        #[test]
        fn any_bytes_decode_as_the_standard_library_does(bytes in any::<Vec<u8>>()) {
            let ids = bytes.iter().map(|&b| u32::from(b));
            let got = run(decoder(&[], 0, DecodeOptions::default()), ids);
            prop_assert_eq!(got, String::from_utf8_lossy(&bytes));
        }
    }
}
