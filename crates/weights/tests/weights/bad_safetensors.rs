//! Every way in which a safetensors file can be broken has its own error, with the file and the numbers.

use portolan_testkit::fixture::{Safetensors, safetensors_with_header};
use portolan_weights::{NotWeights, WeightError};

use crate::support::open_error;

/// A file of two tensors: 24 bytes of data after a header of 8 + `header` bytes.
fn good() -> Safetensors {
    Safetensors::new().f32("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).f32("b", &[2], &[5.0, 6.0])
}

fn open(bytes: &[u8]) -> WeightError {
    open_error("model.safetensors", bytes)
}

#[track_caller]
fn check(bytes: &[u8], expected: &str, right: impl Fn(&WeightError) -> bool) {
    let error = open(bytes);
    assert!(right(&error), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(expected), "'{text}' does not say '{expected}'");
}

#[test]
fn not_a_checkpoint_at_all() {
    #[track_caller]
    fn is(bytes: &[u8], what: NotWeights) {
        let error = open(bytes);
        assert!(matches!(error, WeightError::NotACheckpoint { what: w, .. } if w == what), "{error:?}");
    }
    is(b"", NotWeights::Empty);
    is(b"<!DOCTYPE html><html><body>404</body></html>", NotWeights::Html);
    is(b"\n <html lang=\"en\">", NotWeights::Html);
    is(b"PK\x03\x04\x00\x00\x00\x00data/pickle", NotWeights::OtherFormat);
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 988097824\n",
        "4d".repeat(32)
    );
    is(pointer.as_bytes(), NotWeights::LfsPointer);
    assert!(open(pointer.as_bytes()).to_string().contains("git lfs pull"));
}

/// InvokeAI #7009 and airllm #137 are the same.
#[test]
fn qwen_462_header_errors_name_the_file() {
    let bytes = good().bytes();
    let header_end = bytes.len() as u64 - 24;
    // Cut anywhere: the error gives the size that there should be and the size that there is.
    for cut in 1..bytes.len() {
        let error = open(&bytes[..cut]);
        let WeightError::Truncated { expected, size, .. } = error else { panic!("cut at {cut}: {error:?}") };
        assert_eq!(size, cut as u64);
        let whole = match cut as u64 {
            0..8 => 8,
            n if n < header_end => header_end,
            _ => bytes.len() as u64,
        };
        assert_eq!(expected, whole, "cut at {cut}");
        assert!(error.to_string().contains("Download it again"), "{error}");
    }
    let mut long = bytes.clone();
    long[7] = 0x7f;
    check(&long, "length field says 9151", |e| matches!(e, WeightError::HeaderLength { .. }));
    check(&[0; 16], "length field says 0", |e| matches!(e, WeightError::HeaderLength { .. }));
}

#[test]
fn comfyui_15602_trailing_bytes() {
    let mut bytes = good().bytes();
    let whole = bytes.len() as u64;
    bytes.extend([0; 7]);
    check(
        &bytes,
        "7 bytes follow the last tensor",
        |e| matches!(e, WeightError::TrailingBytes { expected, size, .. } if (*expected, *size) == (whole, whole + 7)),
    );
}

#[test]
fn headers_that_lie() {
    let with = |header: &str, data: usize| safetensors_with_header(header, &vec![0; data]);
    let entry = |dtype: &str, shape: &str, begin: i64, end: i64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let one = |dtype, shape, begin, end| format!(r#"{{"a":{}}}"#, entry(dtype, shape, begin, end));
    let header = |e: &WeightError| matches!(e, WeightError::Header { .. });
    check(&with("not json", 0), "begins with byte 0x6e", header);
    check(&with(r#"{"a":"#, 0), "line 1", header);
    check(&with(r#"{"a":7}"#, 0), "'a'", header);
    check(&with("{\"a\u{0}\":7}", 0), "control character", header);
    check(&with(&one("F32", "[-1]", 0, 4), 4), "'a'", header);
    check(&with(&one("F32", "[1]", -4, 0), 4), "'a'", header);
    check(&with(r#"{"__metadata__":{"a":1}}"#, 0), "__metadata__", header);
    check(
        &with(&one("F7", "[4]", 0, 4), 4),
        "type F7",
        |e| matches!(e, WeightError::UnsupportedType { tensor, dtype, .. } if tensor == "a" && dtype == "F7"),
    );
    check(&with(&one("F8_E4M3FNUZ", "[4]", 0, 4), 4), "F8_E4M3FNUZ", |e| {
        matches!(e, WeightError::UnsupportedType { .. })
    });
    let twice = format!(r#"{{"a":{0},"a":{0}}}"#, entry("F32", "[1]", 0, 4));
    check(&with(&twice, 4), "'a' stands twice", |e| matches!(e, WeightError::DuplicateTensor { .. }));
    let size = |e: &WeightError| matches!(e, WeightError::TensorSize { .. });
    check(&with(&one("F32", "[3]", 0, 8), 8), "takes 12 bytes, but 8 bytes", size);
    check(&with(&one("F32", "[4294967296,4294967296]", 0, 8), 8), "more bytes than can be counted", size);
    check(&with(&one("F32", "[0,4294967296,4294967296,4294967296]", 0, 0), 0), "than can be counted", size);
    let offsets = |e: &WeightError| matches!(e, WeightError::Offsets { .. });
    check(&with(&one("F32", "[1]", 8, 4), 8), "run backwards", offsets);
    check(&with(&one("F32", "[1]", 4, 8), 8), "leave a gap", offsets);
    let two = |begin, end| {
        format!(r#"{{"a":{},"b":{}}}"#, entry("F32", "[2]", 0, 8), entry("F32", "[1]", begin, end))
    };
    check(&with(&two(4, 8), 8), "overlap the tensor before, that ends at 8", offsets);
    check(&with(&two(12, 16), 16), "leave a gap: the tensor before ends at 8", offsets);
    check(&with(&two(8, 12), 8), "from tensor 'b' on", |e| matches!(e, WeightError::Truncated { .. }));
}

/// The length of a header of 640 bytes is spelled `80 02`, as a pickle begins; so are all that end in these two bytes.
#[test]
fn a_header_of_640_bytes_is_no_pickle() {
    let mut header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#.to_owned();
    header += &" ".repeat(640 - header.len());
    let folder = crate::support::folder();
    let path = folder.path().join("model.safetensors");
    let bytes = safetensors_with_header(&header, &[7]);
    assert!(bytes.starts_with(b"\x80\x02"));
    std::fs::write(&path, bytes).unwrap();
    let found = portolan_weights::safetensors::read_header(&path).unwrap();
    assert_eq!(found.tensors[0].name, "a");
    check(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8", "neither safetensors nor GGUF", |e| {
        matches!(e, WeightError::NotACheckpoint { what: NotWeights::OtherFormat, .. })
    });
}
