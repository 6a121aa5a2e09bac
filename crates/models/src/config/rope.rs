//! The configuration of rope, under both spellings.
//!
//! On the hub: `rope_theta` beside `rope_scaling: {type or rope_type, factor, ...}`. From transformers 5:
//! `rope_parameters: {rope_theta, rope_type, factor, ...}`.

use std::sync::Arc;

use portolan_kernels::rope::{Llama3, RopeFrequencies, Yarn};

use super::{ModelConfig, fields::Fields};
use crate::{ModelError, Result};

/// How frequencies are stretched for contexts longer than the one trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Dynamic NTK.
    Dynamic {
        /// The factor.
        factor: f64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// Llama 3.1's.
    Llama3(Llama3),
    /// A divisor for each frequency, as a GGUF file stores them in `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

/// The configuration of rope.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base.
    pub theta: f64,
    /// Elements of a head that are rotated.
    pub rot: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// The scaling.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    pub(super) fn from_json(
        fields: &Fields<'_>,
        head_dim: usize,
        context: usize,
        default_theta: f64,
    ) -> Result<Self> {
        let newer = fields.object("rope_parameters", "rope_parameters.")?;
        let older = fields.object("rope_scaling", "rope_scaling.")?;
        let theta_of = |f: Option<Fields<'_>>| f.map_or(Ok(None), |f| f.f64("rope_theta"));
        let theta = match theta_of(newer)? {
            Some(theta) => theta,
            None => match fields.f64("rope_theta")? {
                Some(theta) => theta,
                None => theta_of(older)?.unwrap_or(default_theta),
            },
        };
        let partial = match newer.map_or(Ok(None), |f| f.f64("partial_rotary_factor"))? {
            Some(partial) => partial,
            None => fields.f64("partial_rotary_factor")?.unwrap_or(1.0),
        };
        let rot = (head_dim as f64 * partial) as usize;
        let scaling = match newer.or(older) {
            Some(object) => scaling(fields, &object, context)?,
            None => RopeScaling::None,
        };
        Ok(RopeConfig { theta, rot, context, scaling })
    }

    pub(super) fn check(&self, config: &ModelConfig) -> Result<()> {
        if !(self.theta.is_finite() && self.theta > 0.0) {
            return Err(config.bad("rope_theta", self.theta, "a positive number"));
        }
        let factor = match self.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Divisors(ref divisors) => {
                if divisors.len() != self.rot / 2 {
                    let found = format!("{} numbers", divisors.len());
                    return Err(config.bad("rope_freqs.weight", found, self.rot / 2));
                }
                1.0
            }
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => factor,
            RopeScaling::Yarn(ref yarn) => yarn.factor,
            RopeScaling::Llama3(Llama3 { factor, low_freq_factor: low, high_freq_factor: high, .. }) => {
                if !(low > 0.0 && low < high) {
                    let expected = "positive and less than high_freq_factor";
                    return Err(config.bad("low_freq_factor", low, expected));
                }
                factor
            }
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(config.bad(
                "factor",
                factor,
                "a positive number, to divide positions or frequencies by",
            ));
        }
        if let RopeScaling::Yarn(ref yarn) = self.scaling {
            for (field, beta) in [("beta_fast", yarn.beta_fast), ("beta_slow", yarn.beta_slow)] {
                if !(beta.is_finite() && beta > 0.0) {
                    return Err(config.bad(field, beta, "a positive number of rotations"));
                }
            }
        }
        if let RopeScaling::Yarn(Yarn { original_max: 0, .. })
        | RopeScaling::Llama3(Llama3 { original_max: 0, .. }) = self.scaling
        {
            return Err(config.bad("original_max_position_embeddings", 0, "at least 1"));
        }
        let frequencies = self.frequencies();
        if let Some(bad) = frequencies.inv_freq.iter().find(|f| !f.is_finite()) {
            let expected =
                "finite: rope_theta, factor, beta_fast, beta_slow or original_max_position_embeddings is off";
            return Err(config.bad(
                "rope_theta",
                format!("{}, which gives a frequency of {bad}", self.theta),
                expected,
            ));
        }
        // It is squared in a product of q and k; real ones are near 1.
        if !(frequencies.scale > 0.0 && frequencies.scale <= 1e3) {
            let expected =
                "more than 0 and at most 1000, be it given or made of mscale, mscale_all_dim and factor";
            return Err(config.bad("attention_factor", frequencies.scale, expected));
        }
        Ok(())
    }

    /// The frequencies.
    pub fn frequencies(&self) -> Arc<RopeFrequencies> {
        let RopeConfig { theta, rot, context, .. } = *self;
        Arc::new(match self.scaling {
            RopeScaling::None => RopeFrequencies::plain(theta, rot),
            RopeScaling::Linear { factor } => RopeFrequencies::linear(theta, rot, factor),
            RopeScaling::Dynamic { factor } => RopeFrequencies::dynamic(theta, rot, factor, context),
            RopeScaling::Yarn(ref yarn) => RopeFrequencies::yarn(theta, rot, yarn),
            RopeScaling::Llama3(ref llama3) => RopeFrequencies::llama3(theta, rot, llama3),
            RopeScaling::Divisors(ref divisors) => {
                let mut rope = RopeFrequencies::plain(theta, rot);
                rope.inv_freq.iter_mut().zip(divisors).for_each(|(f, d)| *f /= d);
                rope
            }
        })
    }
}

fn scaling(fields: &Fields<'_>, object: &Fields<'_>, context: usize) -> Result<RopeScaling> {
    let kind = match object.str("rope_type")? {
        Some(kind) => kind,
        None => object.str("type")?.unwrap_or("default"),
    };
    let original = match object.usize("original_max_position_embeddings")? {
        Some(original) => Some(original),
        None => fields.usize("original_max_position_embeddings")?,
    };
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: object.need_f64("factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: object.need_f64("factor")? },
        "yarn" => {
            let original_or_context = original.unwrap_or(context);
            RopeScaling::Yarn(Yarn {
                factor: match object.f64("factor")? {
                    Some(factor) => factor,
                    None if original_or_context > 0 => context as f64 / original_or_context as f64,
                    None => return Err(object.missing("factor")),
                },
                original_max: original_or_context,
                beta_fast: object.f64("beta_fast")?.unwrap_or(32.0),
                beta_slow: object.f64("beta_slow")?.unwrap_or(1.0),
                attention_factor: object.f64("attention_factor")?,
                mscale: object.f64("mscale")?,
                mscale_all_dim: object.f64("mscale_all_dim")?,
                truncate: object.bool("truncate")?.unwrap_or(true),
            })
        }
        "llama3" => RopeScaling::Llama3(Llama3 {
            factor: object.need_f64("factor")?,
            low_freq_factor: object.need_f64("low_freq_factor")?,
            high_freq_factor: object.need_f64("high_freq_factor")?,
            original_max: original.ok_or_else(|| object.missing("original_max_position_embeddings"))?,
        }),
        other => {
            return Err(ModelError::UnknownRope { path: fields.path.to_owned(), kind: other.to_owned() });
        }
    })
}
