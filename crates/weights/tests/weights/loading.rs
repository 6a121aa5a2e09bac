//! The load itself: places, twins, repacking, statistics, files that change.

use std::sync::Arc;

use portolan_device::DType;
use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{Checkpoint, Encoding, Expr, Layout, LoadRequest, Repack, WeightError, plan_load};

use crate::support::{ReverseGroups, folder, load_requests, request};

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn tied_weights_share_one_buffer() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    Safetensors::new().f32("embed", &[8, 64], &numbers(512)).f32("unused", &[16], &numbers(16)).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let requests = vec![request("embed", Expr::source("embed")), request("lm_head", Expr::source("embed"))];
    let plan = plan_load(&checkpoint, requests.clone()).unwrap();
    assert_eq!(plan.device_bytes, 2048);
    assert_eq!((plan.unused.as_slice(), plan.unused_bytes), (&["unused".to_owned()][..], 64));
    assert_eq!(plan.tensors[1].same_as, Some(0));
    let (loaded, stats) = load_requests(&checkpoint, requests, 2).unwrap();
    assert_eq!(loaded[0].decode(), numbers(512));
    assert_eq!(loaded[1].planes, loaded[0].planes);
    assert_eq!((stats.bytes, stats.read_bytes, stats.reads), (2048, 2048, 1));
    assert_eq!((stats.direct_tensors, stats.unused_tensors, stats.unused_bytes), (1, 1, 64));
}

#[test]
fn large_tensors_are_cut_and_small_ones_packed() {
    // 40 MiB in one tensor (several tasks), and many small ones, with one reader and with four.
    let rows = 10 * 1024;
    let large: Vec<f32> = (0..rows * 1024).map(|i| (i % 4093) as f32).collect();
    let mut file = Safetensors::new().f32("large", &[rows, 1024], &large);
    let mut requests = vec![request("large", Expr::source("large"))];
    for i in 0..50 {
        let name = format!("small.{i}");
        file = file.f32(&name, &[i + 1], &numbers(i + 1));
        requests.push(request(&name, Expr::source(&name)));
    }
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    file.write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for readers in [1, 4] {
        let (loaded, stats) = load_requests(&checkpoint, requests.clone(), readers).unwrap();
        assert!(loaded[0].decode() == large);
        for i in 0..50 {
            assert_eq!(loaded[i + 1].decode(), numbers(i + 1));
        }
        assert_eq!((stats.direct_tensors, stats.pageable_tensors, stats.copies), (51, 0, 0));
        assert!(stats.reads >= 53, "the large tensor took {} reads", stats.reads - 50);
    }
}

#[test]
fn blocks_larger_than_the_scratch() {
    // 12 MiB of Q4_0 blocks: several pieces and several tasks.
    let (rows, k) = (6000, 4096);
    let blocks: Vec<u8> = (0..rows * k / 32)
        .flat_map(|i| {
            let mut block = [(i % 251) as u8; 18];
            block[..2].copy_from_slice(&half::f16::from_f32((i % 7) as f32).to_le_bytes());
            block
        })
        .collect();
    let dir = folder();
    let path = dir.path().join("m.gguf");
    Gguf::new().tensor("w", 2, &[rows, k], &blocks).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let (loaded, stats) = load_requests(&checkpoint, vec![request("w", Expr::source("w"))], 3).unwrap();
    assert_eq!(loaded[0].weight.encoding, Encoding::Affine { bits: 4, group: 32, meta: DType::F16 });
    assert_eq!((stats.pageable_tensors, stats.read_bytes), (1, blocks.len() as u64));
    let decoded = loaded[0].decode();
    for (i, values) in decoded.chunks(32).enumerate() {
        let (d, byte) = ((i % 7) as f32, i % 251);
        let (low, high) = (d * ((byte & 15) as f32 - 8.0), d * ((byte >> 4) as f32 - 8.0));
        assert!(
            values[..16].iter().all(|&v| v == low) && values[16..].iter().all(|&v| v == high),
            "block {i}"
        );
    }
}

#[test]
fn repacking_sees_every_row_once() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    // 20 MiB: cut into two tasks where the layout allows it.
    let (rows, k) = (5001, 1024);
    let values: Vec<f32> = (0..rows * k).map(|i| (i % 65521) as f32).collect();
    Safetensors::new().f32("w", &[rows, k], &values).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for by_blocks in [false, true] {
        let repack = Some(Arc::new(ReverseGroups { multiple: 8, by_blocks }) as Arc<dyn Repack>);
        let repacked = LoadRequest { repack, ..request("w", Expr::source("w")) };
        let plan = plan_load(&checkpoint, vec![repacked.clone()]).unwrap();
        assert_eq!(plan.device_bytes, 5008 * 4096);
        let plain = request("plain", Expr::source("w"));
        let (loaded, stats) = load_requests(&checkpoint, vec![repacked, plain], 2).unwrap();
        assert_eq!(loaded[0].weight.layout, Layout::Packed("reversed"));
        assert_eq!(loaded[1].weight.layout, Layout::Planes);
        assert_eq!((stats.direct_tensors, stats.pageable_tensors), (1, 1));
        let packed = &loaded[0].planes[0];
        for row in 0..rows {
            let at = (row / 8 * 8 + 7 - row % 8) * k * 4;
            let first = f32::from_le_bytes(packed[at..at + 4].try_into().unwrap());
            assert_eq!(first, values[row * k], "row {row}");
        }
        assert!(loaded[1].decode() == values);
    }
}

#[test]
fn a_file_cut_after_its_header_was_read() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    let file = Safetensors::new().f32("w", &[100], &numbers(100));
    file.write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let bytes = file.bytes();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let requests = vec![request("w", Expr::source("w"))];
    let Err(error) = load_requests(&checkpoint, requests.clone(), 1) else { panic!("the file was cut") };
    let WeightError::ShortRead { path: named, offset, want, got } = &error else { panic!("{error:?}") };
    assert_eq!((named, *offset, *want, *got), (&path, bytes.len() as u64 - 400, 400, 390));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load_requests(&checkpoint, requests, 1), Err(WeightError::NotFound { .. })));
}

#[test]
fn empty_plans_and_empty_tensors() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    Safetensors::new().f32("none", &[0, 4], &[]).f32("scalar", &[], &[2.5]).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(load_requests(&checkpoint, vec![], 4).unwrap().0.is_empty());
    let requests =
        vec![request("none", Expr::source("none")), request("scalar", Expr::source("scalar").f32())];
    let (loaded, _) = load_requests(&checkpoint, requests, 4).unwrap();
    assert!(loaded[0].decode().is_empty());
    assert_eq!((loaded[1].weight.shape.as_slice(), loaded[1].decode()), (&[][..], vec![2.5]));
}

#[test]
fn a_tensor_read_on_its_own() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    Safetensors::new().f32("matrix", &[2, 3], &numbers(6)).f32("vector", &[5], &numbers(5)).write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.read_f32("matrix").unwrap(), numbers(6));
    assert_eq!(checkpoint.read_f32("vector").unwrap(), numbers(5));
    assert!(matches!(checkpoint.read_f32("none"), Err(WeightError::MissingTensors { .. })));
}
