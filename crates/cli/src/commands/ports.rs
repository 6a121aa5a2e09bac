//! `portolan ports`: the chart.

use std::time::Instant;

use portolan::docs;

use crate::{args::PortsArgs, commands::plan, output};

pub(crate) fn run(args: PortsArgs) -> anyhow::Result<()> {
    if let Some(model) = &args.warm {
        let (plan, device) = plan(model, &args.load.options())?;
        let started = Instant::now();
        let count = plan.warm()?;
        let seconds = started.elapsed().as_secs_f64();
        return output::print_now(&format!(
            "{} ({}): {count} kernels are ready, {seconds:.1} s\n",
            device.id(),
            device.caps().name
        ));
    }
    let text = if args.json { format!("{:#}\n", docs::ports_json()) } else { docs::ports_text() };
    output::print_now(&text)
}
