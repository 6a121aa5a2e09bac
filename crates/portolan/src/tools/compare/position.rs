//! Two traces at one position.

use crate::tools::trace::Trace;

/// What two traces say of each other at one position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// How far the reference's likeliest token leads its second.
    pub(super) margin: f32,
    /// Where the reference's likeliest token stands in the other trace, from 1; none beyond what that one kept.
    pub(super) rank: Option<usize>,
    /// KL divergence, or a lower bound of it; see [`super::Kl`].
    pub(super) kl: f64,
    /// Probability, under the reference, of the tokens that count as one.
    pub(super) rest: f64,
    /// The largest difference of a logit that both have.
    pub(super) logit_difference: f32,
}

impl Position {
    /// Compares position `i`, which both traces have.
    pub(super) fn compare(reference: &Trace, other: &Trace, i: usize) -> Self {
        let mut first = reference.top(i).map(|(id, _)| id);
        let likeliest = first.next();
        let rank = other.top(i).position(|(id, _)| Some(id) == likeliest).map(|place| place + 1);
        let (p_sum, q_sum) =
            (reference.log_sum_exp(i).unwrap_or(f64::NAN), other.log_sum_exp(i).unwrap_or(f64::NAN));
        let mut sums = Sums { p_sum, q_sum, ..Default::default() };
        match (reference.logits(i), other.logits(i)) {
            (Some(p), Some(q)) => {
                p.iter().zip(q).for_each(|(&p, &q)| sums.add(p, q));
                sums.whole = true;
            }
            _ => shared(reference, other, i, &mut sums),
        }
        let (kl, rest) = sums.divergence();
        Position { margin: reference.margin(i), rank, kl, rest, logit_difference: sums.difference }
    }

    /// Whether the likeliest tokens are not the same.
    pub(super) fn disagrees(&self) -> bool {
        self.rank != Some(1)
    }
}

/// The tokens that both traces kept: those among the likeliest of both, or of one where the other has all logits.
fn shared(reference: &Trace, other: &Trace, i: usize, sums: &mut Sums) {
    if let Some(all) = other.logits(i) {
        let value = |id: u32| all.get(id as usize).copied();
        reference.top(i).for_each(|(id, p)| value(id).into_iter().for_each(|q| sums.add(p, q)));
    } else if let Some(all) = reference.logits(i) {
        let value = |id: u32| all.get(id as usize).copied();
        other.top(i).for_each(|(id, q)| value(id).into_iter().for_each(|p| sums.add(p, q)));
    } else {
        let mut kept: Vec<(u32, f32)> = other.top(i).collect();
        kept.sort_unstable_by_key(|&(id, _)| id);
        for (id, p) in reference.top(i) {
            let found = kept.binary_search_by_key(&id, |&(id, _)| id).ok().and_then(|at| kept.get(at));
            found.iter().for_each(|&&(_, q)| sums.add(p, q));
        }
    }
}

/// Sums over the tokens that both traces have.
#[derive(Default)]
struct Sums {
    p_sum: f64,
    q_sum: f64,
    kl: f64,
    p: f64,
    q: f64,
    difference: f32,
    whole: bool,
}

impl Sums {
    /// Takes a token's logits in the reference and in the other.
    fn add(&mut self, p: f32, q: f32) {
        if p != q {
            self.difference = self.difference.max((p - q).abs());
        }
        let (log_p, log_q) = (f64::from(p) - self.p_sum, f64::from(q) - self.q_sum);
        let (p, q) = (log_p.exp(), log_q.exp());
        // What is impossible adds nothing, and both may forbid a token.
        if p > 0.0 {
            self.kl += p * (log_p - log_q);
        }
        self.p += p;
        self.q += q;
    }

    /// The divergence, and the reference's probability of what was not added, which counts as one token.
    fn divergence(&self) -> (f64, f64) {
        // Below this a difference of sums near one is rounding and no probability.
        const LEAST: f64 = 1e-12;
        let (p, q) = ((1.0 - self.p).max(0.0), (1.0 - self.q).max(LEAST));
        let rest = if self.whole || p < LEAST { 0.0 } else { p };
        let kl = if rest > 0.0 { self.kl + rest * (rest / q).ln() } else { self.kl };
        // No divergence is negative; a NaN stays one, and fails its gate.
        (if kl < 0.0 { 0.0 } else { kl }, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two distributions given as probabilities, of which the first `kept` tokens are shared.
    #[track_caller]
    fn check(p: &[f64], q: &[f64], kept: usize, expected: (f64, f64)) {
        let mut sums = Sums { whole: kept == p.len(), ..Default::default() };
        p.iter().zip(q).take(kept).for_each(|(p, q)| sums.add(p.ln() as f32, q.ln() as f32));
        let (kl, rest) = sums.divergence();
        // The logarithms went through f32. What is infinite is equal or wrong.
        let close = |found: f64, expected: f64| found == expected || (found - expected).abs() < 1e-6;
        assert!(close(kl, expected.0) && close(rest, expected.1), "{kl}, {rest}, expected {expected:?}");
    }

    #[test]
    fn divergences() {
        let (p, q) = ([0.5, 0.25, 0.125, 0.125], [0.25, 0.5, 0.125, 0.125]);
        let ln2 = std::f64::consts::LN_2;
        check(&p, &p, 4, (0.0, 0.0));
        // 0.5 ln 2 - 0.25 ln 2
        check(&p, &q, 4, (0.25 * ln2, 0.0));
        // The rest is as likely under both, so nothing is lost.
        check(&p, &q, 2, (0.25 * ln2, 0.25));
        // Here it hides all but one token: 0.5 ln 2 + 0.5 ln(0.5 / 0.75).
        check(&p, &q, 1, (0.5 * ln2 + 0.5 * (0.5f64 / 0.75).ln(), 0.5));
        check(&[1.0, 0.0], &[1.0, 0.0], 2, (0.0, 0.0));
        check(&[1.0, 0.0], &[0.5, 0.5], 2, (ln2, 0.0));
        check(&[0.5, 0.5], &[1.0, 0.0], 2, (f64::INFINITY, 0.0));
    }
}
