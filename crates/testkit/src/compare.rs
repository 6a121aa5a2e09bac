/// The largest absolute difference; infinite when the lengths differ or a value is NaN on one side only.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    a.iter().zip(b).fold(0.0, |worst: f32, (&x, &y)| {
        let diff = if x.is_nan() && y.is_nan() || x == y { 0.0 } else { (x - y).abs() };
        if diff.is_nan() { f32::INFINITY } else { worst.max(diff) }
    })
}

/// Asserts that `actual` is within `tolerance` of `expected`, element by element, and names the worst.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: number of elements");
    let worst = actual.iter().zip(expected).enumerate().max_by(|(_, a), (_, b)| {
        let diff = |(x, y): (&f32, &f32)| max_abs_diff(&[*x], &[*y]);
        diff(*a).total_cmp(&diff(*b))
    });
    if let Some((i, (&x, &y))) = worst {
        let diff = max_abs_diff(&[x], &[y]);
        assert!(
            diff <= tolerance,
            "{what}: element {i} is {x}, expected {y}: off by {diff}, allowed {tolerance}"
        );
    }
}
