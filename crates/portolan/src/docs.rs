//! Pages of docs/ that are generated from tables in the code, so that they cannot drift.

use std::fmt::Write;

use portolan_device::{
    DeviceKind,
    env::{VarType, table},
};
use portolan_kernels::OpKind;
use serde_json::{Value, json};

/// docs/environment.md.
pub fn environment_md() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/device/src/env.rs by `cargo xtask gendocs`. Do not edit. -->\n\n\
         # Environment variables\n\n\
         A flag wins over a variable. A switch is off under `0`, `false`, `off`, `no`, and on under `1`, `true`, \
         `on`, `yes`.\nA `PORTOLAN_` variable that is not in this table gets a warning.\n\n\
         | variable | type | default | meaning |\n|---|---|---|---|\n",
    );
    for var in table() {
        let kind = match var.kind {
            VarType::Switch => "switch",
            VarType::Number => "number",
            VarType::Path => "path",
            VarType::Text => "text",
        };
        let _ = writeln!(page, "| `{}` | {kind} | {} | {} |", var.name, var.default, var.meaning);
    }
    page
}

/// docs/ports.md.
pub fn ports_md() -> String {
    portolan_kernels::ports_md()
}

/// The port chart for a terminal: for each op a line a device, `-` for an empty slot.
pub fn ports_text() -> String {
    let table = portolan_kernels::ports_table();
    let mut out = format!("{:<17} {:<10} {:<7} ports, best first\n", "op", "kind", "device");
    for op in OpKind::ALL {
        let (mut name, mut kind) = (op.name(), if op.is_fused() { "fused" } else { "primitive" });
        for device in DeviceKind::ALL {
            let row = table.iter().find(|row| row.op == op && row.device == device);
            let names: Vec<&str> = row.map_or_else(Vec::new, |r| r.variants.iter().map(|v| v.name).collect());
            let names = if names.is_empty() { "-".to_owned() } else { names.join(", ") };
            let _ = writeln!(out, "{name:<17} {kind:<10} {:<7} {names}", device.name());
            (name, kind) = ("", "");
        }
    }
    out.push_str("\nA fused op without a port is taken apart; a primitive without one is refused at plan.\n");
    out
}

/// The port chart as JSON: a list with an entry an op and device.
pub fn ports_json() -> Value {
    portolan_kernels::ports_table()
        .iter()
        .map(|row| {
            let variants: Vec<Value> = row
                .variants
                .iter()
                .map(|v| {
                    json!({"name": v.name, "rows": v.rows_text(), "exact": v.exact, "opt_in": v.opt_in,
                           "batch_invariant": v.batch_invariant, "takes": v.describe})
                })
                .collect();
            json!({"op": row.op.name(), "device": row.device.name(), "fused": row.fused,
                   "has_kernel_port": !row.variants.is_empty(), "summary": row.summary, "variants": variants})
        })
        .collect()
}
