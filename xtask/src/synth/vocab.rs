//! A vocabulary of byte-level BPE whose texts are made up: programs refuse a GGUF file without one.

use super::models::Vocab;

/// `tokenizer.ggml.token_type` of a normal token.
const NORMAL: i32 = 1;
/// Of a special one.
const CONTROL: i32 = 3;

/// The first tokens after those of the bytes, and how they come about.
const MERGED: [(&str, &str); 6] = [("Ġ", "t"), ("h", "e"), ("Ġ", "a"), ("i", "n"), ("r", "e"), ("o", "n")];

/// The lists that GGUF keeps.
pub(super) struct Tokens {
    /// The text of each token, distinct.
    pub(super) texts: Vec<String>,
    /// The type of each.
    pub(super) types: Vec<i32>,
    /// Merges.
    pub(super) merges: Vec<String>,
}

impl Tokens {
    /// All bytes, so that any text can be encoded; a few merges; made-up words; the special tokens in their places.
    pub(super) fn of(vocab: &Vocab) -> Self {
        let bytes = byte_characters().map(String::from);
        let merged = MERGED.iter().map(|(a, b)| format!("{a}{b}"));
        let words = (0..).map(word);
        let mut texts: Vec<String> = bytes.chain(merged).chain(words).take(vocab.size).collect();
        let mut types = vec![NORMAL; texts.len()];
        for &(id, text) in vocab.special {
            if let (Some(place), Some(kind)) = (texts.get_mut(id), types.get_mut(id)) {
                (*place, *kind) = (text.to_owned(), CONTROL);
            }
        }
        Tokens { texts, types, merges: MERGED.iter().map(|(a, b)| format!("{a} {b}")).collect() }
    }
}

/// The characters that stand for the 256 bytes in GPT-2's vocabularies: printable bytes stand for themselves,
/// the others for the characters from U+0100 on.
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let own = (0..=255u8).filter(move |&b| printable(b)).map(char::from);
    let others = (0..=255u8).filter(move |&b| !printable(b)).count() as u32;
    own.chain((0..others).filter_map(|n| char::from_u32(0x100 + n)))
}

/// A space and four letters, `number` in base 26.
fn word(number: usize) -> String {
    let letters = [26 * 26 * 26, 26 * 26, 26, 1].map(|place| char::from(b'a' + (number / place % 26) as u8));
    "Ġ".chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tokens_are_distinct_and_special_ones_in_their_places() {
        let special: &[(usize, &str)] = &[(0, "<s>"), (199_998, "<end>"), (300_000, "<beyond>")];
        let vocab = Vocab { size: 201_088, pre: "gpt-4o", bos: 0, eos: 199_998, add_bos: false, special };
        let tokens = Tokens::of(&vocab);
        assert_eq!(tokens.texts.iter().collect::<BTreeSet<_>>().len(), vocab.size);
        assert_eq!((tokens.texts[199_998].as_str(), tokens.types[199_998]), ("<end>", CONTROL));
        assert_eq!(tokens.types.iter().filter(|&&t| t == CONTROL).count(), 2);
        let known = |text: &str| tokens.texts.iter().any(|t| t == text);
        assert!(MERGED.iter().all(|(a, b)| known(a) && known(b) && known(&format!("{a}{b}"))));
    }
}
