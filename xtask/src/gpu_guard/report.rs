//! What happened, for people and as JSON.

use serde_json::{Value, json};

use super::{VOID, users::User};

/// A command that was run.
#[derive(Debug, PartialEq)]
pub(super) struct Run {
    pub(super) command: Vec<String>,
    pub(super) status: u8,
    pub(super) seconds: f64,
}

/// The whole.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    /// Seconds of idleness that were asked for.
    pub(super) idle_secs: u64,
    /// Seconds until they had passed.
    pub(super) waited: f64,
    pub(super) runs: Vec<Run>,
    /// Who used a GPU meanwhile.
    pub(super) intruder: Option<User>,
}

impl Report {
    /// That of a void run, else of the first command that failed, else 0.
    pub(super) fn status(&self) -> u8 {
        match &self.intruder {
            Some(_) => VOID,
            None => self.runs.iter().map(|run| run.status).find(|status| *status != 0).unwrap_or(0),
        }
    }

    pub(super) fn json(&self) -> Value {
        let run = |run: &Run| json!({"command": run.command, "status": run.status, "seconds": run.seconds});
        let user = |user: &User| json!({"pid": user.pid, "name": user.name, "seen_by": user.seen_by});
        json!({
            "outcome": if self.intruder.is_some() { "VOID" } else { "UNDISTURBED" },
            "intruder": self.intruder.as_ref().map(user),
            "idle_secs": self.idle_secs,
            "waited_secs": self.waited,
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_run_is_void_whatever_its_status() {
        let run = |status| Run { command: vec!["x".into()], status, seconds: 1.0 };
        let user = || User { pid: 7, name: "other".into(), seen_by: "KFD" };
        for (statuses, intruder, want) in [
            (vec![0], None, 0),
            (vec![0, 5], None, 5),
            (vec![4, 5], None, 4),
            (vec![0], Some(user()), 3),
            (vec![5], Some(user()), 3),
        ] {
            let runs = statuses.iter().map(|s| run(*s)).collect();
            let report = Report { idle_secs: 1, waited: 1.0, runs, intruder };
            assert_eq!(report.status(), want, "{report:?}");
            let json = report.json();
            assert_eq!(json["outcome"], if want == 3 { "VOID" } else { "UNDISTURBED" });
            assert_eq!(json["runs"].as_array().map(Vec::len), Some(statuses.len()));
            assert_eq!(json["intruder"]["pid"], if want == 3 { json!(7) } else { Value::Null });
        }
    }
}
