//! A checkpoint of any dialect as an MLX checkpoint: a folder that mlx-lm and Portolan open.
//!
//! [`ConvertPlan::new`] reads headers and says of every tensor what will become of it; [`ConvertPlan::run`] does it,
//! tensor by tensor, into a folder beside the destination that gets its name at the end. docs/convert.md has the rules.

mod choose;
mod config;
mod folder;
mod items;
mod options;
mod plan;
#[cfg(test)]
mod tests;
mod texts;
mod write;

pub use choose::How;
pub use options::{ConvertOptions, Keep, QuantMode};
pub use plan::{ConvertPlan, PlanRow};
