//! Two traces of one corpus held against each other: do they choose the same tokens, are their distributions the same,
//! do they give the text the same perplexity?
//!
//! One is the *reference*. A position is *decided* where the reference's likeliest token leads its second by 2.0 or
//! more: there a right computation, whatever its rounding, chooses the same token. `docs/traces.md` explains the gates.

mod identity;
mod position;
mod verdict;

use serde::Serialize;

pub use identity::{Difference, Mismatch};
pub use verdict::{Gate, Verdict};

use super::trace::Trace;
use position::Position;

/// The margins of the sweep.
pub const THRESHOLDS: [f32; 3] = [0.5, 1.0, DECIDED];
/// The margin from which a position is decided.
pub const DECIDED: f32 = 2.0;
/// With fewer decided positions than this nothing is passed.
pub const LEAST_DECIDED: usize = 300;
/// The largest mean KL divergence that passes, in nats.
pub const MOST_MEAN_KL: f64 = 1e-3;
/// The largest difference of perplexity that passes.
pub const MOST_PERPLEXITY_DELTA: f64 = 0.05;
/// The error of a logit that is assumed where none is stated.
pub const DEFAULT_ERROR: f32 = 0.1;
/// The upper ends of the bands into which [`Comparison::margins`] sorts positions.
const BANDS: [f32; 6] = [0.1, 0.5, 1.0, 2.0, 4.0, f32::INFINITY];

/// How two traces are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CompareOptions {
    /// The stated error of a logit. Two logits that are each off by so much can change places where they are less than
    /// twice as far apart, and no farther.
    pub error: f32,
    /// Compare traces of two checkpoints: of one model in two formats, say.
    pub other_checkpoint: bool,
    /// Compare traces with steps of two widths.
    pub other_width: bool,
}

impl Default for CompareOptions {
    fn default() -> Self {
        CompareOptions { error: DEFAULT_ERROR, other_checkpoint: false, other_width: false }
    }
}

/// What two traces have to say of each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// What it comes to.
    pub verdict: Verdict,
    /// The gates, each with its number and its limit.
    pub gates: Vec<Gate>,
    /// Positions compared.
    pub positions: usize,
    /// What the headers have different and may.
    pub differences: Vec<Difference>,
    /// Positions where the likeliest tokens are not the same.
    pub disagreements: usize,
    /// Where the reference's likeliest token stands in the other trace.
    pub ranks: Ranks,
    /// Positions and disagreements by the reference's margin.
    pub margins: Vec<Band>,
    /// The sweep over [`THRESHOLDS`].
    pub sweep: Vec<Decided>,
    /// The largest margin of the reference at a disagreement; none where there is no disagreement.
    pub largest_margin_at_disagreement: Option<f32>,
    /// The stated error of a logit.
    pub error: f32,
    /// Disagreements whose margin is over twice the stated error.
    pub flips_beyond_error: usize,
    /// The largest difference of a logit that both traces have.
    pub largest_logit_difference: f32,
    /// KL divergence of the other trace from the reference.
    pub kl: Kl,
    /// Of the reference.
    pub reference: Text,
    /// Of the other trace.
    pub other: Text,
    /// The other's perplexity less the reference's.
    pub perplexity_delta: f64,
}

/// How many positions have the reference's likeliest token at which rank in the other trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Ranks {
    pub first: usize,
    pub second: usize,
    pub third_to_fifth: usize,
    pub sixth_to_tenth: usize,
    pub beyond: usize,
}

/// Positions whose margin lies in a band.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The least margin.
    pub from: f32,
    /// The margin that is too large; infinite in the last band.
    pub to: f32,
    /// Positions.
    pub positions: usize,
    /// Positions among them where the likeliest tokens are not the same.
    pub disagreements: usize,
}

/// Positions whose margin is at least a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decided {
    /// The threshold.
    pub threshold: f32,
    /// Positions.
    pub decided: usize,
    /// Positions among them where the likeliest tokens are not the same.
    pub disagreements: usize,
}

/// KL divergence, `sum(p * ln(p / q))` with `p` of the reference and `q` of the other, in nats a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kl {
    /// Over all positions.
    pub mean: f64,
    /// The largest of a position.
    pub max: f64,
    /// Over the whole vocabulary. Otherwise the tokens that are not among the kept ones of both traces are one token,
    /// and the number is a lower bound.
    pub exact: bool,
    /// The mean probability, under the reference, of that one token.
    pub rest: f64,
}

/// What a trace says of the text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Text {
    /// Mean negative log-likelihood, in nats a token.
    pub nll: f64,
    /// Its exponential.
    pub perplexity: f64,
}

impl Text {
    fn of(trace: &Trace) -> Self {
        let nll = trace.mean_nll();
        Text { nll, perplexity: nll.exp() }
    }
}

/// Compares a trace with the reference.
///
/// # Errors
/// What makes the two no traces of the same thing.
pub fn compare(
    reference: &Trace,
    other: &Trace,
    options: &CompareOptions,
) -> std::result::Result<Comparison, Vec<Mismatch>> {
    let mismatches = identity::mismatches(reference, other, options);
    if !mismatches.is_empty() {
        return Err(mismatches);
    }
    let all: Vec<Position> =
        (0..reference.positions()).map(|i| Position::compare(reference, other, i)).collect();
    let count = |which: &dyn Fn(&Position) -> bool| all.iter().filter(|p| which(p)).count();
    let (before, after) = (Text::of(reference), Text::of(other));
    let n = all.len().max(1) as f64;
    let mut comparison = Comparison {
        verdict: Verdict::Inconclusive,
        gates: Vec::new(),
        positions: all.len(),
        differences: identity::differences(reference.header(), other.header()),
        disagreements: count(&|p| p.disagrees()),
        ranks: ranks(&all),
        margins: bands(&all),
        sweep: THRESHOLDS
            .iter()
            .map(|&threshold| Decided {
                threshold,
                decided: count(&|p| p.margin >= threshold),
                disagreements: count(&|p| p.margin >= threshold && p.disagrees()),
            })
            .collect(),
        largest_margin_at_disagreement: all
            .iter()
            .filter(|p| p.disagrees())
            .map(|p| p.margin)
            .reduce(f32::max),
        error: options.error,
        flips_beyond_error: count(&|p| p.disagrees() && p.margin > 2.0 * options.error),
        largest_logit_difference: all.iter().map(|p| p.logit_difference).fold(0.0, f32::max),
        kl: Kl {
            mean: all.iter().map(|p| p.kl).sum::<f64>() / n,
            max: all.iter().map(|p| p.kl).fold(0.0, f64::max),
            exact: reference.logits(0).is_some() && other.logits(0).is_some(),
            rest: all.iter().map(|p| p.rest).sum::<f64>() / n,
        },
        reference: before,
        other: after,
        perplexity_delta: after.perplexity - before.perplexity,
    };
    verdict::judge(&mut comparison);
    Ok(comparison)
}

fn ranks(all: &[Position]) -> Ranks {
    let mut ranks = Ranks::default();
    for position in all {
        let count = match position.rank {
            Some(1) => &mut ranks.first,
            Some(2) => &mut ranks.second,
            Some(3..=5) => &mut ranks.third_to_fifth,
            Some(6..=10) => &mut ranks.sixth_to_tenth,
            _ => &mut ranks.beyond,
        };
        *count += 1;
    }
    ranks
}

fn bands(all: &[Position]) -> Vec<Band> {
    let mut from = 0.0;
    BANDS
        .iter()
        .map(|&to| {
            // The last band has no end: a margin is infinite where the reference allows one token alone.
            let within: Vec<&Position> =
                all.iter().filter(|p| p.margin >= from && (p.margin < to || to.is_infinite())).collect();
            let disagreements = within.iter().filter(|p| p.disagrees()).count();
            let band = Band { from, to, positions: within.len(), disagreements };
            from = to;
            band
        })
        .collect()
}
