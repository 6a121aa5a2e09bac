use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// 0 takes the likeliest token; 1 draws from the model's own distribution.
    pub temperature: f32,
    /// Only the so many likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this likely relative to the likeliest; 0 for all.
    pub min_p: f32,
    /// Divides the positive logits of tokens that have occurred, multiplies the negative ones; 1 for none.
    pub repeat_penalty: f32,
    /// How many of the last tokens `repeat_penalty` looks at.
    pub repeat_last_n: usize,
    /// Taken off a logit for each time its token was generated.
    pub frequency_penalty: f32,
    /// Taken off a logit whose token was generated at all.
    pub presence_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Report log probabilities: of the chosen token and of the so many likeliest.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self::default()
    }

    pub(super) fn changes_logits(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.repeat_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }

    /// Refuses what makes no sense, by name and value.
    pub fn check(&self) -> Result<()> {
        let bad = |option, value: f32, expected| {
            Err(Error::BadOption { option, value: value.to_string(), expected })
        };
        let finite = |x: f32| x.is_finite();
        if !(finite(self.temperature) && self.temperature >= 0.0) {
            return bad("temperature", self.temperature, "0 or more");
        }
        // Below this the division overflows; whoever wants the likeliest token asks for 0.
        if self.temperature > 0.0 && self.temperature < 1e-4 {
            return bad("temperature", self.temperature, "0, or at least 0.0001");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p", self.top_p, "more than 0 and at most 1");
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return bad("min_p", self.min_p, "0 to 1");
        }
        if !(finite(self.repeat_penalty) && self.repeat_penalty > 0.0) {
            return bad("repeat_penalty", self.repeat_penalty, "more than 0");
        }
        if !finite(self.frequency_penalty) {
            return bad("frequency_penalty", self.frequency_penalty, "a finite number");
        }
        if !finite(self.presence_penalty) {
            return bad("presence_penalty", self.presence_penalty, "a finite number");
        }
        if let Some(&(_, bias)) = self.logit_bias.iter().find(|(_, b)| b.is_nan() || *b == f32::INFINITY) {
            return bad("logit_bias", bias, "a number below +inf");
        }
        Ok(())
    }
}
