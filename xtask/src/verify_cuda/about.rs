//! What the results are of: device, driver, compiler, commit and date.

use std::process::Command;

use portolan::device::{Device, DeviceError, cuda::Compiler};
use serde_json::{Value, json};
use xshell::Shell;

use crate::{commands, report, report::Row, tree};

/// The whole report.
pub(super) fn report(gpu: Result<&Device, &DeviceError>, rows: &[Row]) -> Value {
    let device = match gpu {
        Ok(device) => format!("{} ({})", device.caps().name, device.caps().arch),
        Err(error) => format!("none: {error}"),
    };
    let compiler = match Compiler::open() {
        Ok(compiler) => format!("NVRTC {}.{}", compiler.version().0, compiler.version().1),
        Err(error) => format!("none: {error}"),
    };
    json!({
        "commit": commit(),
        "date": said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).unwrap_or_else(|| "unknown".to_owned()),
        "device": device,
        "driver": said("nvidia-smi", &["--query-gpu=driver_version", "--format=csv,noheader"]),
        "compiler": compiler,
        "gates": report::json(rows),
    })
}

/// The tree's commit; without a tree, the one that this program was built from if the build said so.
fn commit() -> String {
    let built = option_env!("PORTOLAN_COMMIT").unwrap_or("unknown").to_owned();
    let root = tree::root();
    match Shell::new() {
        Ok(sh) if root.is_dir() => {
            sh.change_dir(root);
            Some(commands::commit(&sh)).filter(|commit| commit != "unknown").unwrap_or(built)
        }
        _ => built,
    }
}

/// The first line that a program prints; none if it is not there or fails.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn the_report_says_what_it_is_of() {
        let gpu = Device::cuda(0);
        let rows = [Row { name: "arms".into(), outcome: Outcome::Skipped("no GPU".into()), seconds: 0.0 }];
        let report = report(gpu.as_ref(), &rows);
        assert_eq!(report["gates"][0]["outcome"], "SKIPPED");
        for key in ["commit", "date", "device", "compiler"] {
            assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {report}");
        }
        assert_eq!(report["date"].as_str().map(str::len), Some("2026-01-31T12:00:00Z".len()), "{report}");
    }

    #[test]
    fn a_program_that_is_not_there_says_nothing() {
        assert_eq!(said("no-such-program", &[]), None);
        assert_eq!(said("false", &[]), None);
        assert_eq!(said("echo", &["a b"]).as_deref(), Some("a b"));
    }
}
