//! What the results are of: device, driver, compiler, commit and date.

use portolan::device::{Device, DeviceError, cuda::Compiler};
use serde_json::{Value, json};

use crate::{
    about::{commit, date, said},
    report,
    report::Row,
};

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
        "date": date(),
        "device": device,
        "driver": said("nvidia-smi", &["--query-gpu=driver_version", "--format=csv,noheader"]),
        "compiler": compiler,
        "gates": report::json(rows),
    })
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
}
