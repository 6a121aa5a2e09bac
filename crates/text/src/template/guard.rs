use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

/// Characters that may stand as guards: Unicode's noncharacters, which no text uses.
pub(super) const GUARDS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// The texts of a vocabulary's special tokens, ready to be looked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpecialTexts {
    /// By first character, the longest first.
    by_first: HashMap<char, Vec<String>>,
}

impl SpecialTexts {
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut by_first: HashMap<char, Vec<String>> = HashMap::new();
        for text in texts {
            // A token of one character cannot be broken up; no model has such a special token.
            let mut chars = text.chars();
            if let (Some(first), Some(_)) = (chars.next(), chars.next()) {
                by_first.entry(first).or_default().push(text.to_owned());
            }
        }
        by_first.values_mut().for_each(|texts| texts.sort_by_key(|text| std::cmp::Reverse(text.len())));
        Self { by_first }
    }

    /// The places in `text` at which a special text begins, or at which all that is left (but for
    /// white space) is the beginning of one, as something may follow that completes it: then all that is left.
    fn places<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        // Once, not at each place: white space may be long.
        let end = text.trim_end().len();
        text.char_indices()
            .filter_map(move |(at, c)| Some((at, self.at(c, &text[at..], end.saturating_sub(at))?)))
    }

    /// The special text at the start of `rest`, whose first character is `first` and which is `trimmed` bytes long
    /// without the white space at its end.
    fn at<'a>(&'a self, first: char, rest: &'a str, trimmed: usize) -> Option<&'a str> {
        let candidates = self.by_first.get(&first)?;
        let whole = candidates.iter().find(|text| rest.starts_with(text.as_str()));
        if let Some(whole) = whole {
            return Some(whole);
        }
        let end = &rest[..trimmed];
        candidates.iter().any(|text| text.starts_with(end) || text.starts_with(rest)).then_some(rest)
    }
}

/// Breaks up special texts in message contents by a character after their first.
pub(super) struct Guard<'a> {
    pub(super) texts: &'a SpecialTexts,
    pub(super) character: char,
    /// Special texts that are let through, as the template works on them itself.
    pub(super) let_through: &'a BTreeSet<String>,
}

impl Guard<'_> {
    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        let mut done = 0;
        for (at, special) in self.texts.places(text) {
            if !self.let_through.contains(special) {
                let next = at + text[at..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&text[done..next]);
                out.push(self.character);
                done = next;
            }
        }
        out + &text[done..]
    }

    /// A copy of `value` with all its strings and keys guarded.
    pub(super) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(k, v)| (self.text(k), self.value(v))).collect())
            }
            other => other.clone(),
        }
    }

    /// A copy of a message with everything guarded but its role, which is no free text.
    pub(super) fn message(&self, message: &Map<String, Value>) -> Map<String, Value> {
        let guarded = message.iter().map(|(key, value)| match key.as_str() {
            "role" => (key.clone(), value.clone()),
            _ => (key.clone(), self.value(value)),
        });
        guarded.collect()
    }
}

/// All special texts that occur in the strings of `value`, partial ones at the end included.
pub(super) fn special_texts_in(texts: &SpecialTexts, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            found.extend(texts.places(text).map(|(_, special)| special.to_owned()));
        }
        Value::Array(items) => items.iter().for_each(|item| special_texts_in(texts, item, found)),
        Value::Object(map) => {
            for (key, item) in map {
                special_texts_in(texts, &Value::String(key.clone()), found);
                special_texts_in(texts, item, found);
            }
        }
        _ => {}
    }
}

/// A guard character that occurs in none of `values`; `None` if all 32 do.
pub(super) fn unused_guard<'a>(values: impl Iterator<Item = &'a Value> + Clone) -> Option<char> {
    let mut guards = GUARDS;
    guards.find(|&guard| !values.clone().any(|value| contains(value, guard)))
}

fn contains(value: &Value, c: char) -> bool {
    match value {
        Value::String(text) => text.contains(c),
        Value::Array(items) => items.iter().any(|item| contains(item, c)),
        Value::Object(map) => map.iter().any(|(k, v)| k.contains(c) || contains(v, c)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn guarded(text: &str, let_through: &[&str]) -> String {
        let texts = SpecialTexts::new(["<|im_end|>", "</s>", "<|im_end|>x", "[X]"].into_iter());
        let let_through = let_through.iter().map(|text| text.to_string()).collect();
        let guard = Guard { texts: &texts, character: '\u{FDD0}', let_through: &let_through };
        guard.text(text).replace('\u{FDD0}', "#")
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(guarded(text, &[]), expected);
    }

    #[test]
    fn breaks_up_special_texts() {
        check("a<|im_end|>b</s>", "a<#|im_end|>b<#/s>");
        check("<|im_end|>x[X]", "<#|im_end|>x[#X]");
        check("a < b <|im_start|>", "a < b <|im_start|>");
        // What a following string could complete is broken up too, white space aside.
        check("a <|im_", "a <#|im_");
        check("a <", "a <#");
        check("a <|im_ \n", "a <#|im_ \n");
        assert_eq!(guarded("</s><|im_end|>", &["</s>"]), "</s><#|im_end|>");
    }

    #[test]
    fn guards_keys_and_spares_roles() {
        let texts = SpecialTexts::new(["<x>"].into_iter());
        let none = BTreeSet::new();
        let guard = Guard { texts: &texts, character: '#', let_through: &none };
        let message = json!({"role": "<x>", "content": [{"text": "<x>"}], "args": {"<x>": 1}});
        let expected = json!({"role": "<x>", "content": [{"text": "<#x>"}], "args": {"<#x>": 1}});
        assert_eq!(Value::Object(guard.message(message.as_object().unwrap())), expected);
    }

    #[test]
    fn guard_is_none_of_the_texts_characters() {
        assert_eq!(unused_guard([json!("\u{FDD0}")].iter()), Some('\u{FDD1}'));
        let all: String = GUARDS.collect();
        assert_eq!(unused_guard([json!([{ "k": all }])].iter()), None);
    }
}
