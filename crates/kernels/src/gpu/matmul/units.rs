//! Matrix units: matmul_thin.cu for a few rows, matmul_mma.cu for many.

use portolan_device::DeviceCaps;

use super::{Call, Defines, Launch, Product, StepShape, call, chunk, number, shared_defines};

/// How matmul_mma.cu is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    /// Rows of x of a block.
    rows: usize,
    /// Rows of the matrices of a block.
    lines: usize,
    /// Tiles in shared memory at once.
    stages: usize,
}

impl Tile {
    /// For steps of about `rows` rows or more.
    fn new(product: &Product, rows: usize, caps: &DeviceCaps) -> Self {
        // Large tiles do more with what they read; small ones leave every compute unit something to do.
        let (rows, lines) = match rows {
            128 if product.n * product.matrices >= 4096 => (128, 128),
            128 => (64, 64),
            rows => (rows, 64),
        };
        // So that two blocks fit a compute unit.
        Tile { rows, lines, stages: if block_room(caps) >= 227 << 10 { 3 } else { 2 } }
    }

    /// Bytes of shared memory: rows of 64 columns and 8 that spread them over the banks, two bytes each.
    fn shared(&self) -> usize {
        self.stages * (self.rows + self.lines) * (64 + 8) * 2
    }
}

/// Bytes of shared memory that a block can have, by NVIDIA's table of compute capabilities.
fn block_room(caps: &DeviceCaps) -> usize {
    match caps.arch.as_str() {
        "sm_90" | "sm_100" | "sm_103" => 227 << 10,
        "sm_80" | "sm_87" => 163 << 10,
        _ => 99 << 10,
    }
}

/// How matmul_thin.cu is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Thin {
    /// Tiles of 16 lines of a block.
    tiles: usize,
    waves: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Thin {
    /// For up to `rows` rows, a multiple of 8.
    fn new(product: &Product, rows: usize, caps: &DeviceCaps) -> Self {
        // Two tiles halve the reads of x, one makes more blocks; gate and up make a pair.
        let tiles = if product.matrices == 2 || product.n >= 24 * caps.units { 2 } else { 1 };
        // Two slabs a wave: four chunks a row, spread over the banks, two bytes an element. Sums take less.
        let chunk = chunk(product.encoding);
        let slabs = 2 * rows * 4 * (if chunk == 8 { chunk } else { chunk + 8 }) * 2;
        let sums = tiles * rows * 16 * 4;
        let wave = slabs.max(sums);
        let waves = if 8 * wave <= block_room(caps) { 8 } else { 4 };
        Thin { tiles, waves, shared: waves * wave }
    }
}

pub(super) fn thin_defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let thin = Thin::new(&Product::new(launch), ROWS, caps);
    let mut defines = shared_defines(launch);
    defines.extend([number("NT", ROWS / 8), number("MT", thin.tiles), number("WAVES", thin.waves)]);
    defines
}

pub(super) fn thin_call<const ROWS: usize>(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let product = Product::new(launch);
    let thin = Thin::new(&product, ROWS, caps);
    let columns = thin.tiles / product.matrices * 16;
    call(launch, shape, [ROWS, columns], thin.waves * 32, thin.shared)
}

pub(super) fn mma_defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let tile = Tile::new(&Product::new(launch), ROWS, caps);
    let mut defines = shared_defines(launch);
    defines.extend([number("BM", tile.rows), number("BN", tile.lines), number("STAGES", tile.stages)]);
    defines
}

pub(super) fn mma_call<const ROWS: usize>(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let product = Product::new(launch);
    let tile = Tile::new(&product, ROWS, caps);
    call(launch, shape, [tile.rows, tile.lines / product.matrices], 2 * tile.lines, tile.shared())
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{caps, product},
        *,
    };

    /// Tiles and waves of a thin block.
    #[track_caller]
    fn check_thin(arch: &str, n: usize, rows: usize, expected: [usize; 2]) {
        let thin = Thin::new(&product(n, 1), rows, &caps(arch));
        assert_eq!([thin.tiles, thin.waves], expected, "{arch} n {n} rows {rows}");
        assert!(thin.shared <= block_room(&caps(arch)), "{} bytes", thin.shared);
    }

    #[test]
    fn blocks_fit_shared_memory() {
        check_thin("sm_90", 4096, 8, [2, 8]);
        check_thin("sm_90", 1024, 32, [1, 8]);
        check_thin("sm_80", 4096, 32, [2, 8]);
        check_thin("sm_120", 4096, 16, [2, 8]);
        check_thin("sm_120", 4096, 32, [2, 4]);
        for arch in ["sm_80", "sm_89", "sm_90", "sm_120"] {
            for rows in [64, 128] {
                let tile = Tile::new(&product(4096, 1), rows, &caps(arch));
                assert!(tile.shared() <= block_room(&caps(arch)), "{arch} {tile:?}");
            }
        }
    }
}
