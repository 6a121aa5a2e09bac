//! The layout made straight from GGUF blocks.

use half::f16;
use portolan_weights::{
    BlockRows, Planes, Repack,
    gguf::{BlockFormat, split_blocks},
};

use super::{Rng, here};
use crate::cpu::fast::{isa::pack::takes_blocks, repack::Rows8, rows8::BLOCK};

/// Scales: ordinary ones, and those whose bias is not had by adding to the exponent.
const SCALES: [f32; 8] = [0.37, -1.5, 0.0, -0.0, 3.0e-7, 6.0e-5, -450.0, 500.0];

/// Rows of blocks with random codes; each begins with a scale.
fn rows_of(format: BlockFormat, rows: usize, blocks: usize, scales: &[f32], rng: &mut Rng) -> Vec<Vec<u8>> {
    let block = |rng: &mut Rng| {
        let mut bytes: Vec<u8> = (0..format.bytes()).map(|_| rng.bits() as u8).collect();
        let scale = scales[rng.bits() as usize % scales.len()];
        bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        bytes
    };
    (0..rows).map(|_| (0..blocks).flat_map(|_| block(rng)).collect()).collect()
}

/// By way of planes.
fn by_planes(format: BlockFormat, rows: &[&[u8]], k: usize) -> Vec<u8> {
    let encoding = format.encoding();
    let bytes = |&plane| encoding.row_bytes(plane, k) * rows.len();
    let mut planes: Vec<Vec<u8>> = encoding.planes().iter().map(|plane| vec![0; bytes(plane)]).collect();
    let mut parts: Vec<&mut [u8]> = planes.iter_mut().map(Vec::as_mut_slice).collect();
    split_blocks(format, &rows.concat(), &mut parts).unwrap();
    let mut all: [&[u8]; 4] = [&[]; 4];
    all.iter_mut().zip(&planes).for_each(|(to, plane)| *to = plane);
    let mut out = vec![0xa5; Rows8.plane_bytes(encoding, rows.len(), k)[0]];
    Rows8.run(&Planes { encoding, k, planes: all }, 0, rows.len(), &mut [&mut out]);
    out
}

#[test]
fn the_same_bytes_as_by_way_of_planes() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(7);
    for format in [BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q8_0] {
        assert!(Rows8.takes_blocks(format), "{}", format.name());
        for (rows, blocks) in [(8, 1), (8, 7), (16, 18), (24, 9)] {
            let (k, all) = (32 * blocks, rows_of(format, rows, blocks, &SCALES, &mut rng));
            let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
            let expected = by_planes(format, &all, k);
            // In two parts, the second first, as rows of a larger weight come.
            let mut made = vec![0xa5; expected.len()];
            let (head, tail) = all.split_at(rows - BLOCK);
            for (rows, first) in [(tail, rows - BLOCK), (head, 0)] {
                assert!(Rows8.run_blocks(&BlockRows { format, k, rows }, first, &mut [&mut made]));
            }
            assert!(made == expected, "{} {rows}x{k}", format.name());
        }
    }
}

#[test]
fn what_it_cannot_do_is_left_to_the_planes() {
    if !here() {
        return;
    }
    let mut rng = Rng::new(8);
    let mut check = |format: BlockFormat, rows: usize, scales: &[f32], room: usize| {
        let all = rows_of(format, rows, 2, scales, &mut rng);
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; room];
        let src = BlockRows { format, k: 2 * format.elements(), rows: &all };
        assert!(!Rows8.run_blocks(&src, 0, &mut [&mut out]), "{} {rows} {scales:?} {room}", format.name());
    };
    // Rows that do not fill a block, a bias beyond f16, a format that has other scales, too little room.
    check(BlockFormat::Q4_1, 7, &[1.0], 4096);
    check(BlockFormat::Q4_0, 8, &[60000.0], 4096);
    check(BlockFormat::Q8_0, 8, &[-600.0], 4096);
    check(BlockFormat::Q4_0, 8, &[f32::INFINITY], 4096);
    check(BlockFormat::Q4_0, 8, &[f32::NAN], 4096);
    check(BlockFormat::Q4_K, 8, &[1.0], 1 << 16);
    check(BlockFormat::Q4_1, 16, &[1.0], 16 * 40 - 1);
    assert!(!takes_blocks(BlockFormat::Q5_0));
}
