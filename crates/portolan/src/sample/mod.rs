//! Choosing the next token from logits.
//!
//! In this order: logit bias, penalties, then argmax at temperature 0; else temperature, min-p, top-k, top-p, and
//! a draw. The draw is a function of the seed and the token's index alone, so a request gives the same text again
//! whoever shares its batch.

mod params;
mod philox;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use params::SamplingParams;
pub use philox::{philox4x32, uniform};

use crate::{Error, Result};

/// A token with the logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under the model, before temperature and filters.
    pub logprob: f32,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Its log probability, where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, where asked for, likeliest first.
    pub top: Vec<TokenLogprob>,
}

/// Chooses the tokens of one request. Its buffers are reused from token to token.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    logits: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler; refuses parameters that make no sense.
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.check()?;
        Ok(Sampler { params, logits: Vec::new(), candidates: Vec::new() })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the next token. `prompt` and `generated` are the tokens so far.
    pub fn sample(&mut self, logits: &[f32], prompt: &[u32], generated: &[u32]) -> Result<Sampled> {
        check_finite(logits, prompt.len() + generated.len())?;
        let mut sampled = Sampled { id: 0, logprob: None, top: Vec::new() };
        if self.params.changes_logits() {
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            self.bias();
            self.penalize(prompt, generated);
            if self.logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
                return Err(Error::BadOption {
                    option: "logit_bias",
                    value: "-inf for every token that the model allows".to_owned(),
                    expected: "a token that is left to choose",
                });
            }
            let changed = std::mem::take(&mut self.logits);
            sampled.id = self.choose(&changed, generated.len() as u64);
            self.logits = changed;
        } else {
            sampled.id = self.choose(logits, generated.len() as u64);
        }
        if let Some(n) = self.params.logprobs {
            let log_sum = log_sum_exp(logits);
            sampled.logprob = logits.get(sampled.id as usize).map(|l| l - log_sum);
            sampled.top = self.top_logprobs(logits, n, log_sum);
        }
        Ok(sampled)
    }

    fn bias(&mut self) {
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = self.logits.get_mut(id as usize) {
                *logit = if bias == f32::NEG_INFINITY { bias } else { kept(*logit, *logit + bias) };
            }
        }
    }

    /// Repetition (CTRL, arXiv 1909.05858) looks at prompt and text, frequency and presence at the text alone.
    fn penalize(&mut self, prompt: &[u32], generated: &[u32]) {
        let SamplingParams { repeat_penalty, frequency_penalty, presence_penalty, repeat_last_n, .. } =
            self.params;
        if repeat_penalty != 1.0 {
            let all = prompt.iter().chain(generated);
            let skip = (prompt.len() + generated.len()).saturating_sub(repeat_last_n);
            let mut seen: Vec<u32> = all.skip(skip).copied().collect();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(logit) = self.logits.get_mut(id as usize) {
                    let penalized =
                        if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
                    *logit = kept(*logit, penalized);
                }
            }
        }
        if frequency_penalty != 0.0 || presence_penalty != 0.0 {
            let mut counts: HashMap<u32, u32> = HashMap::new();
            for &id in generated {
                *counts.entry(id).or_default() += 1;
            }
            for (id, count) in counts {
                if let Some(logit) = self.logits.get_mut(id as usize) {
                    // In f64 no product or sum of f32 overflows.
                    let penalty =
                        f64::from(frequency_penalty) * f64::from(count) + f64::from(presence_penalty);
                    *logit = kept(*logit, (f64::from(*logit) - penalty) as f32);
                }
            }
        }
    }

    fn choose(&mut self, logits: &[f32], index: u64) -> u32 {
        if self.params.temperature == 0.0 || self.params.top_k == 1 {
            return argmax(logits);
        }
        self.filter(logits);
        let candidates = &self.candidates;
        let total: f64 = candidates.iter().map(|&(_, p)| f64::from(p)).sum();
        let mut left = uniform(self.params.seed, index) * total;
        for &(id, p) in candidates {
            left -= f64::from(p);
            if left < 0.0 {
                return id;
            }
        }
        // Rounding can leave a crumb; it belongs to the last candidate.
        candidates.last().map_or_else(|| argmax(logits), |&(id, _)| id)
    }

    /// Leaves in `candidates` the tokens that may be drawn, likeliest first, with weights relative to the first.
    /// Ties are broken by id, so that the order never depends on a sort's whims.
    fn filter(&mut self, logits: &[f32]) {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = 1.0 / temperature;
        // Anything below this weight is lost in the sum's rounding; leaving it out spares the sort most of the
        // vocabulary.
        let least = min_p.max(1e-9);
        self.candidates.clear();
        self.candidates.extend(
            logits
                .iter()
                .enumerate()
                .map(|(id, &logit)| (id as u32, ((logit - max) * scale).exp()))
                .filter(|&(_, p)| p >= least),
        );
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, order);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(order);
        if top_p < 1.0 {
            let total: f64 = self.candidates.iter().map(|&(_, p)| f64::from(p)).sum();
            let mut sum = 0.0;
            let keep = self.candidates.iter().position(|&(_, p)| {
                sum += f64::from(p);
                sum >= f64::from(top_p) * total
            });
            self.candidates.truncate(keep.map_or(usize::MAX, |last| last + 1));
        }
    }

    fn top_logprobs(&self, logits: &[f32], n: usize, log_sum: f32) -> Vec<TokenLogprob> {
        let n = n.min(logits.len());
        if n == 0 {
            return Vec::new();
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        ids.select_nth_unstable_by(n - 1, order);
        ids.truncate(n);
        ids.sort_unstable_by(order);
        ids.into_iter().map(|id| TokenLogprob { id, logprob: logits[id as usize] - log_sum }).collect()
    }
}

/// A logit that a penalty or a finite bias changed from `before`: however large, it forbids nothing, and a token that
/// was forbidden stays so.
fn kept(before: f32, changed: f32) -> f32 {
    if before == f32::NEG_INFINITY { before } else { changed.clamp(f32::MIN, f32::MAX) }
}

/// The smallest index of the largest element.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// `ln(sum(exp(x)))`, in f64 inside.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    max + sum.ln() as f32
}

/// A model's logits are numbers. To forbid a token is the bias's affair, so -inf is a fault as well.
pub(crate) fn check_finite(logits: &[f32], position: usize) -> Result<()> {
    let what = match logits.iter().find(|logit| !logit.is_finite()) {
        None if logits.is_empty() => "there are none",
        None => return Ok(()),
        Some(bad) if bad.is_nan() => "NaN",
        Some(bad) if *bad > 0.0 => "+inf",
        Some(_) => "-inf",
    };
    Err(Error::BadLogits { position, what })
}
