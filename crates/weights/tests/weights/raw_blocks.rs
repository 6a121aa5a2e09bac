//! A layout that is made straight from GGUF blocks has the bytes that it has by way of planes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use portolan_testkit::fixture::Gguf;
use portolan_weights::{
    BlockRows, Checkpoint, Encoding, Expr, Layout, LoadRequest, Planes, Repack, WeightError,
    gguf::{BlockFormat, split_blocks},
};

use crate::support::{ReverseGroups, folder, load_requests, request};

const K: usize = 64;

/// [`ReverseGroups`], which takes rows of blocks too, and counts them.
#[derive(Debug)]
struct FromBlocks {
    groups: ReverseGroups,
    rows: AtomicUsize,
}

impl Repack for FromBlocks {
    fn layout(&self) -> Layout {
        self.groups.layout()
    }

    fn plane_bytes(&self, encoding: Encoding, rows: usize, k: usize) -> Vec<usize> {
        self.groups.plane_bytes(encoding, rows, k)
    }

    fn row_multiple(&self) -> usize {
        self.groups.row_multiple()
    }

    fn by_blocks(&self) -> bool {
        self.groups.by_blocks()
    }

    fn run(&self, src: &Planes<'_>, first: usize, n: usize, out: &mut [&mut [u8]]) {
        self.groups.run(src, first, n, out);
    }

    fn takes_blocks(&self, format: BlockFormat) -> bool {
        format == BlockFormat::Q4_0
    }

    fn run_blocks(&self, src: &BlockRows<'_>, first: usize, out: &mut [&mut [u8]]) -> bool {
        let encoding = src.format.encoding();
        let bytes = encoding.planes().iter().map(|&plane| encoding.row_bytes(plane, src.k) * src.rows.len());
        let mut planes: Vec<Vec<u8>> = bytes.map(|bytes| vec![0; bytes]).collect();
        let mut parts: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
        if split_blocks(src.format, &src.rows.concat(), &mut parts).is_err() {
            return false;
        }
        let mut all: [&[u8]; 4] = [&[]; 4];
        all.iter_mut().zip(&planes).for_each(|(to, plane)| *to = plane);
        self.run(&Planes { encoding, k: src.k, planes: all }, first, src.rows.len(), out);
        self.rows.fetch_add(src.rows.len(), Relaxed);
        true
    }
}

/// Rows of Q4_0 blocks, of which no two are alike.
fn blocks(rows: usize, seed: usize) -> Vec<u8> {
    let block = |i: usize| {
        let mut block = [0u8; 18];
        block[..2].copy_from_slice(&half::f16::from_f32(1.0 + (i % 97) as f32).to_le_bytes());
        block[2..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (i * 31 + at * 7 + seed) as u8);
        block
    };
    (0..rows * K / 32).flat_map(block).collect()
}

fn checkpoint(dir: &std::path::Path, a: &[u8]) -> Checkpoint {
    let path = dir.join("m.gguf");
    let file = Gguf::new().tensor("a", 2, &[48, K], a).tensor("b", 2, &[20, K], &blocks(20, 5));
    file.tensor("wide", 2, &[20_000, K], &blocks(20_000, 9)).write(&path);
    Checkpoint::open(&path).unwrap()
}

/// Loads an expression both ways; `taken` of its rows are to come straight from blocks.
#[track_caller]
fn check(checkpoint: &Checkpoint, expr: Expr, taken: usize) {
    for readers in [1, 3] {
        let groups = || ReverseGroups { multiple: 8, by_blocks: true };
        let from_blocks = Arc::new(FromBlocks { groups: groups(), rows: AtomicUsize::new(0) });
        let load = |repack: Arc<dyn Repack>| {
            let asked = LoadRequest { repack: Some(repack), ..request("w", expr.clone()) };
            load_requests(checkpoint, vec![asked], readers).unwrap().0.remove(0).planes
        };
        let (expected, made) = (load(Arc::new(groups())), load(from_blocks.clone()));
        assert!(made == expected, "{expr:?}");
        assert_eq!(from_blocks.rows.load(Relaxed), taken, "{expr:?}");
    }
}

#[test]
fn the_same_bytes_as_by_way_of_planes() {
    let dir = folder();
    let checkpoint = checkpoint(dir.path(), &blocks(48, 1));
    let source = Expr::source;
    let unpermuted = |heads| Expr::UnpermuteHeads { of: Box::new(source("a")), heads };
    check(&checkpoint, source("a"), 48);
    check(&checkpoint, source("b"), 16);
    check(&checkpoint, source("wide"), 20_000);
    check(&checkpoint, unpermuted(3), 48);
    check(&checkpoint, unpermuted(1), 48);
    check(&checkpoint, Expr::Concat(vec![unpermuted(2), source("b"), source("a")]), 112);
    check(&checkpoint, Expr::Rows { of: Box::new(unpermuted(3)), start: 16, len: 17 }, 16);
    check(&checkpoint, Expr::Stack(vec![source("b"), source("b")]), 40);
    // Rows from here and there: what lies between them would be read for nothing.
    let end = |start| Expr::Rows { of: Box::new(source("wide")), start, len: 8 };
    check(&checkpoint, Expr::Concat(vec![end(19_992), end(0)]), 0);
}

#[test]
fn a_bad_block_is_named_all_the_same() {
    let dir = folder();
    let mut bytes = blocks(48, 1);
    let bad = 21 * K / 32 + 1;
    bytes[18 * bad..18 * bad + 2].copy_from_slice(&half::f16::MAX.to_le_bytes());
    let checkpoint = checkpoint(dir.path(), &bytes);
    let groups = ReverseGroups { multiple: 8, by_blocks: true };
    let repack: Arc<dyn Repack> = Arc::new(FromBlocks { groups, rows: AtomicUsize::new(0) });
    let asked = LoadRequest { repack: Some(repack), ..request("w", Expr::source("a")) };
    let Err(WeightError::BlockScale { tensor, block, .. }) = load_requests(&checkpoint, vec![asked], 1)
    else {
        panic!("the bias does not fit")
    };
    assert_eq!((tensor.as_str(), block), ("a", bad as u64));
}
