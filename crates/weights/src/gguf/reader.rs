//! The bytes of a GGUF header, one value after another.
//!
//! Lengths come from the file and may lie: none is believed beyond the bytes that are left.

use std::path::Path;

use super::{Array, Value};
use crate::{
    Result, WeightError,
    file::{PositionedRead, pread_exact},
};

/// Bytes fetched at a time.
const WINDOW: usize = 1 << 18;

/// Lists of lists deeper than this are refused.
const DEPTH: usize = 4;

/// A header longer than this is not believed: one with a vocabulary of 260 000 tokens takes some 10 MiB.
const MOST_BYTES: u64 = 256 << 20;

/// Nor are more elements in all lists together: each takes up to 32 bytes of memory, however short it is in the file.
const MOST_ELEMENTS: u64 = 1 << 24;

pub(super) struct Reader<'a, S: PositionedRead + ?Sized> {
    source: &'a S,
    path: &'a Path,
    size: u64,
    window: Vec<u8>,
    /// Position of the window in the file, and of the next byte in the window.
    base: u64,
    next: usize,
    /// Elements of lists so far.
    elements: u64,
}

impl<'a, S: PositionedRead + ?Sized> Reader<'a, S> {
    pub(super) fn new(source: &'a S, path: &'a Path, size: u64) -> Self {
        Reader { source, path, size, window: Vec::new(), base: 0, next: 0, elements: 0 }
    }

    /// Position in the file.
    pub(super) fn position(&self) -> u64 {
        self.base + self.next as u64
    }

    fn left(&self) -> u64 {
        self.size - self.position()
    }

    pub(super) fn bad(&self, reason: impl Into<String>) -> WeightError {
        WeightError::Header {
            path: self.path.to_owned(),
            reason: format!("{} (near byte {})", reason.into(), self.position()),
        }
    }

    /// An error unless `n` more bytes are there, and a header may have them.
    fn expect(&self, n: u64) -> Result<()> {
        let expected = self.position().saturating_add(n);
        if n <= self.left() {
            if expected > MOST_BYTES {
                let reason =
                    format!("it would have {expected} bytes or more, and at most {MOST_BYTES} are read");
                return Err(self.bad(reason));
            }
            return Ok(());
        }
        Err(WeightError::Truncated {
            path: self.path.to_owned(),
            part: "the header".to_owned(),
            header_end: expected,
            expected,
            size: self.size,
        })
    }

    /// Makes the next `n <= WINDOW` bytes available.
    fn fill(&mut self, n: usize) -> Result<()> {
        self.expect(n as u64)?;
        if self.window.len() - self.next < n {
            self.base = self.position();
            self.next = 0;
            let len = self.left().min(WINDOW as u64) as usize;
            self.window.resize(len, 0);
            pread_exact(self.source, self.path, &mut self.window, self.base)?;
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.fill(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.window[self.next..self.next + N]);
        self.next += N;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A text: its length as u64, then UTF-8. A vocabulary may hold a token that is half a character; it is
    /// kept with the replacement character rather than making the file unreadable.
    pub(super) fn string(&mut self) -> Result<String> {
        let len = self.u64()?;
        self.expect(len)?;
        let bytes = if len <= WINDOW as u64 {
            let len = len as usize;
            self.fill(len)?;
            let bytes = self.window[self.next..self.next + len].to_vec();
            self.next += len;
            bytes
        } else {
            let mut bytes = vec![0; len as usize];
            pread_exact(self.source, self.path, &mut bytes, self.position())?;
            self.base = self.position() + len;
            self.next = 0;
            self.window.clear();
            bytes
        };
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    pub(super) fn value(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        self.value_of(kind)
    }

    fn value_of(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::UInt(u8::from_le_bytes(self.take()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.take()?).into()),
            2 => Value::UInt(u16::from_le_bytes(self.take()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.take()?).into()),
            4 => Value::UInt(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.take()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.take()?).into()),
            7 => Value::Bool(self.take::<1>()? != [0]),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.array(DEPTH)?),
            10 => Value::UInt(self.u64()?),
            11 => Value::Int(i64::from_le_bytes(self.take()?)),
            12 => Value::Float(f64::from_le_bytes(self.take()?)),
            other => return Err(self.bad(format!("a value has unknown type {other}"))),
        })
    }

    fn array(&mut self, depth: usize) -> Result<Array> {
        let kind = self.u32()?;
        let len = self.u64()?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(self.bad(format!("a list has elements of unknown type {other}"))),
        };
        self.expect(len.saturating_mul(least))?;
        self.elements = self.elements.saturating_add(len);
        if self.elements > MOST_ELEMENTS {
            let found = self.elements;
            let reason =
                format!("its lists have {found} elements or more, and at most {MOST_ELEMENTS} are read");
            return Err(self.bad(reason));
        }
        let len = usize::try_from(len).map_err(|_| self.bad("a list is too long"))?;
        Ok(match kind {
            6 | 12 => Array::Floats(self.list(len, |r| match r.value_of(kind)? {
                Value::Float(x) => Ok(x),
                other => Err(r.bad(format!("{other} stands in a list of floats"))),
            })?),
            7 => Array::Bools(self.list(len, |r| Ok(r.take::<1>()? != [0]))?),
            8 => Array::Strings(self.list(len, |r| r.string())?),
            9 if depth == 0 => return Err(self.bad("lists are nested too deeply")),
            9 => Array::Arrays(self.list(len, |r| r.array(depth - 1))?),
            _ => Array::Ints(self.list(len, |r| match r.value_of(kind)? {
                Value::Int(n) => Ok(n),
                Value::UInt(n) => {
                    i64::try_from(n).map_err(|_| r.bad(format!("{n} in a list of integers is beyond i64")))
                }
                other => Err(r.bad(format!("{other} stands in a list of integers"))),
            })?),
        })
    }

    fn list<T>(&mut self, len: usize, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut list = Vec::with_capacity(len.min(1 << 16));
        for _ in 0..len {
            list.push(one(self)?);
        }
        Ok(list)
    }
}
