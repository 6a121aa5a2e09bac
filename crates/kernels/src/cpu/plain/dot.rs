//! Dot products with partial sums.

/// Partial sums of a dot product: enough to fill the lanes of a processor and to hide the latency of an addition.
const LANES: usize = 16;

/// `x·w` for several `w` at once, each in an order of its own that depends on nothing but the length.
///
/// The AVX2 version is the same code with wider registers: it never fuses a product and a sum, so its bits are those
/// of the other.
pub(super) fn dots<const N: usize>(x: &[f32], w: [&[f32]; N]) -> [f32; N] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as seen above.
        return unsafe { dots_avx2(x, w) };
    }
    dots_body(x, w)
}

/// `x·w`.
pub(super) fn dot(x: &[f32], w: &[f32]) -> f32 {
    dots(x, [w])[0]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dots_avx2<const N: usize>(x: &[f32], w: [&[f32]; N]) -> [f32; N] {
    dots_body(x, w)
}

#[inline(always)]
fn dots_body<const N: usize>(x: &[f32], w: [&[f32]; N]) -> [f32; N] {
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let w = w.map(|w| w[..x.len()].as_chunks::<LANES>());
    let mut sums = [[0f32; LANES]; N];
    for (i, x) in x_blocks.iter().enumerate() {
        for n in 0..N {
            let w = &w[n].0[i];
            for lane in 0..LANES {
                sums[n][lane] += x[lane] * w[lane];
            }
        }
    }
    for n in 0..N {
        for (lane, (x, w)) in x_rest.iter().zip(w[n].1).enumerate() {
            sums[n][lane] += x * w;
        }
    }
    sums.map(|mut sums| {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
            half /= 2;
        }
        sums[0]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_f64_and_with_itself() {
        for len in [0, 1, 7, 15, 16, 17, 32, 576, 1000] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 31.0).collect();
            let w: Vec<f32> = (0..len).map(|i| ((i * 53 % 97) as f32 - 48.0) / 29.0).collect();
            let exact: f64 = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let size: f64 = x.iter().zip(&w).map(|(x, w)| f64::from((x * w).abs())).sum();
            let one = dot(&x, &w);
            // An element takes part in at most len/16 + 5 roundings.
            let allowed = size * (len as f64 / 16.0 + 5.0) * f64::from(f32::EPSILON);
            assert!((f64::from(one) - exact).abs() <= allowed, "{len}: {one} is not {exact}");
            assert_eq!(dots(&x, [&w; 4]), [one; 4]);
            assert_eq!(dots_body(&x, [&w[..]]), [one], "the same bits at any width");
        }
    }
}
