//! The gates, and what they come to.

use serde::Serialize;

use super::{Comparison, DECIDED, LEAST_DECIDED, MOST_MEAN_KL, MOST_PERPLEXITY_DELTA};

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every gate is passed, on enough decided positions.
    Pass,
    /// A gate is not passed.
    Fail,
    /// Every gate is passed, but too few positions are decided to conclude anything from it.
    Inconclusive,
}

impl Verdict {
    /// `pass`, `fail`, `inconclusive`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

/// A number with the most that it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// `decided_disagreements`, `mean_kl`, `perplexity_delta`, `flips_beyond_error`.
    pub name: &'static str,
    /// The number.
    pub value: f64,
    /// The most that passes.
    pub limit: f64,
    /// Whether it passes. A value that is no number does not.
    pub pass: bool,
}

/// Fills in gates and verdict.
pub(super) fn judge(comparison: &mut Comparison) {
    let decided = comparison.sweep.iter().find(|row| row.threshold == DECIDED);
    let (decided, disagreements) = decided.map_or((0, 0), |row| (row.decided, row.disagreements));
    comparison.gates = [
        ("decided_disagreements", disagreements as f64, 0.0),
        ("mean_kl", comparison.kl.mean, MOST_MEAN_KL),
        ("perplexity_delta", comparison.perplexity_delta.abs(), MOST_PERPLEXITY_DELTA),
        ("flips_beyond_error", comparison.flips_beyond_error as f64, 0.0),
    ]
    .into_iter()
    .map(|(name, value, limit)| Gate { name, value, limit, pass: value <= limit })
    .collect();
    // What is seen to be wrong is wrong, on however few positions; what is not seen on few positions proves nothing.
    comparison.verdict = if !comparison.gates.iter().all(|gate| gate.pass) {
        Verdict::Fail
    } else if decided < LEAST_DECIDED {
        Verdict::Inconclusive
    } else {
        Verdict::Pass
    };
}
