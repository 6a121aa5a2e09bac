//! A port's results against the reference's.

use std::fmt;

use portolan_device::DType;

use super::{
    host::{Case, Value, decode, encode},
    place::{Results, floats, place_of},
    tolerance,
};
use crate::{CacheKind, RowCodes, ValueInfo, ValueType, cpu::access::IntRow};

/// How a port failed a case.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Failure {
    /// An element holds what was there before.
    Unwritten {
        /// `output 0`, `keys`, ...
        what: &'static str,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
    },
    /// An element is too far from the reference.
    Wrong {
        /// `output 0`, `keys`, ...
        what: &'static str,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// What the port made.
        found: f64,
        /// What the reference made.
        expected: f64,
        /// The difference over what is allowed.
        share: f32,
    },
    /// Memory around an output was written.
    Guard,
    /// Another number of threads gives other bits.
    Threads,
    /// Fewer rows give other bits, though the variant says that it is batch-invariant.
    Batch {
        /// The rows that were run alone.
        rows: std::ops::Range<usize>,
    },
    /// The kernel panicked.
    Panicked,
    /// The case could not be run.
    NotRun(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unwritten { what, row, col } => write!(f, "{what} [{row}, {col}] was not written"),
            Failure::Wrong { what, row, col, found, expected, share } => write!(
                f,
                "{what} [{row}, {col}] is {found}, expected {expected}: {share:.2} times what is allowed"
            ),
            Failure::Guard => f.write_str("wrote outside its output"),
            Failure::Threads => f.write_str("the result depends on the number of threads"),
            Failure::Batch { rows } => {
                write!(f, "rows {rows:?} differ when they are run alone, but it claims to be batch-invariant")
            }
            Failure::Panicked => f.write_str("panicked"),
            Failure::NotRun(why) => write!(f, "could not be run: {why}"),
        }
    }
}

/// The worst of what was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worst {
    /// The error, relative as [`tolerance::Tolerance`] says.
    pub error: f32,
    /// The error over what is allowed.
    pub share: f32,
}

impl Worst {
    fn meet(&mut self, error: f32, limit: f32) {
        self.error = self.error.max(error);
        self.share = self.share.max(share(error, limit));
    }
}

fn share(error: f32, limit: f32) -> f32 {
    if error == 0.0 { 0.0 } else { error / limit }
}

const OUTPUTS: [&str; 3] = ["output 0", "output 1", "output 2"];

/// Holds a port's results against the reference's, `limit` being allowed of floats.
pub(super) fn compare(
    case: &Case,
    limit: f32,
    activation: DType,
    found: &Results,
    expected: &Results,
) -> Result<Worst, Failure> {
    let mut worst = Worst::default();
    if !found.guards_whole {
        return Err(Failure::Guard);
    }
    for (i, info) in case.outputs.iter().enumerate() {
        let (found, expected) = (&found.outputs[i], &expected.outputs[i]);
        match info.dtype {
            ValueType::Q8Rows => integer_rows(&case.inputs[0], RowCodes::Int8, found, &mut worst)?,
            ValueType::Q15Rows => integer_rows(&case.inputs[0], RowCodes::Int15, found, &mut worst)?,
            ValueType::I32 => integers(info, found, expected)?,
            ValueType::Activation | ValueType::F32 => {
                let found = floats(info, found, activation);
                let mut expected = floats(info, expected, DType::F32);
                if info.dtype == ValueType::Activation {
                    expected = decode(activation, &encode(activation, &expected));
                }
                if expected.iter().any(|e| e.is_nan()) {
                    return Err(Failure::NotRun("the reference is not a number".to_owned()));
                }
                rows(OUTPUTS[i], info.cols, &found, &expected, (limit, case.magnitude), &mut worst)?;
            }
        }
    }
    if let Some(cache) = &case.cache {
        let limit = tolerance::of_cache(case, activation);
        let (k_dim, v_dim) = match cache.kind {
            CacheKind::Paged { k_dim, v_dim, .. } => (k_dim, v_dim),
            _ => (1, 1),
        };
        let sides = [("keys", k_dim), ("values", v_dim)].into_iter();
        for ((what, dim), (found, expected)) in sides.zip(found.cache.iter().zip(&expected.cache)) {
            // What is NaN in the reference is poison that nobody wrote.
            let (found, expected) = (decode(cache.dtype, found), decode(cache.dtype, expected));
            rows(what, dim, &found, &expected, (limit, 0.0), &mut worst)?;
        }
    }
    Ok(worst)
}

/// Poison of f32, f16 and bf16, made f32, has at least these bits; a NaN that was computed has fewer.
const POISON_BITS: u32 = 0xffff_0000;

/// Floats, each against the largest of its row.
fn rows(
    what: &'static str,
    cols: usize,
    found: &[f32],
    expected: &[f32],
    (limit, magnitude): (f32, f32),
    worst: &mut Worst,
) -> Result<(), Failure> {
    let cols = cols.max(1);
    for (row, (found, expected)) in found.chunks(cols).zip(expected.chunks(cols)).enumerate() {
        let largest = expected.iter().filter(|e| !e.is_nan()).fold(magnitude, |m, e| m.max(e.abs()));
        for (col, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            if found == expected || (found.is_nan() && expected.is_nan()) {
                continue;
            }
            if found.to_bits() >= POISON_BITS {
                return Err(Failure::Unwritten { what, row, col });
            }
            let error = (found - expected).abs() / largest;
            let error = if error.is_nan() { f32::INFINITY } else { error };
            worst.meet(error, limit);
            if error > limit {
                let (found, expected) = (f64::from(found), f64::from(expected));
                return Err(Failure::Wrong { what, row, col, found, expected, share: share(error, limit) });
            }
        }
    }
    Ok(())
}

fn integers(info: &ValueInfo, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    let ints =
        |bytes: &[u8]| -> Vec<i32> { bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect() };
    let (found, expected) = (ints(found), ints(expected));
    match found.iter().zip(&expected).position(|(f, e)| f != e) {
        None => Ok(()),
        Some(at) => {
            let (row, col) = place_of(info, at);
            let what = OUTPUTS[0];
            if found[at] == -1 {
                return Err(Failure::Unwritten { what, row, col });
            }
            let (found, expected) = (f64::from(found[at]), f64::from(expected[at]));
            Err(Failure::Wrong { what, row, col, found, expected, share: f32::INFINITY })
        }
    }
}

/// Rounded rows against the numbers that they are made from: two right kernels may differ where a number lies half-way
/// between codes.
fn integer_rows(x: &Value, how: RowCodes, found: &[u8], worst: &mut Worst) -> Result<(), Failure> {
    let largest = how.largest() as f32;
    let (cols, limit) = (x.info.cols, tolerance::of(crate::OpKind::QuantizeRows).limit);
    for (row, x) in x.numbers.chunks(cols.max(1)).enumerate() {
        let found = IntRow::new(found, row, cols, how);
        for (g, x) in x.chunks(32).enumerate() {
            let check = |what, col, found: f32, expected: f32, allowed: f32| {
                let error = (found - expected).abs();
                let error = if error.is_nan() { f32::INFINITY } else { error };
                if error > allowed {
                    let share = share(error, allowed);
                    let (found, expected) = (f64::from(found), f64::from(expected));
                    return Err(Failure::Wrong { what, row, col, found, expected, share });
                }
                Ok(share(error, allowed))
            };
            let max = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            let scale = check("scale", g, found.scales[g], max / largest, limit * max / largest)?;
            let codes: i32 = (0..32).map(|i| found.code(g * 32 + i)).sum();
            let expected = found.scales[g] * codes as f32;
            let sum = check("sum", g, found.sums[g], expected, limit * expected.abs())?;
            worst.meet(limit * scale.max(sum), limit);
            for i in 0..32 {
                let step = found.scales[g];
                let code = found.code(g * 32 + i) as f32 * step;
                let x = x.get(i).copied().unwrap_or(0.0);
                // Beside the half step, the quotient and the product are rounded to f32.
                check("code", g * 32 + i, code, x, 0.5001 * step + 2e-7 * x.abs())?;
            }
        }
    }
    Ok(())
}
