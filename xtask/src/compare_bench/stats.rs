//! What a few ratios say.

/// Where the mean of ratios lies, by Student's t of their logarithms: ratios multiply, so that 2 and 1/2 are as far from 1.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Interval {
    /// The geometric mean.
    pub(super) mean: f64,
    /// Between this and `high` with 95 %.
    pub(super) low: f64,
    pub(super) high: f64,
    /// At least this with 95 %.
    pub(super) lower: f64,
}

/// None for fewer than two.
pub(super) fn interval(ratios: &[f64]) -> Option<Interval> {
    let n = ratios.len() as f64;
    if ratios.len() < 2 {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    let (one_sided, two_sided) = student(ratios.len() - 1);
    Some(Interval {
        mean: mean.exp(),
        low: (mean - two_sided * error).exp(),
        high: (mean + two_sided * error).exp(),
        lower: (mean - one_sided * error).exp(),
    })
}

/// Student's t at 95 and at 97.5 % (for 95 % between two bounds), for so many degrees of freedom.
fn student(freedom: usize) -> (f64, f64) {
    const TABLE: [(f64, f64); 20] = [
        (6.314, 12.706),
        (2.920, 4.303),
        (2.353, 3.182),
        (2.132, 2.776),
        (2.015, 2.571),
        (1.943, 2.447),
        (1.895, 2.365),
        (1.860, 2.306),
        (1.833, 2.262),
        (1.812, 2.228),
        (1.796, 2.201),
        (1.782, 2.179),
        (1.771, 2.160),
        (1.761, 2.145),
        (1.753, 2.131),
        (1.746, 2.120),
        (1.740, 2.110),
        (1.734, 2.101),
        (1.729, 2.093),
        (1.725, 2.086),
    ];
    // Beyond the table its last line is a little too careful.
    TABLE[freedom.clamp(1, TABLE.len()) - 1]
}

/// The middle one, or the mean of the two in the middle; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn an_interval_by_hand() {
        assert_eq!(interval(&[1.5]), None);
        // Logarithms -0.1, 0, 0.1: a standard error of 0.1 / sqrt 3, and t of two degrees of freedom.
        let found = interval(&[(-0.1f64).exp(), 1.0, 0.1f64.exp()]).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}");
        close(found.mean, 1.0);
        close(found.low, (-4.303f64 * 0.057_735).exp());
        close(found.high, (4.303f64 * 0.057_735).exp());
        close(found.lower, (-2.920f64 * 0.057_735).exp());
        let same = interval(&[1.2, 1.2]).unwrap();
        close(same.low, 1.2);
        close(same.high, 1.2);
    }
}
