//! How a gate ends.

/// The end of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It holds. The text says what was looked at.
    Pass(String),
    /// It does not. A line for each finding.
    Fail(Vec<String>),
    /// It could not be looked at here, and why.
    Skipped(String),
}

impl Outcome {
    /// The end of a check that looked at `what` and found these faults.
    pub(crate) fn of(what: impl Into<String>, findings: Vec<String>) -> Self {
        if findings.is_empty() { Self::Pass(what.into()) } else { Self::Fail(findings) }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pass(_) => "PASS",
            Self::Fail(_) => "FAIL",
            Self::Skipped(_) => "SKIPPED",
        }
    }

    /// One line of detail for the table.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Pass(what) => what.clone(),
            Self::Fail(findings) => match findings.as_slice() {
                [] => String::new(),
                [one] => one.clone(),
                [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
            },
            Self::Skipped(reason) => format!("({reason})"),
        }
    }
}
