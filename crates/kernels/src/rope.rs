//! Rotary position embedding: frequencies under every scaling, and the table of a step.
//!
//! The scalings are those of transformers' `modeling_rope_utils`: linear (positions divided by a factor), dynamic
//! NTK (a base that grows with the length), YaRN (arXiv 2309.00071, eq. 22 to 25 and section 3.4), llama3 (low
//! frequencies divided, high ones kept, a ramp between). Where that code computes in f32, so does this: an angle is
//! a position times a frequency, so a last bit of the frequency is a visible one of the logits at a far position.

use std::f64::consts::PI;

/// Dynamic NTK: beyond `max_position` the base grows with the position.
///
/// Engines differ in what "the length" is. Here it is the row's own position plus one, so that a row's
/// rotation depends on nothing but its position: the same in one prefill, in chunks and token by token. That is
/// what transformers computes token by token, and in a prefill that stays within `max_position`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicNtk {
    /// `rope_theta`.
    pub theta: f32,
    /// The scaling factor.
    pub factor: f32,
    /// Positions up to this use the plain frequencies.
    pub max_position: usize,
}

/// YaRN's attributes, as `rope_parameters` has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times longer the context becomes.
    pub factor: f64,
    /// Positions that the model was first trained for (`original_max_position_embeddings`).
    pub original_max: usize,
    /// Rotations within `original_max` above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which it is divided by `factor`.
    pub beta_slow: f64,
    /// With `mscale_all_dim`, the numerator's part of the attention factor.
    pub mscale: Option<f64>,
    /// The denominator's.
    pub mscale_all_dim: Option<f64>,
    /// Factor on cosines and sines; none to work it out from the others.
    pub attention_factor: Option<f64>,
    /// Whether the ramp's ends are rounded to whole pairs (gpt-oss keeps them as they are).
    pub truncate: bool,
}

impl Yarn {
    /// With the paper's `beta_fast` 32 and `beta_slow` 1, whole bounds, and a factor that follows from `factor`.
    pub fn new(factor: f64, original_max: usize) -> Self {
        Yarn {
            factor,
            original_max,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            attention_factor: None,
            truncate: true,
        }
    }

    /// The factor on cosines and sines: `0.1 m ln(factor) + 1`, or the quotient of two such.
    fn attention_scale(&self) -> f64 {
        let mscale = |m: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * m * self.factor.ln() + 1.0 };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(factor), ..) => factor,
            // A zero counts as absent, as in the reference.
            (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => mscale(m) / mscale(all),
            _ => mscale(1.0),
        }
    }

    /// The first and the last pair of the ramp between kept and divided frequencies.
    fn ramp(&self, theta: f64, rot: usize) -> (f64, f64) {
        let pair_at = |rotations: f64| {
            rot as f64 * (self.original_max as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (low, high) = (pair_at(self.beta_fast), pair_at(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        (low.max(0.0), high.min(rot as f64 - 1.0))
    }
}

/// Llama 3's attributes, as `rope_parameters` has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    /// What low frequencies are divided by.
    pub factor: f64,
    /// Rotations within `original_max` up to which a frequency is low.
    pub low_freq_factor: f64,
    /// Rotations from which it is high, and kept.
    pub high_freq_factor: f64,
    /// Positions that the model was first trained for (`original_max_position_embeddings`).
    pub original_max: usize,
}

/// The frequencies of a rope, worked out when the model is built.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Radians a position, for each of the `rot/2` pairs.
    pub inv_freq: Vec<f32>,
    /// Factor on cosines and sines (YaRN's attention factor; else 1).
    pub scale: f32,
    /// Dynamic NTK, where the frequencies depend on the position.
    pub dynamic: Option<DynamicNtk>,
}

/// `theta^(2i/rot)`, correctly rounded from f32 operands.
fn wavelength(theta: f64, i: usize, rot: usize) -> f32 {
    let exponent = (2 * i) as f32 / rot as f32;
    theta.powf(f64::from(exponent)) as f32
}

impl RopeFrequencies {
    /// `theta^(-2i/rot)`.
    pub fn plain(theta: f64, rot: usize) -> Self {
        let inv_freq = (0..rot / 2).map(|i| 1.0 / wavelength(theta, i, rot)).collect();
        RopeFrequencies { inv_freq, scale: 1.0, dynamic: None }
    }

    /// Positions divided by `factor`.
    pub fn linear(theta: f64, rot: usize, factor: f64) -> Self {
        let mut rope = Self::plain(theta, rot);
        rope.inv_freq.iter_mut().for_each(|f| *f /= factor as f32);
        rope
    }

    /// Dynamic NTK: plain up to `max_position`, then with a base that grows; see [`DynamicNtk`].
    pub fn dynamic(theta: f64, rot: usize, factor: f64, max_position: usize) -> Self {
        let dynamic = DynamicNtk { theta: theta as f32, factor: factor as f32, max_position };
        RopeFrequencies { dynamic: Some(dynamic), ..Self::plain(theta, rot) }
    }

    /// YaRN: high frequencies kept, low ones divided by the factor, a ramp over the pairs between.
    pub fn yarn(theta: f64, rot: usize, yarn: &Yarn) -> Self {
        let (low, high) = yarn.ramp(theta, rot);
        // Equal ends would divide by zero.
        let width = (if low == high { 0.001 } else { high - low }) as f32;
        let pair = |i: usize| {
            let wavelength = wavelength(theta, i, rot);
            let kept = 1.0 / wavelength;
            let divided = 1.0 / (yarn.factor as f32 * wavelength);
            let share = 1.0 - ((i as f32 - low as f32) / width).clamp(0.0, 1.0);
            divided * (1.0 - share) + kept * share
        };
        let inv_freq = (0..rot / 2).map(pair).collect();
        RopeFrequencies { inv_freq, scale: yarn.attention_scale() as f32, dynamic: None }
    }

    /// Llama 3's: frequencies of long wavelengths divided by the factor, those of short ones kept, a ramp between.
    pub fn llama3(theta: f64, rot: usize, llama3: &Llama3) -> Self {
        let Llama3 { factor, low_freq_factor, high_freq_factor, original_max } = *llama3;
        let (longest, shortest) =
            (original_max as f64 / low_freq_factor, original_max as f64 / high_freq_factor);
        let mut rope = Self::plain(theta, rot);
        for f in &mut rope.inv_freq {
            let wavelength = (2.0 * PI) as f32 / *f;
            if wavelength > longest as f32 {
                *f /= factor as f32;
            } else if wavelength >= shortest as f32 {
                let rotations = original_max as f32 / wavelength;
                let kept = (rotations - low_freq_factor as f32) / (high_freq_factor - low_freq_factor) as f32;
                *f = (1.0 - kept) * *f / factor as f32 + kept * *f;
            }
        }
        rope
    }

    /// Elements of a head that are rotated.
    pub fn rot(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// Fills a row of the table for a position: `rot/2` cosines, then `rot/2` sines.
    pub fn fill(&self, position: i32, row: &mut [f32]) {
        let (cos, sin) = row.split_at_mut(self.inv_freq.len());
        let base = self.dynamic.and_then(|d| d.base_at(position, self.rot()));
        for (i, &freq) in self.inv_freq.iter().enumerate() {
            let freq = match base {
                Some(base) => 1.0 / wavelength(f64::from(base), i, self.rot()),
                None => freq,
            };
            // The angle is rounded to f32 as in the reference; its sine is then taken exactly.
            let angle = f64::from(position as f32 * freq);
            cos[i] = angle.cos() as f32 * self.scale;
            sin[i] = angle.sin() as f32 * self.scale;
        }
    }
}

impl DynamicNtk {
    /// The base at a position beyond `max_position`; none up to it.
    fn base_at(&self, position: i32, rot: usize) -> Option<f32> {
        let length = position as f32 + 1.0;
        let max = self.max_position as f32;
        if length <= max || rot <= 2 {
            return None;
        }
        let growth = self.factor * length / max - (self.factor - 1.0);
        let power = f64::from(growth).powf(rot as f64 / (rot as f64 - 2.0)) as f32;
        Some(self.theta * power)
    }
}

#[cfg(test)]
#[path = "rope_tests.rs"]
mod tests;
