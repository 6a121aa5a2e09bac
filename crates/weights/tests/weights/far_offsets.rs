//! Tensors beyond 2 and 4 GiB. The files are sparse: they take some KiB on the disk.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use portolan_testkit::fixture::{Gguf, safetensors_with_header};
use portolan_weights::{Checkpoint, Expr, WeightError, plan_load};
use serde_json::json;

use crate::support::{assert_same, folder, load_expr, request, values};

const GIB: u64 = 1 << 30;

/// Writes the header, and these numbers so far behind it.
fn write(path: &Path, header: &[u8], at: &[(u64, &[f32])], data: u64) {
    let file = File::create(path).unwrap();
    file.write_all_at(header, 0).unwrap();
    for (offset, values) in at {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        file.write_all_at(&bytes, header.len() as u64 + offset).unwrap();
    }
    file.set_len(header.len() as u64 + data).unwrap();
}

fn rows(name: &str, start: usize, len: usize) -> Expr {
    Expr::Rows { of: Box::new(Expr::source(name)), start, len }
}

/// `w` has rows of 1 KiB, 5 GiB in all, and `end` follows.
fn check(path: &Path) {
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_same(&values(&checkpoint, "end"), &[7.0, 8.0], "end");
    for (row, first) in [((2 * GIB / 1024) - 1, 0.0), (2 * GIB / 1024, 2.0), (4 * GIB / 1024, 4.0)] {
        let loaded = load_expr(&checkpoint, rows("w", row as usize, 1)).unwrap().decode();
        assert_eq!((loaded.len(), loaded[0]), (256, first), "row {row}");
    }
    // Rows on both sides of 4 GiB, in one read.
    let across = load_expr(&checkpoint, rows("w", (4 * GIB / 1024) as usize - 1, 2)).unwrap().decode();
    assert_eq!((across[0], across[256]), (0.0, 4.0));
    // The whole is told by arithmetic.
    let plan = plan_load(&checkpoint, vec![request("w", Expr::source("w"))]).unwrap();
    assert_eq!(plan.device_bytes, 5 * GIB);
    assert_eq!(checkpoint.file_bytes(), std::fs::metadata(path).unwrap().len());
    // A byte less is a byte too few, and the numbers are whole.
    let size = checkpoint.file_bytes();
    File::options().write(true).open(path).unwrap().set_len(size - 1).unwrap();
    let error = Checkpoint::open(path).unwrap_err();
    let WeightError::Truncated { expected, size: found, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*expected, *found), (size, size - 1));
    assert!(error.to_string().contains("'end'"), "{error}");
}

const MARKS: [(u64, &[f32]); 3] = [(2 * GIB, &[2.0]), (4 * GIB, &[4.0]), (5 * GIB, &[7.0, 8.0])];

#[test]
fn safetensors() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    let header = json!({
        "w": {"dtype": "F32", "shape": [5 * GIB / 1024, 256], "data_offsets": [0, 5 * GIB]},
        "end": {"dtype": "F32", "shape": [2], "data_offsets": [5 * GIB, 5 * GIB + 8]},
    });
    write(&path, &safetensors_with_header(&header.to_string(), &[]), &MARKS, 5 * GIB + 8);
    check(&path);
}

#[test]
fn gguf() {
    let dir = folder();
    let path = dir.path().join("m.gguf");
    let rows = (5 * GIB / 1024) as usize;
    let mut header = Gguf::new().tensor("w", 0, &[rows, 256], &[]).tensor("end", 0, &[2], &[]).bytes();
    // The offset of `end`, the last number of the table, is that of the data not written.
    let offset = 24 + (8 + 1 + 4 + 16 + 4 + 8) + (8 + 3 + 4 + 8 + 4);
    header[offset..offset + 8].copy_from_slice(&(5 * GIB).to_le_bytes());
    write(&path, &header, &MARKS, 5 * GIB + 8);
    check(&path);
}

/// A tensor of 8 TiB beside a small one: the plan is arithmetic, and the small one is had for what it takes.
#[test]
fn what_is_never_loaded_costs_nothing() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    let large = 1u64 << 43;
    let header = json!({
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "w": {"dtype": "U8", "shape": [large], "data_offsets": [8, 8 + large]},
    });
    write(&path, &safetensors_with_header(&header.to_string(), &[]), &[(0, &[1.0, 2.0])], large + 8);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_same(&values(&checkpoint, "a"), &[1.0, 2.0], "a");
    let error = checkpoint.read_f32("w").unwrap_err().to_string();
    assert!(error.contains("'w'") && error.contains("8796093022208 elements"), "{error}");
    let plan = plan_load(&checkpoint, vec![request("w", Expr::source("w"))]).unwrap();
    assert_eq!(plan.device_bytes, large);
}
