//! What a code object says of its kernel: a note of the ELF file, in MessagePack ("User Guide for AMDGPU", LLVM).

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// What a kernel takes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// Vector registers of a lane, with those of the matrix units where they are one file.
    pub(super) vgprs: u32,
    /// Those of the matrix units.
    pub(super) agprs: u32,
    /// Scalar registers of a wave.
    pub(super) sgprs: u32,
    /// Vector registers whose values went to memory.
    pub(super) vgpr_spills: u32,
    /// Scalar registers whose values went to vector registers or memory.
    pub(super) sgpr_spills: u32,
    /// Bytes of shared memory of a block that are known when it is compiled.
    pub(super) lds: u32,
    /// Bytes of private memory of a lane.
    pub(super) scratch: u32,
    /// Lanes of a wave.
    pub(super) wave: u32,
    /// Bytes of arguments, hidden ones included.
    pub(super) kernarg: u32,
}

impl Taken {
    /// The most of each of two.
    pub(super) fn max(self, other: Taken) -> Taken {
        Taken {
            vgprs: self.vgprs.max(other.vgprs),
            agprs: self.agprs.max(other.agprs),
            sgprs: self.sgprs.max(other.sgprs),
            vgpr_spills: self.vgpr_spills.max(other.vgpr_spills),
            sgpr_spills: self.sgpr_spills.max(other.sgpr_spills),
            lds: self.lds.max(other.lds),
            scratch: self.scratch.max(other.scratch),
            wave: self.wave.max(other.wave),
            kernarg: self.kernarg.max(other.kernarg),
        }
    }
}

/// What the kernel `entry` of a code object takes.
///
/// # Errors
/// If the file is no code object with notes that can be read, or has no such kernel.
pub(super) fn taken(file: &[u8], entry: &str) -> Result<Taken> {
    let note = note(file).context("the code object has no note of AMDGPU's")?;
    let value =
        Reader { rest: note, depth: 0 }.value().context("the code object's note is cut or damaged")?;
    let kernels =
        value.get("amdhsa.kernels").and_then(Value::as_array).context("the note names no kernels")?;
    let named = |kernel: &&Value| kernel.get(".name").and_then(Value::as_str) == Some(entry);
    let Some(kernel) = kernels.iter().find(named) else { bail!("the code object has no kernel '{entry}'") };
    let number = |key: &str| {
        let number = kernel.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        number.with_context(|| format!("the note has no number '{key}'"))
    };
    Ok(Taken {
        vgprs: number(".vgpr_count")?,
        // Only where there are such registers.
        agprs: number(".agpr_count").unwrap_or(0),
        sgprs: number(".sgpr_count")?,
        vgpr_spills: number(".vgpr_spill_count")?,
        sgpr_spills: number(".sgpr_spill_count")?,
        lds: number(".group_segment_fixed_size")?,
        scratch: number(".private_segment_fixed_size")?,
        wave: number(".wavefront_size")?,
        kernarg: number(".kernarg_segment_size")?,
    })
}

/// A little-endian number of the file, of up to eight bytes.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(bytes)?)?;
    Some(bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// The content of the note of type 32 whose owner is `AMDGPU`, in a 64-bit little-endian ELF file.
fn note(file: &[u8]) -> Option<&[u8]> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(file, 0x28, 8)?, number(file, 0x3a, 2)?, number(file, 0x3c, 2)?);
    for index in 0..count {
        let section = usize::try_from(table.checked_add(index * size)?).ok()?;
        const NOTES: u64 = 7;
        if number(file, section + 4, 4)? != NOTES {
            continue;
        }
        let (offset, length) = (number(file, section + 24, 8)?, number(file, section + 32, 8)?);
        let offset = usize::try_from(offset).ok()?;
        let mut notes = file.get(offset..offset.checked_add(usize::try_from(length).ok()?)?)?;
        while !notes.is_empty() {
            let field = |at| number(notes, at, 4).and_then(|n| usize::try_from(n).ok());
            let (owner, content, kind) = (field(0)?, field(4)?, field(8)?);
            // The owner's name and the content each fill whole words.
            let begin = 12 + owner.next_multiple_of(4);
            if kind == 32 && notes.get(12..12 + owner)? == b"AMDGPU\0" {
                return notes.get(begin..begin.checked_add(content)?);
            }
            notes = notes.get(begin.checked_add(content.next_multiple_of(4))?.min(notes.len())..)?;
        }
    }
    None
}

/// Reads MessagePack, those kinds of values that the note has.
struct Reader<'a> {
    rest: &'a [u8],
    depth: u32,
}

/// The note has four levels. More is damage.
const MOST_DEPTH: u32 = 16;

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    /// A big-endian number.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.number(bytes)?).ok()
    }

    fn value(&mut self) -> Option<Value> {
        let kind = *self.take(1)?.first()?;
        let low = |mask: u8| usize::from(kind & mask);
        match kind {
            0x00..=0x7f => Some(kind.into()),
            0x80..=0x8f => self.map(low(0x0f)),
            0x90..=0x9f => self.array(low(0x0f)),
            0xa0..=0xbf => self.string(low(0x1f)),
            0xc0 => Some(Value::Null),
            0xc2 | 0xc3 => Some((kind == 0xc3).into()),
            0xcc..=0xcf => self.number(1 << (kind - 0xcc)).map(Value::from),
            0xd9..=0xdb => self.length(1 << (kind - 0xd9)).and_then(|n| self.string(n)),
            0xdc | 0xdd => self.length(2 << (kind - 0xdc)).and_then(|n| self.array(n)),
            0xde | 0xdf => self.length(2 << (kind - 0xde)).and_then(|n| self.map(n)),
            0xe0.. => Some(i64::from(i8::from_ne_bytes([kind])).into()),
            _ => None,
        }
    }

    fn string(&mut self, bytes: usize) -> Option<Value> {
        Some(String::from_utf8_lossy(self.take(bytes)?).into_owned().into())
    }

    fn inner(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= MOST_DEPTH).then_some(())
    }

    fn array(&mut self, count: usize) -> Option<Value> {
        self.inner()?;
        // A damaged count must not take memory: the values are read one by one.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value()?);
        }
        self.depth -= 1;
        Some(values.into())
    }

    fn map(&mut self, count: usize) -> Option<Value> {
        self.inner()?;
        let mut values = Map::new();
        for _ in 0..count {
            let key = self.value()?.as_str()?.to_owned();
            values.insert(key, self.value()?);
        }
        self.depth -= 1;
        Some(values.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], want: Option<Value>) {
        assert_eq!(Reader { rest: bytes, depth: 0 }.value(), want, "{bytes:x?}");
    }

    #[test]
    fn values_are_read() {
        use serde_json::json;
        check(b"\x07", Some(json!(7)));
        check(b"\xcc\xff", Some(json!(255)));
        check(b"\xcd\x01\x02", Some(json!(258)));
        check(b"\xce\x00\x01\x00\x00", Some(json!(65536)));
        check(b"\xff", Some(json!(-1)));
        check(b"\xa2hi", Some(json!("hi")));
        check(b"\xd9\x02hi", Some(json!("hi")));
        check(b"\x92\xc0\xc3", Some(json!([null, true])));
        check(b"\xdc\x00\x01\xc2", Some(json!([false])));
        check(b"\x81\xa1a\x90", Some(json!({"a": []})));
        check(b"\xde\x00\x01\xa1a\x05", Some(json!({"a": 5})));
    }

    #[test]
    fn damage_is_no_value() {
        check(b"", None);
        check(b"\xa2h", None);
        check(b"\xdd\xff\xff\xff\xff\x01", None);
        check(b"\x81\x05\x05", None);
        check(b"\xc1", None);
        check(&[0x91; 100_000], None);
    }

    /// An ELF file with one section, of notes.
    fn elf(owner: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let word = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
        let mut notes = [word(owner.len()), word(content.len()), kind.to_le_bytes()].concat();
        notes.extend(owner);
        notes.resize(notes.len().next_multiple_of(4), 0);
        notes.extend(content);
        notes.resize(notes.len().next_multiple_of(4), 0);
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        file[0x28..0x30].copy_from_slice(&64u64.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&1u16.to_le_bytes());
        file.resize(128, 0);
        file[64 + 4] = 7;
        file[64 + 24..64 + 32].copy_from_slice(&128u64.to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        file.extend(notes);
        file
    }

    #[test]
    fn the_note_of_the_owner_is_found() {
        let file = elf(b"AMDGPU\0", 32, b"\x80abc");
        assert_eq!(note(&file), Some(b"\x80abc".as_slice()));
        assert_eq!(note(&elf(b"GNU\0", 32, b"x")), None);
        assert_eq!(note(&elf(b"AMDGPU\0", 3, b"x")), None);
        for length in 0..file.len() {
            assert_eq!(note(&file[..length]), None, "cut at {length}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        for (content, says) in [
            (b"\x80".as_slice(), "names no kernels"),
            (b"\x81\xaeamdhsa.kernels\x90", "no kernel 'k'"),
            (b"\x81\xaeamdhsa.kernels\x91\x81\xa5.name\xa1k", "no number '.vgpr_count'"),
            (b"\x81", "cut or damaged"),
        ] {
            let error = format!("{:#}", taken(&elf(b"AMDGPU\0", 32, content), "k").unwrap_err());
            assert!(error.contains(says), "{error}");
        }
        assert!(taken(b"no ELF", "k").is_err());
    }
}
