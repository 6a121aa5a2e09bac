//! Elementwise ops.

use portolan_device::cpu::Team;

use crate::{
    Activation, Launch, Op, StepShape,
    cpu::access::{output, values},
};

/// Sets each row of the output from the same row of every input.
fn by_rows(launch: &Launch, shape: StepShape, team: &Team, f: impl Fn(&[&[f32]], &mut [f32]) + Sync) {
    let y = output::<f32>(&launch.outputs[0], shape);
    let cols = launch.outputs[0].cols;
    team.run(shape.of(launch.outputs[0].rows), |row| {
        let mut rows: [&[f32]; 2] = [&[]; 2];
        for (to, from) in rows.iter_mut().zip(&launch.inputs) {
            *to = &values(from, shape)[row * cols..(row + 1) * cols];
        }
        // SAFETY: the row belongs to this chunk alone.
        f(&rows, unsafe { y.row_mut(row) });
    });
}

/// `a + b`.
pub(super) fn add(launch: &Launch, shape: StepShape, team: &Team) {
    by_rows(launch, shape, team, |x, y| {
        for (y, (a, b)) in y.iter_mut().zip(x[0].iter().zip(x[1])) {
            *y = a + b;
        }
    });
}

/// `a * b`.
pub(super) fn mul(launch: &Launch, shape: StepShape, team: &Team) {
    by_rows(launch, shape, team, |x, y| {
        for (y, (a, b)) in y.iter_mut().zip(x[0].iter().zip(x[1])) {
            *y = a * b;
        }
    });
}

/// The function of an [`Op::Activate`].
pub(super) fn activate(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Activate(activation) = launch.op else { return };
    by_rows(launch, shape, team, |x, y| {
        for (y, x) in y.iter_mut().zip(x[0]) {
            *y = apply(activation, *x);
        }
    });
}

/// One value of an elementwise function.
pub(crate) fn apply(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let x = f64::from(x);
            (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            let x = f64::from(x);
            (0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())) as f32
        }
        Activation::Relu2 => {
            let x = x.max(0.0);
            x * x
        }
    }
}

/// The error function: `2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!` (Abramowitz and Stegun 7.1.6), whose
/// terms all have one sign, so nothing cancels.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    // 1 - erf(6) is 2e-17: below half a unit in the last place.
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_against_tabled_values() {
        // Abramowitz and Stegun, table 7.1, and erfc(4.5) from its asymptotic series.
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.1124629160),
            (0.5, 0.5204998778),
            (1.0, 0.8427007929),
            (2.0, 0.9953222650),
            (3.0, 0.9999779095),
            (4.5, 0.9999999998),
            (7.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
    }

    #[track_caller]
    fn check(f: Activation, x: f32, expected: f32) {
        let y = apply(f, x);
        assert!((y - expected).abs() <= 1e-6 * expected.abs().max(1e-3), "{f:?}({x}) is {y}, not {expected}");
    }

    #[test]
    fn functions() {
        check(Activation::Silu, 1.0, 0.731_058_6);
        check(Activation::Silu, -20.0, -4.122_307e-8);
        check(Activation::Silu, -200.0, 0.0);
        check(Activation::Gelu, 1.0, 0.841_344_7);
        check(Activation::Gelu, -2.0, -0.045_500_26);
        check(Activation::GeluTanh, 1.0, 0.841_192);
        check(Activation::GeluTanh, -2.0, -0.045_402_3);
        check(Activation::Relu2, 3.0, 9.0);
        check(Activation::Relu2, -3.0, 0.0);
        for f in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            assert!(apply(f, f32::NAN).is_nan(), "{f:?}");
            assert_eq!(apply(f, 100.0), 100.0, "{f:?}");
            assert_eq!(apply(f, 0.0), 0.0, "{f:?}");
        }
    }
}
