//! Few rows: matmul_gemv.cu.

use portolan_device::DeviceCaps;

use super::{Call, Defines, Launch, Product, StepShape, THREADS, call, number, shared_defines, whole_chunks};

/// Rows of a matrix that a wave takes: as many as share the reads of x and fit the registers, but no more than leave
/// every compute unit a block. The sums do not depend on it.
pub(super) fn wave_rows(product: &Product, rows: usize, caps: &DeviceCaps) -> usize {
    let waves = caps.units.max(1) * THREADS / caps.wave_width.max(1) as usize;
    let lines = if rows > 4 { 2 } else { 4 };
    let most = lines / product.matrices;
    [4, 2].into_iter().find(|&w| w <= most && product.n / w >= waves).unwrap_or(1)
}

pub(super) fn defines<const ROWS: usize>(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let product = Product::new(launch);
    let mut defines = shared_defines(launch);
    defines.push(number("ROWS", ROWS));
    defines.push(number("WROWS", wave_rows(&product, ROWS, caps)));
    defines.push(number("FAST", whole_chunks(product.encoding, product.k).into()));
    defines
}

pub(super) fn launch<const ROWS: usize>(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let columns = wave_rows(&Product::new(launch), ROWS, caps) * THREADS / caps.wave_width.max(1) as usize;
    call(launch, shape, [ROWS, columns], THREADS, 0)
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{caps, product},
        *,
    };

    /// Rows that a wave of a gemv takes.
    #[track_caller]
    fn check_wave(n: usize, matrices: usize, rows: usize, expected: usize) {
        assert_eq!(wave_rows(&product(n, matrices), rows, &caps("sm_90")), expected, "n {n}");
    }

    #[test]
    fn gemv_spreads_over_the_device() {
        check_wave(1024, 1, 1, 1);
        check_wave(4096, 1, 1, 2);
        check_wave(14_336, 1, 1, 4);
        check_wave(14_336, 1, 8, 2);
        check_wave(14_336, 2, 1, 2);
        check_wave(14_336, 2, 8, 1);
        check_wave(1, 1, 1, 1);
    }
}
