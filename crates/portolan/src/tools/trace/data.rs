//! A trace in memory, and how it is made from logits.

use std::cmp::Ordering;

use super::header::{TraceHeader, corpus_sha256};
use crate::{Error, Result};

/// A trace: of each position the likeliest tokens with their logits, the log-sum-exp of all logits, and the logit of the
/// token that truly follows.
///
/// One that exists is whole: its lists have the lengths that its header says, its numbers are numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub(super) header: TraceHeader,
    pub(super) tokens: Vec<u32>,
    pub(super) top_ids: Vec<u32>,
    pub(super) top_logits: Vec<f32>,
    pub(super) log_sum_exp: Vec<f64>,
    pub(super) next_logits: Vec<f32>,
    pub(super) logits: Option<Vec<f32>>,
}

impl Trace {
    /// The head.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Positions scored.
    pub fn positions(&self) -> usize {
        self.header.positions
    }

    /// The tokens that were given, `[context_before + positions + 1]`. Position `i` is the row of token
    /// `context_before + i`, and the token behind it is its target.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The target of a position; none past the last position, as with all that follow.
    pub fn next(&self, position: usize) -> Option<u32> {
        (position < self.positions()).then_some(())?;
        self.tokens.get(self.header.arguments.context_before + position + 1).copied()
    }

    /// The likeliest tokens of a position with their logits, likeliest first, the lower id first among equals.
    pub fn top(&self, position: usize) -> impl Iterator<Item = (u32, f32)> {
        let k = self.header.arguments.top;
        let ids = self.top_ids.chunks(k.max(1)).nth(position).unwrap_or_default();
        let logits = self.top_logits.chunks(k.max(1)).nth(position).unwrap_or_default();
        ids.iter().copied().zip(logits.iter().copied())
    }

    /// All logits of a position, `[vocab]`, where the trace has them.
    pub fn logits(&self, position: usize) -> Option<&[f32]> {
        self.logits.as_ref()?.chunks(self.header.vocab.max(1)).nth(position)
    }

    /// `ln(sum(exp(logit)))` over the vocabulary at a position.
    pub fn log_sum_exp(&self, position: usize) -> Option<f64> {
        self.log_sum_exp.get(position).copied()
    }

    /// Negative natural logarithm of the probability of a position's target.
    pub fn nll(&self, position: usize) -> Option<f64> {
        Some(self.log_sum_exp.get(position)? - f64::from(*self.next_logits.get(position)?))
    }

    /// The mean of [`Trace::nll`] over all positions.
    pub fn mean_nll(&self) -> f64 {
        let sum: f64 = (0..self.positions()).filter_map(|i| self.nll(i)).sum();
        sum / self.positions().max(1) as f64
    }

    /// How far the likeliest token of a position leads the second; infinite where nothing else is possible.
    pub fn margin(&self, position: usize) -> f32 {
        let mut top = self.top(position).map(|(_, logit)| logit);
        match (top.next(), top.next()) {
            (Some(first), Some(second)) => first - second,
            _ => f32::INFINITY,
        }
    }

    /// What is wrong with it, in words, for a file that was read.
    pub(super) fn check(&self) -> Result<(), String> {
        let TraceHeader { vocab, positions, .. } = self.header;
        let beyond = |ids: &[u32]| ids.iter().copied().find(|&id| id as usize >= vocab);
        if let Some(id) = beyond(&self.tokens).or(beyond(&self.top_ids)) {
            return Err(format!("token id {id} is outside the vocabulary of {vocab}"));
        }
        if self.header.corpus.sha256 != corpus_sha256(&self.tokens) {
            return Err("the tokens are not those whose sha256 the header has".to_owned());
        }
        let bad = |l: &f32| l.is_nan() || *l == f32::INFINITY;
        let all = self.logits.iter().flatten();
        if self.top_logits.iter().chain(&self.next_logits).chain(all).any(bad) {
            return Err("a logit is NaN or +inf".to_owned());
        }
        for position in 0..positions {
            let Some(sum) = self.log_sum_exp(position) else { continue };
            let mut top = self.top(position).map(|(_, logit)| logit);
            let first = top.next().unwrap_or(f32::NEG_INFINITY);
            // The sum holds at least its largest term, and at most `vocab` of its size.
            let most = f64::from(first) + (vocab as f64).ln() + 1e-3;
            if !sum.is_finite() || sum < f64::from(first) - 1e-6 || sum > most {
                return Err(format!("position {position}: log_sum_exp is {sum}, the largest logit {first}"));
            }
            let mut last = first;
            for logit in top {
                if logit > last {
                    return Err(format!("position {position}: the likeliest tokens are out of order"));
                }
                last = logit;
            }
            let mut ids: Vec<u32> = self.top(position).map(|(id, _)| id).collect();
            ids.sort_unstable();
            if ids.windows(2).any(|pair| pair.first() == pair.last()) {
                return Err(format!("position {position}: a token is twice among the likeliest"));
            }
        }
        Ok(())
    }
}

/// Makes a trace from logits, position by position.
#[derive(Debug)]
pub struct Recorder {
    trace: Trace,
    done: usize,
    order: Vec<u32>,
}

impl Recorder {
    /// For the positions that the header says. `tokens` are those of [`Trace::tokens`]; the hash and the number of the
    /// corpus are filled in from them. With `full`, all logits are kept as well.
    ///
    /// # Errors
    /// Tokens that do not fit the header.
    pub fn new(mut header: TraceHeader, tokens: Vec<u32>, full: bool) -> Result<Self> {
        let rows =
            header.arguments.context_before.checked_add(header.positions).and_then(|n| n.checked_add(1));
        if rows != Some(tokens.len()) || header.positions == 0 || header.vocab == 0 {
            return Err(Error::Internal { what: "a trace's header does not fit its tokens" });
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= header.vocab) {
            return Err(Error::BadToken { id, vocab: header.vocab });
        }
        header.arguments.top = header.arguments.top.clamp(1, header.vocab);
        header.corpus.sha256 = corpus_sha256(&tokens);
        header.corpus.tokens = tokens.len();
        let trace = Trace {
            header,
            tokens,
            top_ids: Vec::new(),
            top_logits: Vec::new(),
            log_sum_exp: Vec::new(),
            next_logits: Vec::new(),
            logits: full.then(Vec::new),
        };
        Ok(Recorder { trace, done: 0, order: Vec::new() })
    }

    /// Takes the logits of the next position, `[vocab]`, none of them NaN or +inf.
    ///
    /// # Errors
    /// A row of another length, or one too many.
    pub fn push(&mut self, logits: &[f32]) -> Result<()> {
        let trace = &mut self.trace;
        let next = trace.next(self.done).and_then(|id| logits.get(id as usize));
        let (Some(&next), true) = (next, logits.len() == trace.header.vocab) else {
            return Err(Error::Internal { what: "a trace was given a row that it has no place for" });
        };
        let value = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let likelier =
            |a: &u32, b: &u32| value(b).partial_cmp(&value(a)).unwrap_or(Ordering::Equal).then(a.cmp(b));
        let k = trace.header.arguments.top;
        self.order.clear();
        self.order.extend(0..logits.len() as u32);
        if k < self.order.len() {
            self.order.select_nth_unstable_by(k - 1, likelier);
            self.order.truncate(k);
        }
        self.order.sort_unstable_by(likelier);
        trace.top_ids.extend_from_slice(&self.order);
        trace.top_logits.extend(self.order.iter().map(value));
        trace.log_sum_exp.push(log_sum_exp(logits));
        trace.next_logits.push(next);
        if let Some(all) = &mut trace.logits {
            all.extend_from_slice(logits);
        }
        self.done += 1;
        Ok(())
    }

    /// The trace.
    ///
    /// # Errors
    /// Positions that were not given.
    pub fn finish(self) -> Result<Trace> {
        if self.done != self.trace.header.positions {
            return Err(Error::Internal { what: "a trace was finished before its last position" });
        }
        Ok(self.trace)
    }
}

/// In f64 to the end: probabilities of a trace are taken from it, and what they lack to one is a difference.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}
