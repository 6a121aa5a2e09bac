//! Headers that claim what no file holds and no memory could: refused by arithmetic, before anything is allocated.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use portolan_testkit::fixture::{Gguf, safetensors_with_header};
use portolan_weights::{Checkpoint, WeightError};

use crate::support::{folder, open_error};

#[track_caller]
fn says(error: &WeightError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "'{text}' does not say '{part}'");
    }
}

#[track_caller]
fn safetensors(bytes: &[u8], parts: &[&str]) {
    says(&open_error("model.safetensors", bytes), parts);
}

#[track_caller]
fn gguf(file: &Gguf, parts: &[&str]) {
    says(&open_error("model.gguf", &file.bytes()), parts);
}

/// A file with these first bytes, and zeros that take no place on the disk after them.
fn sparse(path: &Path, head: &[u8], size: u64) -> File {
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    file.write_all_at(head, 0).unwrap();
    file.set_len(size).unwrap();
    file
}

#[test]
fn safetensors_lengths() {
    #[track_caller]
    fn check(length: u64, parts: &[&str]) {
        safetensors(&[&length.to_le_bytes(), br#"{"a":{}}"#.as_slice()].concat(), parts);
    }
    check(1 << 63, &["length field says 9223372036854775808 bytes", "at most 100000000"]);
    check(u64::MAX, &["18446744073709551615", "damaged"]);
    check(100_000_001, &["100000001", "at most 100000000"]);
    check(100_000_000, &["the header ends at byte 100000008", "the file has 16 bytes", "ownload it again"]);
    check(9, &["the header ends at byte 17", "the file has 16 bytes"]);
    check(7, &["bad header", "EOF"]);
    // As long as it says, in a file of zeros.
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    sparse(&path, &90_000_000u64.to_le_bytes(), 1 << 40);
    says(&Checkpoint::open(&path).unwrap_err(), &["byte 0x00 in place of '{'"]);
}

#[test]
fn safetensors_shapes_and_offsets() {
    #[track_caller]
    fn check(dtype: &str, shape: &str, offsets: &str, parts: &[&str]) {
        let header = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        safetensors(&safetensors_with_header(&header, &[0; 8]), parts);
    }
    let huge = "1099511627776";
    check("U8", &format!("[{huge}]"), &format!("[0,{huge}]"), &["tensor 'w'", "the file has", "1099511627"]);
    check("U8", &format!("[{huge},{huge}]"), "[0,8]", &["tensor 'w'", "more bytes than can be counted"]);
    check("F64", "[281474976710656]", "[0,8]", &["takes 2251799813685248 bytes, but 8 bytes"]);
    check("U8", "[281474976710657]", "[0,8]", &["more bytes than can be counted"]);
    check("U8", "[18446744073709551615,2]", "[0,8]", &["more bytes than can be counted"]);
    // The product wraps to 8.
    check("U8", "[4294967296,4294967296,8]", "[0,8]", &["more bytes than can be counted"]);
    check("U8", "[18446744073709551616]", "[0,8]", &["tensor 'w'"]);
    check("U8", "[0]", "[0,8]", &["takes 0 bytes, but 8 bytes"]);
    check("U8", "[0]", "[0,0]", &["8 bytes follow the last tensor"]);
    check("U8", "[8]", "[0,18446744073709551615]", &["takes 8 bytes, but 18446744073709551615 bytes"]);
    check("U8", "[8]", "[18446744073709551607,18446744073709551615]", &["leave a gap"]);
    check("U8", "[8]", "[8,0]", &["8..0", "run backwards"]);
    check("U8", "[8]", "[0,8.5]", &["tensor 'w'"]);
    check("U8", "[8]", "[0]", &["tensor 'w'"]);
    check("U8", "[8]", "[0,8,9]", &["tensor 'w'"]);
    check("U8", "null", "[0,8]", &["tensor 'w'"]);
    check("F4", "[16]", "[0,8]", &["tensor 'w' has type F4", "supported: F64"]);
    check("C64", "[1]", "[0,8]", &["tensor 'w' has type C64"]);
    check("", "[1]", "[0,8]", &["tensor 'w' has type"]);
}

#[test]
fn safetensors_json() {
    #[track_caller]
    fn check(header: &str, parts: &[&str]) {
        safetensors(&safetensors_with_header(header, &[]), parts);
    }
    check("[]", &["begins with byte 0x5b"]);
    check("{} {}", &["trailing"]);
    check(r#"{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, &["'w'", "duplicate"]);
    check(r#"{"__metadata__":[]}"#, &["__metadata__"]);
    check(r#"{"__metadata__":{},"__metadata__":{}}"#, &["'__metadata__' stands twice"]);
    // Deep enough for a parser that calls itself to run out of stack.
    let deep = |n| format!(r#"{{"w":{}{}}}"#, "[".repeat(n), "]".repeat(n));
    check(&deep(10_000), &["tensor 'w'"]);
    check(&deep(1_000_000), &["'w'", "2000000 bytes, at most 65536"]);
    // What is parsed to a tree takes many times its text.
    let wide =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,0]}}}}"#, "1,".repeat(1 << 20));
    check(&wide, &["'w'", "at most 65536"]);
    let many = format!("{{{}\"x\":{{}}}}", "\"\":0,".repeat(1 << 20));
    check(&many, &["more than 1048576 entries"]);
    safetensors(&[&5u64.to_le_bytes(), b"{\"\xff\":".as_slice()].concat(), &["bad header"]);
}

#[test]
fn gguf_counts_and_lengths() {
    let counts = |tensors: u64, entries: u64| {
        [b"GGUF\x03\0\0\0".as_slice(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
    };
    #[track_caller]
    fn check(bytes: &[u8], parts: &[&str]) {
        says(&open_error("model.gguf", bytes), parts);
    }
    check(&counts(1 << 60, 0), &["claims 1152921504606846976 tensors"]);
    check(&counts(0, 1 << 60), &["1152921504606846976 entries"]);
    check(&counts(u64::MAX, u64::MAX), &["bad header"]);
    check(&counts(1, 0), &["truncated", "the file has 24 bytes"]);
    check(&counts(0, 1 << 20), &["truncated"]);
    check(b"FUGG\x03\0\0\0", &["neither safetensors nor GGUF"]);
    check(b"GGUF\0\0\0\0", &["version 0"]);
    gguf(&Gguf::new().list("x", 9, 1 << 60, &[]), &["truncated"]);
    gguf(&Gguf::new().list("x", 13, 1, &[0; 8]), &["unknown type 13"]);
    gguf(&Gguf::new().list("x", 10, 1, &u64::MAX.to_le_bytes()), &["beyond i64"]);
    for alignment in [0u64, 3, 48, 1 << 40, u64::MAX] {
        let file = Gguf::new().entry("general.alignment", 10, &alignment.to_le_bytes());
        gguf(&file, &["general.alignment", "power of two", &alignment.to_string()]);
    }
    gguf(&Gguf::new().str("general.alignment", "32"), &["general.alignment", "'32'"]);
    gguf(&Gguf::new().f32("general.alignment", 32.0), &["general.alignment"]);
}

#[test]
fn gguf_shapes() {
    #[track_caller]
    fn check(kind: u32, shape: &[usize], parts: &[&str]) {
        gguf(&Gguf::new().tensor("blk.0.w", kind, shape, &[0; 32]), parts);
    }
    check(0, &[1 << 40], &["'blk.0.w'", "the file has", "4398046511"]);
    check(0, &[1 << 40, 1 << 40], &["more bytes than can be counted"]);
    check(0, &[usize::MAX, 2], &["more bytes than can be counted"]);
    // The product wraps to 8.
    check(0, &[1 << 32, 1 << 32, 8], &["more bytes than can be counted"]);
    check(0, &[0, usize::MAX], &["more bytes than can be counted"]);
    check(8, &[usize::MAX, 32], &["more bytes than can be counted"]);
    check(12, &[1 << 40, 256], &["'blk.0.w'"]);
    check(12, &[1, 255], &["no whole blocks of Q4_K"]);
    check(0, &[1; 300], &["300 dimensions"]);
}

/// Lengths that the file does hold, since it is large: a header is never as large as that.
#[test]
fn gguf_headers_as_large_as_the_file() {
    #[track_caller]
    fn check(file: &Gguf, parts: &[&str]) {
        let dir = folder();
        let path = dir.path().join("m.gguf");
        let mut bytes = file.bytes();
        bytes.truncate(24 + 8 + 1 + 4 + 4 + 8);
        sparse(&path, &bytes, 1 << 40);
        says(&Checkpoint::open(&path).unwrap_err(), parts);
    }
    check(
        &Gguf::new().list("x", 0, 1 << 39, &[0; 9]),
        &["m.gguf", "bad header", "at most 268435456 are read"],
    );
    check(&Gguf::new().list("x", 8, 1 << 30, &[0; 9]), &["m.gguf", "at most 268435456 are read"]);
    check(
        &Gguf::new().list("x", 8, (1 << 24) + 1, &[0; 9]),
        &["16777217 elements or more", "at most 16777216"],
    );
    check(&Gguf::new().list("x", 0, (1 << 24) + 1, &[0; 9]), &["16777217 elements or more"]);
    let long = [(1u64 << 39).to_le_bytes().as_slice(), &[0; 9]].concat();
    check(&Gguf::new().entry("x", 8, &long), &["at most 268435456 are read"]);
}

/// A list in parts, each of which would be believed.
#[test]
fn gguf_lists_are_counted_together() {
    let part = vec![0; 6 << 20];
    let mut file = Gguf::new();
    for i in 0..3 {
        file = file.list(&format!("part {i}"), 0, part.len(), &part);
    }
    gguf(&file, &["elements or more, and at most 16777216 are read"]);
}

#[test]
fn every_other_file_is_told_in_words() {
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 988097824\n",
        "4d".repeat(32)
    );
    for name in ["model.safetensors", "model.gguf"] {
        let check = |bytes: &[u8], parts: &[&str]| says(&open_error(name, bytes), parts);
        check(pointer.as_bytes(), &["git-lfs pointer", "git lfs pull"]);
        check(b"<!DOCTYPE html>", &["web page", "download it again"]);
        check(b"\xef\xbb\xbf\r\n<!doctype HTML>", &["web page"]);
        check(b"<!-- login --><html>", &["web page"]);
        check(b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", &["web page"]);
        check(b"", &["empty", "download it again"]);
        check(b"PK\x03\x04\0\0\0\0data.pkl", &["convert it"]);
    }
}

/// Found by fuzzing: each of the rows was visited.
#[test]
fn fuzz_2026_11_30_rows_of_nothing_are_not_counted_one_by_one() {
    let dir = crate::support::folder();
    let path = dir.path().join("rows.gguf");
    let file = portolan_testkit::fixture::Gguf::new()
        .str("general.architecture", "llama")
        .tensor("z", 0, &[1 << 40, 0], &[])
        .bytes();
    std::fs::write(&path, file).unwrap();
    match Checkpoint::open(&path) {
        Ok(checkpoint) => assert_eq!(checkpoint.read_f32("z").unwrap(), [] as [f32; 0]),
        Err(error) => assert!(error.to_string().contains("rows.gguf"), "{error}"),
    }
}
