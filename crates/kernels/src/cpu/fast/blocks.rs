//! A weight in the layout [`super::rows8`] as matmuls walk over it, and how their work is cut.

use portolan_device::cpu::Team;
use portolan_weights::WeightTensor;

use super::{
    rows8::{BLOCK, Format},
    tile::{IntRows, Isa, STRIP, Sums, Tile, Tiles},
};
use crate::cpu::access::read;

/// Rows of x that go with a panel of weights before the next one is taken.
const PANEL_ROWS: usize = 64;
/// Fewest bytes of weights that are worth a chunk of their own.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a panel of weights: it stays in the second-level cache while rows of x pass by.
const PANEL_BYTES: usize = 96 << 10;

/// A weight as the loops of a matmul walk over it.
pub(super) struct Blocks<'a> {
    bytes: &'a [u8],
    pub(super) tiles: Tiles,
    pub(super) block_bytes: usize,
}

impl<'a> Blocks<'a> {
    /// None for a weight that `takes` does not let through.
    pub(super) fn new<I: Isa>(weight: &'a WeightTensor) -> Option<Self> {
        let format = Format::of(weight.encoding)?;
        let [rows, k] = weight.shape[..] else { return None };
        let block_bytes = format.block_bytes(k);
        let bytes = read(&weight.planes[0], rows.div_ceil(BLOCK) * block_bytes);
        Some(Blocks { bytes, tiles: I::tiles(format), block_bytes })
    }

    /// Blocks `first..first + n` times `R` rows from `x` on.
    ///
    /// # Safety
    /// `x` has `R` rows of as many columns as the weight, and the processor has the features.
    #[inline]
    pub(super) unsafe fn times<const R: usize>(
        &self,
        tile: Tile<R>,
        (first, n): (usize, usize),
        x: IntRows,
        out: &mut Sums<R>,
    ) {
        let blocks = &self.bytes[first * self.block_bytes..(first + n) * self.block_bytes];
        // SAFETY: whole blocks; the rest is the caller's promise.
        unsafe { tile(&self.tiles.geometry, blocks.as_ptr(), n, x, out) }
    }
}

/// Blocks a chunk and rows a chunk. The result does not depend on either.
fn cut(blocks: usize, block_bytes: usize, rows: usize, threads: usize) -> (usize, usize) {
    let for_all = blocks.div_ceil(threads).max(1);
    if rows < 4 {
        // One pass over the weights. Up to eight chunks a thread even out what else the processor does, but where
        // its cores are far apart the hand-over of a chunk costs about as much as reading 16 KiB.
        let fair = blocks.div_ceil(8 * threads);
        return (fair.max(CHUNK_BYTES / block_bytes).clamp(1, for_all), rows.max(1));
    }
    (blocks.div_ceil(4 * threads).clamp(1, (PANEL_BYTES / block_bytes).max(1)), PANEL_ROWS)
}

/// Runs `body(strip of blocks, row, rows of x)` over all blocks and rows in tiles of eight, four, two and one rows.
pub(super) fn for_tiles(
    team: &Team,
    blocks: usize,
    block_bytes: usize,
    rows: usize,
    body: impl Fn((usize, usize), usize, usize) + Sync,
) {
    let (chunk_blocks, chunk_rows) = cut(blocks, block_bytes, rows, team.threads());
    let across = blocks.div_ceil(chunk_blocks);
    let down = rows.div_ceil(chunk_rows);
    team.run(across * down, |chunk| {
        let first_block = chunk / down * chunk_blocks;
        let last_block = blocks.min(first_block + chunk_blocks);
        let mut row = chunk % down * chunk_rows;
        let last_row = rows.min(row + chunk_rows);
        while row < last_row {
            let n = match last_row - row {
                1 => 1,
                2 | 3 => 2,
                4..8 => 4,
                _ => 8,
            };
            for block in (first_block..last_block).step_by(STRIP) {
                body((block, STRIP.min(last_block - block)), row, n);
            }
            row += n;
        }
    });
}
