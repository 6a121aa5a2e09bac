use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::pieces::fallback_byte;

/// SentencePiece's BPE: merge the adjacent pair whose union has the best score, until no union
/// of neighbours is a token.
///
/// This is not BPE by a list of merges: a pair may be joined whenever the result is a token,
/// however it came about. Of equal scores the leftmost pair goes first.
#[derive(Debug)]
pub(crate) struct SpmMerger {
    /// Tokens that text may become: no control, unknown or byte tokens.
    tokens: HashMap<String, (u32, f32)>,
    /// The token of each byte, for characters that are no token.
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
    longest: usize,
}

/// A run of the text; joined ones are empty.
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose union is a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl SpmMerger {
    /// `tokens`: id, text and score of the ordinary ones; `byte_tokens`: id and text (`<0x0A>`).
    pub(crate) fn new<'a>(
        tokens: impl Iterator<Item = (u32, &'a str, f32)>,
        byte_tokens: impl Iterator<Item = (u32, &'a str)>,
        unk: Option<u32>,
    ) -> Self {
        let mut bytes = vec![None; 256];
        for (id, text) in byte_tokens {
            if let Some(byte) = fallback_byte(text) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        let mut map = HashMap::new();
        let mut longest = 0;
        for (id, text, score) in tokens.filter(|(_, text, _)| !text.is_empty()) {
            longest = longest.max(text.len());
            // Where a text occurs twice, the first id is its token.
            map.entry(text.to_owned()).or_insert((id, score));
        }
        Self { tokens: map, bytes, unk, longest }
    }

    /// The token ids of `text`, in which spaces are already written as `▁`.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut symbols = split_characters(text);
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for left in 0..symbols.len() {
            queue.extend(self.pair(text, &symbols, Some(left)));
        }
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            // A pair is stale once one of its halves has grown or gone.
            let (l, r) = (&symbols[left], &symbols[right]);
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            let next = r.next;
            symbols[right].len = 0;
            symbols[left].len = len;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].prev = Some(left);
            }
            queue.extend(self.pair(text, &symbols, symbols[left].prev));
            queue.extend(self.pair(text, &symbols, Some(left)));
        }
        let mut ids = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.emit(&text[symbol.start..symbol.start + symbol.len], &mut ids);
        }
        ids
    }

    /// The pair of `left` and its neighbour, if their union is a token.
    fn pair(&self, text: &str, symbols: &[Symbol], left: Option<usize>) -> Option<Pair> {
        let left = left?;
        let (l, right) = (&symbols[left], symbols[left].next?);
        let len = l.len + symbols[right].len;
        if len > self.longest {
            return None;
        }
        let (_, score) = self.tokens.get(&text[l.start..l.start + len])?;
        Some(Pair { score: *score, left, right, len })
    }

    fn emit(&self, piece: &str, ids: &mut Vec<u32>) {
        if let Some((id, _)) = self.tokens.get(piece) {
            ids.push(*id);
            return;
        }
        let bytes: Option<Vec<u32>> = piece.bytes().map(|b| self.bytes[usize::from(b)]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unk),
        }
    }
}

fn split_characters(text: &str) -> Vec<Symbol> {
    let count = text.chars().count();
    let symbol = |(i, (start, c)): (usize, (usize, char))| Symbol {
        start,
        len: c.len_utf8(),
        prev: i.checked_sub(1),
        next: (i + 1 < count).then_some(i + 1),
    };
    text.char_indices().enumerate().map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merger() -> SpmMerger {
        let tokens = [(3, "a", 0.0), (4, "b", 0.0), (5, "ab", -1.0), (6, "ba", -0.5), (7, "abab", -9.0)];
        let bytes = [(0xC3 + 10, "<0xC3>"), (0xA9 + 10, "<0xA9>")];
        SpmMerger::new(tokens.into_iter(), bytes.into_iter(), Some(0))
    }

    #[track_caller]
    fn check(text: &str, expected: &[u32]) {
        assert_eq!(merger().encode(text), expected);
    }

    #[test]
    fn merges_by_score_then_from_the_left() {
        check("", &[]);
        check("ab", &[5]);
        // "ba" beats "ab", so "abab" is a + ba + b and never comes together.
        check("abab", &[3, 6, 4]);
        check("aab", &[3, 5]);
    }

    #[test]
    fn unknown_characters_become_bytes_or_the_unknown_token() {
        check("é", &[0xC3 + 10, 0xA9 + 10]);
        check("aéa", &[3, 0xC3 + 10, 0xA9 + 10, 3]);
        check("ü", &[0]);
    }
}
