//! Whether two traces are of the same thing, and what else differs.

use std::fmt;

use serde::Serialize;

use super::CompareOptions;
use crate::tools::trace::{Trace, TraceHeader};

/// Something that two traces must have in common and have not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// What.
    pub what: &'static str,
    /// In the reference.
    pub reference: String,
    /// In the other trace.
    pub other: String,
    /// The flag that lets it pass, where there is one.
    pub flag: Option<&'static str>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in the reference, {} in the other", self.what, self.reference, self.other)?;
        self.flag.map_or(Ok(()), |flag| write!(f, " ({flag} compares them all the same)"))
    }
}

/// Something that two traces may have different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Difference {
    pub what: &'static str,
    pub reference: String,
    pub other: String,
}

pub(super) fn mismatches(reference: &Trace, other: &Trace, options: &CompareOptions) -> Vec<Mismatch> {
    let (a, b) = (reference.header(), other.header());
    let (x, y) = (&a.arguments, &b.arguments);
    let number = |n: usize| n.to_string();
    let corpus = |h: &TraceHeader| format!("{} (sha256 {})", h.corpus.name, h.corpus.sha256);
    let rows = [
        ("corpus", a.corpus.sha256 == b.corpus.sha256, corpus(a), corpus(b), None),
        (
            "checkpoint",
            a.checkpoint_sha256 == b.checkpoint_sha256 || options.other_checkpoint,
            format!("{} ({})", a.model, a.checkpoint_sha256),
            format!("{} ({})", b.model, b.checkpoint_sha256),
            Some("--other-checkpoint"),
        ),
        ("vocabulary", a.vocab == b.vocab, number(a.vocab), number(b.vocab), None),
        ("positions", a.positions == b.positions, number(a.positions), number(b.positions), None),
        (
            "width",
            x.width == y.width || options.other_width,
            number(x.width),
            number(y.width),
            Some("--other-width"),
        ),
        (
            "context before",
            x.context_before == y.context_before,
            number(x.context_before),
            number(y.context_before),
            None,
        ),
        ("window", x.window == y.window, number(x.window), number(y.window), None),
    ];
    rows.into_iter()
        .filter(|row| !row.1)
        .map(|(what, _, reference, other, flag)| Mismatch { what, reference, other, flag })
        .collect()
}

/// What may differ, and is worth a line where it does.
pub(super) fn differences(a: &TraceHeader, b: &TraceHeader) -> Vec<Difference> {
    let (x, y) = (&a.arguments, &b.arguments);
    let ports = |h: &TraceHeader| {
        let list: Vec<String> = h
            .arguments
            .ports
            .iter()
            .map(|(op, open)| format!("{op} {}", if *open { "open" } else { "closed" }))
            .collect();
        if list.is_empty() { "as they are".to_owned() } else { list.join(", ") }
    };
    let device = |h: &TraceHeader| format!("{} ({}, {} units)", h.device.id, h.device.name, h.device.units);
    let rows = [
        ("version", a.version.clone(), b.version.clone()),
        ("commit", a.commit.clone(), b.commit.clone()),
        ("model", a.model.clone(), b.model.clone()),
        ("checkpoint", a.checkpoint_sha256.clone(), b.checkpoint_sha256.clone()),
        ("device", device(a), device(b)),
        ("width", x.width.to_string(), y.width.to_string()),
        ("chunk", x.chunk.to_string(), y.chunk.to_string()),
        ("top", x.top.to_string(), y.top.to_string()),
        ("exact", x.exact.to_string(), y.exact.to_string()),
        ("deterministic", x.deterministic.to_string(), y.deterministic.to_string()),
        ("cache", x.cache.clone(), y.cache.clone()),
        ("ports", ports(a), ports(b)),
    ];
    rows.into_iter()
        .filter(|(_, reference, other)| reference != other)
        .map(|(what, reference, other)| Difference { what, reference, other })
        .collect()
}
