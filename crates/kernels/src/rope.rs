//! Rotary position embedding: frequencies under every scaling, and the table of a step.
//!
//! The scalings are those of transformers' `modeling_rope_utils`: linear (positions divided by a factor), dynamic
//! NTK (a base that grows with the length), YaRN (arXiv 2309.00071, eq. 22 to 25 and section 3.4), llama3 (low
//! frequencies divided, high ones kept, a ramp between).

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

impl RopeFrequencies {
    /// `theta^(-2i/rot)`.
    pub fn plain(theta: f64, rot: usize) -> Self {
        let inv_freq = (0..rot / 2).map(|i| theta.powf(-((2 * i) as f64) / rot as f64) as f32).collect();
        RopeFrequencies { inv_freq, scale: 1.0, dynamic: None }
    }

    /// Elements of a head that are rotated.
    pub fn rot(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// Fills a row of the table for a position: `rot/2` cosines, then `rot/2` sines.
    pub fn fill(&self, position: i32, row: &mut [f32]) {
        let (cos, sin) = row.split_at_mut(self.inv_freq.len());
        let ratio = self.dynamic.and_then(|d| d.base_at(position, self.rot()));
        for (i, &freq) in self.inv_freq.iter().enumerate() {
            let freq = match ratio {
                Some(base) => base.powf(-((2 * i) as f64) / self.rot() as f64) as f32,
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
    fn base_at(&self, position: i32, rot: usize) -> Option<f64> {
        let length = f64::from(position) + 1.0;
        let max = self.max_position as f64;
        if length <= max || rot <= 2 {
            return None;
        }
        let factor = f64::from(self.factor);
        let growth = factor * length / max - (factor - 1.0);
        Some(f64::from(self.theta) * growth.powf(rot as f64 / (rot as f64 - 2.0)))
    }
}
