//! The expected numbers come from the reference's formulas in numpy float32.

use super::*;

/// One unit in the last place of an f32: the power function of another libm may differ by that.
const ULP: f32 = 1.2e-7;

#[track_caller]
fn check(rope: &RopeFrequencies, scale: f64, expected: &[f32]) {
    assert_eq!(rope.inv_freq.len(), expected.len());
    for (i, (&f, &e)) in rope.inv_freq.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= ULP * e, "frequency {i} is {f}, expected {e}");
    }
    assert!((f64::from(rope.scale) - scale).abs() <= 1e-7, "scale {} is not {scale}", rope.scale);
}

#[test]
fn plain_and_linear() {
    check(&RopeFrequencies::plain(1e4, 8), 1.0, &[1.0, 0.1, 0.01, 0.001]);
    let wide =
        [1.0, 0.19392276, 0.03760603, 0.007292665, 0.0014142134, 0.0002742482, 5.3182957e-5, 1.0313385e-5];
    check(&RopeFrequencies::plain(5e5, 16), 1.0, &wide);
    let third = [0.33333334, 0.033333335, 0.0033333332, 0.00033333336];
    check(&RopeFrequencies::linear(1e4, 8, 3.0), 1.0, &third);
}

#[test]
fn yarn() {
    let paper = [1.0, 0.23717082, 0.049999997, 0.007905695, 0.0025, 0.00079056947, 0.00025, 7.905695e-5];
    check(&RopeFrequencies::yarn(1e4, 16, &Yarn::new(4.0, 64)), 1.138629436111989, &paper);

    let equal_ends =
        Yarn { beta_fast: 2.0, beta_slow: 2.0, attention_factor: Some(1.5), ..Yarn::new(2.0, 16) };
    let expected = [1.0, 0.15811388, 0.05, 0.01581139, 0.005, 0.0015811389, 0.0005, 0.0001581139];
    check(&RopeFrequencies::yarn(1e4, 16, &equal_ends), 1.5, &expected);
}

#[test]
fn yarn_of_gpt_oss_keeps_fractional_bounds() {
    let yarn = Yarn { truncate: false, ..Yarn::new(32.0, 4096) };
    let expected =
        [1.0, 0.225418, 0.050813273, 0.0067949593, 0.00045648392, 1.8188337e-5, 4.0999785e-6, 9.2420896e-7];
    check(&RopeFrequencies::yarn(150000.0, 16, &yarn), 1.3465735902799727, &expected);
    let rounded = RopeFrequencies::yarn(150000.0, 16, &Yarn { truncate: true, ..yarn });
    assert_ne!(rounded.inv_freq[4], expected[4]);
}

#[test]
fn yarn_of_deepseek_has_a_quotient_of_scales() {
    let yarn = Yarn { mscale: Some(0.707), mscale_all_dim: Some(1.0), ..Yarn::new(40.0, 4096) };
    let expected = [1.0, 0.31622776, 0.1, 0.023914725, 0.0051249997, 0.0008498622, 2.5e-5, 7.9056945e-6];
    check(&RopeFrequencies::yarn(1e4, 16, &yarn), 0.9210423553163399, &expected);
    let same = Yarn { mscale: Some(1.0), ..yarn };
    check(&RopeFrequencies::yarn(1e4, 16, &same), 1.0, &expected);
    let one_only = Yarn { mscale_all_dim: None, ..yarn };
    check(&RopeFrequencies::yarn(1e4, 16, &one_only), 0.1 * 40f64.ln() + 1.0, &expected);
}

#[test]
fn llama3() {
    let of =
        |factor, original_max| Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max };
    let expected =
        [1.0, 0.19392276, 0.03760603, 0.007292665, 0.000524846, 3.4281024e-5, 6.6478697e-6, 1.2891732e-6];
    check(&RopeFrequencies::llama3(5e5, 16, &of(8.0, 8192)), 1.0, &expected);
    check(&RopeFrequencies::llama3(1e4, 8, &of(32.0, 32)), 1.0, &[1.0, 0.003125, 0.0003125, 3.125e-5]);
}

/// The frequencies that a row of the table was made with, read back from its angles.
fn frequencies(rope: &RopeFrequencies, position: i32) -> Vec<f32> {
    let mut row = vec![f32::NAN; rope.rot()];
    rope.fill(position, &mut row);
    let (cos, sin) = row.split_at(rope.rot() / 2);
    (0..cos.len()).map(|i| sin[i].atan2(cos[i]) / position as f32).collect()
}

#[test]
fn dynamic_grows_with_the_rows_own_position() {
    let rope = RopeFrequencies::dynamic(1e4, 8, 2.0, 32);
    check(&rope, 1.0, &[1.0, 0.1, 0.01, 0.001]);
    // From the second frequency on, the angle at position 39 is within half a turn, so it can be read back.
    #[track_caller]
    fn close(found: &[f32], expected: &[f32]) {
        for (f, e) in found.iter().zip(expected).skip(2) {
            assert!((f - e).abs() <= 1e-6 * e, "{found:?}, expected {expected:?}");
        }
    }
    close(&frequencies(&rope, 31), &[1.0, 0.1, 0.01, 0.001]);
    close(&frequencies(&rope, 39), &[1.0, 0.08735804, 0.0076314276, 0.0006666666]);
    let far = RopeFrequencies::dynamic(1e6, 8, 4.0, 64);
    close(&frequencies(&far, 999), &[1.0, 0.008100173, 6.561282e-5, 5.314752e-7]);
}

#[test]
fn a_row_of_the_table_is_cosines_then_sines() {
    let rope = RopeFrequencies { scale: 2.0, ..RopeFrequencies::plain(1e4, 4) };
    let mut row = [0.0; 4];
    rope.fill(3, &mut row);
    for (found, angle) in row[..2].iter().zip([3.0f64, 0.03]) {
        assert!((f64::from(*found) - 2.0 * angle.cos()).abs() < 3e-7);
    }
    for (found, angle) in row[2..].iter().zip([3.0f64, 0.03]) {
        assert!((f64::from(*found) - 2.0 * angle.sin()).abs() < 3e-7);
    }
}
