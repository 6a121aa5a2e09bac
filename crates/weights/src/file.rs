//! A file read at positions, never mapped and never read whole.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{NotWeights, Result, WeightError};

/// Linux moves at most 2^31 - 4096 bytes in one `pread`; other systems fail outright above 2^31.
const LARGEST_READ: usize = 1 << 30;

/// Something that can be read at a position. A test puts a faulty one in place of a file.
pub(crate) trait PositionedRead: Sync {
    /// Reads at most `buf.len()` bytes from `offset`; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl PositionedRead for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self, buf, offset)?)
    }
}

impl PositionedRead for [u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|o| self.get(o..)).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// Fills `buf` from `offset`, however many reads that takes, and says how many it took.
pub(crate) fn pread_exact(
    source: &(impl PositionedRead + ?Sized),
    path: &Path,
    buf: &mut [u8],
    offset: u64,
) -> Result<usize> {
    let (want, mut done, mut reads) = (buf.len(), 0, 0);
    while done < want {
        let end = want.min(done + LARGEST_READ);
        reads += 1;
        match source.read_at(&mut buf[done..end], offset + done as u64) {
            Ok(0) => {
                return Err(WeightError::ShortRead {
                    path: path.to_owned(),
                    offset,
                    want: want as u64,
                    got: done as u64,
                });
            }
            // A source that claims more than it was asked for must not move us past the end.
            Ok(n) => done += n.min(end - done),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(WeightError::Io { path: path.to_owned(), action: "read", source }),
        }
    }
    Ok(reads)
}

/// An open file and its size.
pub(crate) struct WeightFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) size: u64,
}

impl WeightFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |action| move |source| io_error(path, action, source);
        must_be_regular(path)?;
        let file = File::open(path).map_err(io("open"))?;
        let size = file.metadata().map_err(io("read the size of"))?.len();
        Ok(WeightFile { path: path.to_owned(), file, size })
    }

    /// The first bytes, at most `n`.
    pub(crate) fn head(&self, n: usize) -> Result<Vec<u8>> {
        let mut head = vec![0; n.min(usize::try_from(self.size).unwrap_or(n))];
        pread_exact(&self.file, &self.path, &mut head, 0)?;
        Ok(head)
    }
}

/// Refuses what is no regular file, without opening it: to open a pipe waits for whoever writes to it, and a device may
/// never end. Gives the size.
fn must_be_regular(path: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(path).map_err(|source| io_error(path, "open", source))?;
    if metadata.is_file() {
        return Ok(metadata.len());
    }
    let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    Err(io_error(path, "open", source))
}

/// [`WeightError::NotFound`] or [`WeightError::Io`].
pub(crate) fn io_error(path: &Path, action: &'static str, source: io::Error) -> WeightError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => WeightError::NotFound { path },
        _ => WeightError::Io { path, action, source },
    }
}

/// The mark that some editors put in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a file is that is plainly no checkpoint, by its first bytes (some 64 of them).
pub(crate) fn sniff(head: &[u8]) -> Option<NotWeights> {
    const PAGES: [&[u8]; 4] = [b"<!doctype", b"<html", b"<?xml", b"<!--"];
    let unmarked = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let text = unmarked.trim_ascii_start().to_ascii_lowercase();
    if head.is_empty() {
        Some(NotWeights::Empty)
    } else if head.starts_with(b"version https://git-lfs") {
        Some(NotWeights::LfsPointer)
    } else if PAGES.iter().any(|page| text.starts_with(page)) {
        Some(NotWeights::Html)
    } else {
        None
    }
}

/// Reads a text file (a config, an index) of at most `most` bytes whole, without the mark that some editors put in
/// front, and refuses what is plainly something else.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String> {
    let json = |reason: String| WeightError::Json { path: path.to_owned(), reason };
    let io = |source| io_error(path, "read", source);
    let size = must_be_regular(path)?;
    let too_long = |size| json(format!("it has {size} bytes, where a text of at most {most} was expected"));
    if size > most {
        return Err(too_long(size));
    }
    let mut bytes = Vec::new();
    // It may have grown since.
    File::open(path).map_err(io)?.take(most + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > most {
        return Err(too_long(bytes.len() as u64));
    }
    if let Some(what) = sniff(&bytes[..bytes.len().min(64)]) {
        return Err(WeightError::NotACheckpoint { path: path.to_owned(), what });
    }
    // Either begins with a mark, or with an ASCII character that has a zero beside it.
    if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..] = bytes.as_slice() {
        return Err(json("it is UTF-16, or another text of wide characters: save it as UTF-8".to_owned()));
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes)
        .map_err(|e| json(format!("not UTF-8: {e}. Save it as UTF-8, or download it again")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Hands out a few bytes at a time, and every second call is interrupted.
    struct Faulty<'a> {
        bytes: &'a [u8],
        most: usize,
        calls: AtomicUsize,
    }

    impl PositionedRead for Faulty<'_> {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            if self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = buf.len().min(self.most);
            self.bytes.read_at(&mut buf[..n], offset)
        }
    }

    fn read(bytes: &[u8], most: usize, want: usize, offset: u64) -> Result<Vec<u8>> {
        let source = Faulty { bytes, most, calls: AtomicUsize::new(0) };
        let mut buf = vec![0; want];
        pread_exact(&source, Path::new("model-00002-of-00003.safetensors"), &mut buf, offset)?;
        Ok(buf)
    }

    #[test]
    fn colibri_331_short_and_interrupted_reads_are_continued() {
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(read(&bytes, 7, 90, 5).unwrap(), bytes[5..95]);
        assert_eq!(read(&bytes, 1000, 100, 0).unwrap(), bytes);
        assert!(read(&bytes, 7, 0, 1000).unwrap().is_empty());
    }

    #[test]
    fn colibri_331_an_early_end_says_where_and_how_much() {
        let bytes = [0; 100];
        let error = read(&bytes, 7, 90, 20).unwrap_err();
        let WeightError::ShortRead { offset, want, got, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*offset, *want, *got), (20, 90, 80));
        let text = error.to_string();
        assert!(text.contains("model-00002-of-00003.safetensors") && !text.contains("Success"), "{text}");
        assert!(matches!(read(&bytes, 7, 1, u64::MAX - 8), Err(WeightError::ShortRead { got: 0, .. })));
    }

    /// Gives whatever is asked for, without touching the memory that it should go to, and notes what that was.
    #[derive(Default)]
    struct Asked(std::sync::Mutex<Vec<(u64, usize)>>);

    impl PositionedRead for Asked {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.lock().unwrap().push((offset, buf.len()));
            Ok(buf.len())
        }
    }

    /// WerWolv/libwolv #45 is the same: one call moves at most 0x7ffff000 bytes.
    #[test]
    fn zml_597_no_call_is_asked_for_more_than_it_can_move() {
        let source = Asked::default();
        // Never touched, so it takes no memory.
        let mut buf = vec![0; (3 << 30) + 3];
        let first = u64::from(u32::MAX) - 5;
        assert_eq!(pread_exact(&source, Path::new("large"), &mut buf, first).unwrap(), 4);
        let mut at = first;
        for (offset, len) in source.0.into_inner().unwrap() {
            assert_eq!(offset, at);
            assert!(len <= 0x7fff_f000, "{len} bytes in one call");
            at += len as u64;
        }
        assert_eq!(at, first + buf.len() as u64);
    }

    /// A disk that fails.
    struct Broken;

    impl PositionedRead for Broken {
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Err(rustix::io::Errno::IO.into())
        }
    }

    #[test]
    fn a_disk_that_fails_is_told_with_the_file() {
        let error = pread_exact(&Broken, Path::new("m.safetensors"), &mut [0; 8], 0).unwrap_err();
        assert!(matches!(error, WeightError::Io { action: "read", .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("m.safetensors") && text.contains("os error 5"), "{text}");
        // Nothing was wanted, so nothing failed.
        assert_eq!(pread_exact(&Broken, Path::new("m.safetensors"), &mut [], 0).unwrap(), 0);
    }

    #[test]
    fn colibri_331_offsets_beyond_2_gib() {
        use std::{io::Write, os::unix::fs::FileExt};
        // Sparse: it takes a few KiB on disk.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"start").unwrap();
        let far = 3 << 30;
        file.write_all_at(b"end", far).unwrap();
        let mut buf = [0; 3];
        pread_exact(&file, Path::new("sparse"), &mut buf, far).unwrap();
        assert_eq!(&buf, b"end");
    }
}
