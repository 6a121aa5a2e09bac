//! Every field that a family reads from `config.json`, with every value that it should not have: an error that names the
//! file and the field, or a tensor that shows the fault; or a model that works. Never a panic.

use std::{fs, path::Path};

use portolan_testkit::{Tensors, tiny};
use serde_json::{Value, json};

use crate::support::Trial;

/// As they stand in the text, some of which no JSON library would write.
const VALUES: &[&str] = &[
    "null",
    "0",
    "-1",
    "1",
    "2",
    "7",
    "64.0",
    "0.5",
    "1e-300",
    "1e300",
    "1e999",
    "Infinity",
    "NaN",
    "16777216",
    "1099511627776",
    "9223372036854775808",
    "18446744073709551616",
    "\"x\"",
    "\"\"",
    "true",
    "false",
    "[]",
    "[1, \"x\", null]",
    "{}",
    "{\"rope_type\": 7}",
    "{\"bits\": 7, \"group_size\": -1}",
];

/// Writes `config.json` with this text as the value of the field.
fn write(folder: &Path, config: &Value, field: &str, value: &str) {
    const HERE: &str = "@here@";
    let mut config = config.clone();
    *config.pointer_mut(field).unwrap() = HERE.into();
    let text = config.to_string().replace(&format!("\"{HERE}\""), value);
    fs::write(folder.join("config.json"), text).unwrap();
}

fn config_json(family: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy(family, folder);
    let good: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut trial = Trial::new(Tensors::open(folder.join("model.safetensors")).names());
    for &field in tiny::CONFIG_FIELDS {
        let mut config = good.clone();
        config.as_object_mut().unwrap().remove(field);
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        trial.run(folder, field, || format!("{family} without {field}"));
        config[field] = Value::Null;
        for value in VALUES {
            write(folder, &config, &format!("/{field}"), value);
            let named = if *value == "1e999" { "number out of range" } else { field };
            trial.run(folder, named, || format!("{family}, {field} = {value}"));
        }
    }
    trial.end(150);
}

#[test]
fn config_json_of_llama() {
    config_json("llama");
}

#[test]
fn config_json_of_mistral() {
    config_json("mistral");
}

#[test]
fn config_json_of_qwen2() {
    config_json("qwen2");
}

#[test]
fn config_json_of_qwen3() {
    config_json("qwen3");
}

#[test]
fn config_json_of_smollm3() {
    config_json("smollm3");
}

#[test]
fn rope_of_config_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("qwen3", folder);
    let good: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut trial = Trial::new(Tensors::open(folder.join("model.safetensors")).names());
    let (older, newer) = ("rope_scaling", "rope_parameters");
    for (object, kind) in [(older, "linear"), (newer, "dynamic"), (newer, "yarn"), (older, "llama3")] {
        for &field in tiny::ROPE_FIELDS {
            let mut config = good.clone();
            config[object] = json!({"rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
            config[object][field] = Value::Null;
            for value in VALUES {
                write(folder, &config, &format!("/{object}/{field}"), value);
                let named = if *value == "1e999" { "number out of range" } else { field };
                trial.run(folder, named, || format!("{object} {kind}, {field} = {value}"));
            }
        }
    }
    trial.end(300);
}
