//! `portolan ports`: the chart.

use portolan::docs;

use crate::{args::PortsArgs, output};

pub(crate) fn run(args: PortsArgs) -> anyhow::Result<()> {
    let text = if args.json { format!("{:#}\n", docs::ports_json()) } else { docs::ports_text() };
    output::print_now(&text)
}
