//! What the commands with gates have in common: which of them run, and how they end.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::report::{self, Row};

/// The flags of a command with gates.
#[derive(clap::Args)]
pub(crate) struct Flags<G: ValueEnum + Send + Sync + 'static> {
    /// Run this gate and no other. May be given several times.
    #[arg(long, value_name = "GATE")]
    only: Vec<G>,
    /// Leave this gate out. May be given several times.
    #[arg(long, value_name = "GATE")]
    skip: Vec<G>,
    /// Write the results to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a gate that was asked for could not be run.
    #[arg(long)]
    require: bool,
}

impl<G: ValueEnum + PartialEq + Send + Sync> Flags<G> {
    /// The gates to run, in their own order.
    pub(crate) fn chosen(&self) -> Vec<G> {
        let wanted =
            |gate: &&G| (self.only.is_empty() || self.only.contains(gate)) && !self.skip.contains(gate);
        G::value_variants().iter().filter(wanted).cloned().collect()
    }

    /// Prints the table, writes what `report` makes where a file was asked for, and says whether all holds.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn end(
        &self,
        rows: &[Row],
        report: impl FnOnce() -> Result<serde_json::Value>,
    ) -> Result<bool> {
        println!("\n{}", report::table(rows));
        if let Some(path) = &self.json {
            let report = report()?;
            fs::write(path, format!("{report:#}\n"))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(report::holds(rows, self.require))
    }

    /// As given on a command line.
    #[cfg(test)]
    pub(crate) fn of(only: &[G], skip: &[G]) -> Self {
        Flags { only: only.to_vec(), skip: skip.to_vec(), json: None, require: false }
    }
}

/// What a gate is called on a command line.
pub(crate) fn name(gate: &impl ValueEnum) -> String {
    gate.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
