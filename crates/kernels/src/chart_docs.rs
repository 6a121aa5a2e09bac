//! The chart as people read it: `portolan ports` and docs/ports.md.

use std::fmt::Write;

use portolan_device::DeviceKind;

use crate::{OpKind, chart::slot};

/// A variant of a port, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortVariant {
    /// `plain`, `avx2`, `int8`, ...
    pub name: &'static str,
    /// Fewest and most rows; `usize::MAX` where there is no most.
    pub rows: (usize, usize),
    /// Taken under `--exact`.
    pub exact: bool,
    /// Taken under `--deterministic`.
    pub batch_invariant: bool,
    /// Only under `PORTOLAN_PORT_<OP>=1`.
    pub opt_in: bool,
    /// What it takes.
    pub describe: &'static str,
}

/// A slot of the chart, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRow {
    /// The op.
    pub op: OpKind,
    /// What the op computes.
    pub summary: &'static str,
    /// Has a decomposition, so that an empty slot is no lack.
    pub fused: bool,
    /// The device.
    pub device: DeviceKind,
    /// In the order in which they are tried.
    pub variants: Vec<PortVariant>,
}

/// The whole chart: for each op a row a device. Ignores the environment.
pub fn ports_table() -> Vec<PortRow> {
    let row = |op: OpKind, device| PortRow {
        op,
        summary: op.summary(),
        fused: op.is_fused(),
        device,
        variants: (slot(op, device).iter())
            .map(|v| PortVariant {
                name: v.name,
                rows: v.rows,
                exact: v.exact,
                batch_invariant: v.batch_invariant,
                opt_in: v.opt_in,
                describe: v.describe,
            })
            .collect(),
    };
    OpKind::ALL.into_iter().flat_map(|op| DeviceKind::ALL.map(|device| row(op, device))).collect()
}

impl PortVariant {
    /// `any`, `1`, `2 to 16`, `17 and more`.
    pub fn rows_text(&self) -> String {
        match self.rows {
            (0 | 1, usize::MAX) => "any".to_owned(),
            (few, usize::MAX) => format!("{few} and more"),
            (few, many) if few.max(1) == many => many.to_string(),
            (few, many) => format!("{} to {many}", few.max(1)),
        }
    }

    /// `exact, opt-in`; `-` where there is nothing to say.
    fn flags(&self) -> String {
        let flags =
            [(self.exact, "exact"), (!self.batch_invariant, "not batch-invariant"), (self.opt_in, "opt-in")];
        let flags: Vec<_> = flags.into_iter().filter(|f| f.0).map(|f| f.1).collect();
        if flags.is_empty() { "-".to_owned() } else { flags.join(", ") }
    }
}

/// docs/ports.md.
pub fn ports_md() -> String {
    let table = ports_table();
    let mut text = String::from(
        "# The chart of ports\n\n\
         Generated from the chart in `crates/kernels`; do not edit. `portolan ports` prints the \
         same, for x86-64 as here or for the machine it runs on. On aarch64 the CPU has the same variants in NEON: `neon`, \
         `neon-int15`, `neon-int8`, `neon-f32` and `neon-decoded` where it says `avx2` here, and none of AVX-512.\n\n\
         A cell names the variants of an op on a kind of device, in the order in which they are tried. An empty cell of \
         a *fused* op means that its decomposition runs in its place; an empty cell of a *primitive* means that a \
         model which needs the op is refused on that device.\n\n",
    );
    // Writing to a string cannot fail.
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{args}");
    };
    line(format_args!("| op | kind | {} |", DeviceKind::ALL.map(DeviceKind::name).join(" | ")));
    line(format_args!("|---|---|{}", "---|".repeat(DeviceKind::ALL.len())));
    for op in OpKind::ALL {
        let cells: Vec<String> = (table.iter().filter(|row| row.op == op))
            .map(|row| row.variants.iter().map(|v| v.name).collect::<Vec<_>>().join(", "))
            .collect();
        let kind = if op.is_fused() { "fused" } else { "primitive" };
        line(format_args!("| `{op}`: {} | {kind} | {} |", op.summary(), cells.join(" | ")));
    }
    for device in DeviceKind::ALL {
        let rows: Vec<_> = table.iter().filter(|r| r.device == device && !r.variants.is_empty()).collect();
        if rows.is_empty() {
            continue;
        }
        line(format_args!("\n## {device}\n\n| op | variant | rows | takes | |\n|---|---|---|---|---|"));
        for row in rows {
            for v in &row.variants {
                let (rows, flags) = (v.rows_text(), v.flags());
                line(format_args!("| `{}` | {} | {rows} | {} | {flags} |", row.op, v.name, v.describe));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_words() {
        let of = |rows| PortVariant {
            name: "x",
            rows,
            exact: false,
            batch_invariant: true,
            opt_in: false,
            describe: "",
        };
        for (rows, expected) in [
            ((0, usize::MAX), "any"),
            ((1, 1), "1"),
            ((0, 1), "1"),
            ((2, 16), "2 to 16"),
            ((0, 16), "1 to 16"),
            ((17, usize::MAX), "17 and more"),
        ] {
            assert_eq!(of(rows).rows_text(), expected);
        }
    }

    #[test]
    fn the_chart_as_text_has_every_op_and_variant() {
        let text = ports_md();
        for row in ports_table() {
            assert!(text.contains(&format!("| `{}`: {} |", row.op, row.summary)), "{}", row.op);
            for v in row.variants {
                let line = format!("| `{}` | {} | {} | {} |", row.op, v.name, v.rows_text(), v.describe);
                assert!(text.contains(&line), "{line}");
            }
        }
        let columns = |line: &str| line.matches('|').count();
        let table: Vec<_> =
            text.lines().filter(|l| l.starts_with("| op | kind") || l.contains("`: ")).collect();
        assert!(table.iter().all(|l| columns(l) == 3 + DeviceKind::ALL.len()), "{table:#?}");
    }
}
