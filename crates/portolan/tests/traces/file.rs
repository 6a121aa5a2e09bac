//! A trace's file, whole and damaged.

use std::path::Path;

use portolan::{Error, sample::log_sum_exp, tools::trace::Trace};
use portolan_testkit::fixture;

use super::{NEXT, header, record, row};

#[test]
fn a_file_gives_the_trace_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    for full in [false, true] {
        let rows: Vec<Vec<f32>> = (0..5).map(|i| row(i as f32)).collect();
        let written = record(header(5), &rows, full);
        written.save(&path).unwrap();
        let read = Trace::open(&path).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.logits(4), full.then_some(&rows[4][..]));
        assert_eq!((read.next(4), read.next(5), read.logits(5)), (Some(NEXT as u32), None, None));
        assert_eq!(read.top(3).take(3).collect::<Vec<_>>(), [(0, 3.0), (1, 0.0), (3, 0.0)]);
        assert!((read.nll(3).unwrap() - f64::from(log_sum_exp(&rows[3]) + 6.0)).abs() < 1e-5);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "it leaves nothing else behind");
}

/// The error of a file with these bytes: it names the file and says `part`.
#[track_caller]
fn check_damaged(bytes: &[u8], part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    std::fs::write(&path, bytes).unwrap();
    let error = Trace::open(&path).expect_err(part);
    let text = error.to_string();
    assert!(matches!(error, Error::BadTrace { .. }) && text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains(part), "'{text}' does not say '{part}'");
}

/// A trace's file with one tensor replaced: its type, its shape and its bytes.
fn with_tensor(path: &Path, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let json = serde_json::to_string(Trace::open(path).unwrap().header()).unwrap();
    let tensors = portolan_testkit::Tensors::open(path);
    let mut file = fixture::Safetensors::new().metadata("portolan_trace", &json);
    for other in tensors.names().iter().filter(|other| *other != name) {
        file = file.tensor(other, &tensors.dtype(other), &tensors.shape(other), &tensors.bytes(other));
    }
    if !dtype.is_empty() { file.tensor(name, dtype, shape, bytes).bytes() } else { file.bytes() }
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("good.trace");
    record(header(2), &vec![row(2.0); 2], true).save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    for len in (0..good.len()).step_by(97) {
        check_damaged(&good[..len], "");
    }
    let replaced = |from: &str, to: &str| {
        let at = good.windows(from.len()).position(|w| w == from.as_bytes()).expect("it is in the header");
        let mut bytes = good.clone();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    check_damaged(&replaced("portolan_trace", "another_format"), "no portolan_trace");
    check_damaged(&replaced(r#"format\":1"#, r#"format\":2"#), "the format is 2");
    check_damaged(&replaced(r#"format\":1"#, r#"formed\":1"#), "format");
    check_damaged(&replaced(r#"positions\":2"#, r#"positions\":0"#), "0 positions");
    check_damaged(&replaced(r#"positions\":2"#, r#"positions\":3"#), "expected");
    check_damaged(&replaced(r#"vocab\":64"#, r#"vocab\":63"#), "logits is F32 [2, 64], expected F32 [2, 63]");
    check_damaged(&replaced(r#"top\":16"#, r#"top\":99"#), "99 likeliest of 64");
    check_damaged(&fixture::Safetensors::new().bytes(), "no portolan_trace");

    let floats =
        |n: usize, value: f32| vec![value; n].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let doubles = |value: f64| [value; 2].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let ids = |n: u32, f: fn(u32) -> u32| (0..n).flat_map(|i| f(i).to_le_bytes()).collect::<Vec<u8>>();
    let check = |name, dtype, shape: &[usize], bytes: &[u8], part| {
        check_damaged(&with_tensor(&path, name, dtype, shape, bytes), part);
    };
    for name in ["tokens", "top_ids", "top_logits", "log_sum_exp", "next_logit", "next_nll"] {
        check(name, "", &[], &[], name);
        check(name, "U8", &[2], &[0, 0], name);
    }
    check("top_logits", "F32", &[2, 16], &floats(32, f32::NAN), "NaN");
    check("next_logit", "F32", &[2], &floats(2, f32::INFINITY), "+inf");
    check("logits", "F32", &[2, 64], &floats(128, f32::NAN), "NaN");
    check("log_sum_exp", "F64", &[2], &doubles(f64::NAN), "log_sum_exp is NaN");
    check("log_sum_exp", "F64", &[2], &doubles(1.0), "log_sum_exp is 1");
    check("log_sum_exp", "F64", &[2], &doubles(9.0), "log_sum_exp is 9");
    check("next_nll", "F64", &[2], &doubles(1.0), "next_nll is 1");
    check("tokens", "I32", &[3], &ids(3, |i| i), "sha256");
    check("tokens", "I32", &[3], &ids(3, |i| i + 64), "token id 64");
    check("top_ids", "I32", &[2, 16], &ids(32, |i| i + 40), "token id 64");
    check("top_ids", "I32", &[2, 16], &ids(32, |i| i / 2), "twice");
    let rising: Vec<u8> = (0..32).flat_map(|i| (1.0 + i as f32 / 64.0).to_le_bytes()).collect();
    check("top_logits", "F32", &[2, 16], &rising, "out of order");

    for (path, part) in
        [(folder.path().to_owned(), "not a file"), (folder.path().join("none"), "No such file")]
    {
        let error = Trace::open(&path).unwrap_err();
        assert!(matches!(&error, Error::Read { .. }) && error.to_string().contains(part), "{error}");
    }
}
