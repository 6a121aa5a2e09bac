//! What the processor could do at most: what benchmarks hold kernels against.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use portolan_device::cpu::Team;

/// Rates of all threads of a team together, as measured.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// Bytes a second that are read from memory.
    pub read: f64,
    /// f32 products and sums a second: two for each multiply-add.
    pub f32_ops: f64,
}

/// Larger than any last cache.
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// Measures for about half a second. The best of a few rounds counts: what else the machine does only takes away.
pub fn ceiling(team: &Team) -> Ceiling {
    let memory = vec![1u64; BYTES / 8];
    let part = memory.len() / team.threads();
    let read = best(|| {
        team.run(team.threads(), |chunk| {
            black_box(sum(&memory[chunk * part..(chunk + 1) * part]));
        });
    });
    const STEPS: usize = 4 << 20;
    let fma = best(|| {
        team.run(team.threads(), |_| {
            black_box(multiply_add(STEPS));
        });
    });
    Ceiling {
        read: (part * team.threads() * 8) as f64 / read.as_secs_f64(),
        f32_ops: (team.threads() * STEPS * OPS) as f64 / fma.as_secs_f64(),
    }
}

fn best(mut f: impl FnMut()) -> Duration {
    let time = |_| {
        let started = Instant::now();
        f();
        started.elapsed()
    };
    (0..ROUNDS).map(time).min().unwrap_or_default()
}

/// In lanes, so that it is the memory that is waited for.
fn sum(memory: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for block in memory.as_chunks::<32>().0 {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*x);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Vectors of eight lanes that are multiplied and added to, side by side: more than a multiply-add takes cycles.
const CHAINS: usize = 10;
/// Operations of a step.
const OPS: usize = CHAINS * 8 * 2;

fn multiply_add(steps: usize) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the features are there.
        return unsafe { multiply_add_fma(steps) };
    }
    let mut chains = [[0.5f32; 8]; CHAINS];
    let (by, plus) = (black_box(0.999), black_box(0.001));
    for _ in 0..steps {
        for x in chains.as_flattened_mut() {
            *x = if cfg!(target_feature = "neon") { x.mul_add(by, plus) } else { *x * by + plus };
        }
    }
    chains.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_add_fma(steps: usize) -> f32 {
    use std::arch::x86_64::*;
    let mut chains = [_mm256_set1_ps(0.5); CHAINS];
    let (by, plus) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
    for _ in 0..steps {
        for x in &mut chains {
            *x = _mm256_fmadd_ps(*x, by, plus);
        }
    }
    let sum = chains.into_iter().fold(_mm256_setzero_ps(), |a, b| _mm256_add_ps(a, b));
    let mut lanes = [0.0; 8];
    // SAFETY: an array of eight.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_computed() {
        assert_eq!(sum(&[3; 100]), 3 * 96, "whole blocks");
        // x = 0.999 x + 0.001 goes to 1.
        assert!((multiply_add(20_000) - 80.0).abs() < 1.0);
    }
}
