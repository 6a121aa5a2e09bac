//! Random numbers by position: the value at an index of a stream does not depend on who asks, nor in which order.

use std::sync::OnceLock;

/// The increment of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Entries of a table that random bits are looked up in.
pub(super) const QUANTILES: usize = 4096;

/// The stream of a tensor, from the seed of the checkpoint and the tensor's name.
pub(super) fn stream(seed: u64, name: &str) -> u64 {
    // FNV-1a: names differ in one digit, so the result goes through the mixer once more.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    mix(hash ^ mix(seed.wrapping_add(GOLDEN)))
}

/// Number `index` of a stream: 64 random bits.
#[inline]
pub(super) fn at(stream: u64, index: u64) -> u64 {
    mix(stream.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// The finalizer of SplitMix64.
#[inline]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Quantile `(i + 1/2) / 4096` of the normal distribution for every `i`, scaled to a variance of exactly 1.
/// A random index gives a number that is normal up to 3.7 standard deviations.
pub(super) fn normal_quantiles() -> &'static [f32] {
    static TABLE: OnceLock<Vec<f32>> = OnceLock::new();
    TABLE.get_or_init(compute_normal_quantiles)
}

/// Adds up the density from -5 on. Only sums and products are used, not a library's `exp`, so that the result
/// is the same on every machine.
fn compute_normal_quantiles() -> Vec<f32> {
    const STEPS_PER_UNIT: i32 = 512;
    const EDGE: f64 = 5.0;
    let step = 1.0 / f64::from(STEPS_PER_UNIT);
    let steps = (2.0 * EDGE) as usize * STEPS_PER_UNIT as usize;
    // density(z + step) = density(z) * ratio(z), and ratio(z + step) = ratio(z) * exp(-step^2).
    let (mut density, mut ratio) = (1.0, small_exp(EDGE * step - step * step / 2.0));
    let shrink = small_exp(-step * step);
    let mut below = vec![0.0];
    let mut sum = 0.0;
    for _ in 0..steps {
        let next = density * ratio;
        sum += (density + next) / 2.0;
        below.push(sum);
        density = next;
        ratio *= shrink;
    }
    let quantile = |share: f64| {
        let wanted = share * sum;
        let after = below.partition_point(|&b| b < wanted).max(1);
        let (low, high) = (below[after - 1], below[after]);
        (after as f64 - 1.0 + (wanted - low) / (high - low)) * step - EDGE
    };
    let half: Vec<f64> = (0..QUANTILES / 2).map(|i| quantile((i as f64 + 0.5) / QUANTILES as f64)).collect();
    let variance = half.iter().map(|z| z * z).sum::<f64>() / half.len() as f64;
    // Mirrored, so that the mean is 0.
    let upper = half.iter().rev().map(|z| -z);
    half.iter().copied().chain(upper).map(|z| (z / variance.sqrt()) as f32).collect()
}

/// `exp(x)` for `|x|` below 0.01, by its series.
fn small_exp(x: f64) -> f64 {
    1.0 + x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_name_and_index() {
        let numbers = [
            at(stream(0, "a.0"), 0),
            at(stream(0, "a.0"), 1),
            at(stream(0, "a.1"), 0),
            at(stream(1, "a.0"), 0),
        ];
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len(), "{numbers:x?}");
    }

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        let table = normal_quantiles();
        assert_eq!(table.len(), QUANTILES);
        // Known quantiles, to 0.2 %: the table's variance is set to 1, which moves each by about 0.05 %.
        for (share, known) in
            [(0.5, 0.0), (0.841_345, 1.0), (0.977_25, 2.0), (0.998_65, 3.0), (0.1, -1.281_55)]
        {
            let found = table[(share * QUANTILES as f64) as usize];
            assert!((found - known).abs() < 0.002 * known.abs() + 0.005, "{share}: {found}, not {known}");
        }
        assert!(table.is_sorted());
    }
}
