use std::fmt;

/// A list in a GGUF file's metadata. Integers of every width become i64, floats f64.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Array {
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Flags.
    Bools(Vec<bool>),
    /// Texts: a vocabulary's tokens, its merges.
    Strings(Vec<String>),
    /// Lists of lists.
    Arrays(Vec<Array>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::Ints(v) => v.len(),
            Array::Floats(v) => v.len(),
            Array::Bools(v) => v.len(),
            Array::Strings(v) => v.len(),
            Array::Arrays(v) => v.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A value in a GGUF file's metadata. Writers differ in the width of integers, so widths are not kept.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// u8, u16, u32 or u64.
    UInt(u64),
    /// i8, i16, i32 or i64.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A text.
    String(String),
    /// A list.
    Array(Array),
}

/// The metadata of a GGUF file, in its order. The getters give none for a key that is absent, of another
/// type, or out of the type's range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    /// An empty one.
    pub fn new() -> Self {
        Metadata::default()
    }

    /// Adds an entry, or replaces the one of that key.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.entries.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Adds an entry whose key is known to be new.
    pub(super) fn push(&mut self, key: String, value: Value) {
        self.entries.push((key, value));
    }

    /// The entries in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key. There are some dozens of keys, so they are searched in order.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Whether a key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// `general.architecture`: `llama`, `qwen3`, ...
    pub fn architecture(&self) -> Option<&str> {
        self.str("general.architecture")
    }

    /// An integer of any width that is not negative.
    pub fn u64(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::UInt(n) => Some(*n),
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// An integer that fits u32.
    pub fn u32(&self, key: &str) -> Option<u32> {
        self.u64(key)?.try_into().ok()
    }

    /// An integer that fits usize.
    pub fn usize(&self, key: &str) -> Option<usize> {
        self.u64(key)?.try_into().ok()
    }

    /// An integer that fits i64.
    pub fn i64(&self, key: &str) -> Option<i64> {
        match self.get(key)? {
            Value::UInt(n) => i64::try_from(*n).ok(),
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// An integer that fits i32.
    pub fn i32(&self, key: &str) -> Option<i32> {
        self.i64(key)?.try_into().ok()
    }

    /// A float, or an integer as one.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(x) => Some(*x),
            Value::UInt(n) => Some(*n as f64),
            Value::Int(n) => Some(*n as f64),
            _ => None,
        }
    }

    /// A float, or an integer as one.
    pub fn f32(&self, key: &str) -> Option<f32> {
        Some(self.f64(key)? as f32)
    }

    /// A flag; an integer 0 or 1 counts as one.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(b) => Some(*b),
            Value::UInt(n @ (0 | 1)) => Some(*n == 1),
            _ => None,
        }
    }

    /// A text.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// A list of any kind.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A list of texts.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.array(key)? {
            Array::Strings(v) => Some(v),
            _ => None,
        }
    }

    /// A list of integers.
    pub fn ints(&self, key: &str) -> Option<&[i64]> {
        match self.array(key)? {
            Array::Ints(v) => Some(v),
            _ => None,
        }
    }

    /// A list of floats.
    pub fn floats(&self, key: &str) -> Option<&[f64]> {
        match self.array(key)? {
            Array::Floats(v) => Some(v),
            _ => None,
        }
    }

    /// A list of flags.
    pub fn bools(&self, key: &str) -> Option<&[bool]> {
        match self.array(key)? {
            Array::Bools(v) => Some(v),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    /// Texts and numbers as they are; of a list, its length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::UInt(n) => write!(f, "{n}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::String(s) => f.write_str(s),
            Value::Array(array) => write!(f, "[{} values]", array.len()),
        }
    }
}
