//! `quantization` in the config of an MLX checkpoint.
//!
//! Overrides are keyed by the module's path as the file has it; nothing is renamed before they are looked up.

use std::collections::BTreeMap;

use serde_json::Value;

/// How MLX packs a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Affine,
    MxFp4,
    MxFp8,
    NvFp4,
}

impl Mode {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "affine" => Mode::Affine,
            "mxfp4" => Mode::MxFp4,
            "mxfp8" => Mode::MxFp8,
            "nvfp4" => Mode::NvFp4,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::MxFp4 => "mxfp4",
            Mode::MxFp8 => "mxfp8",
            Mode::NvFp4 => "nvfp4",
        }
    }

    /// Bits and group where the config gives none (or null); for the small floats there is no other choice.
    fn defaults(self) -> (usize, usize) {
        match self {
            Mode::Affine => (4, 64),
            Mode::MxFp4 => (4, 32),
            Mode::MxFp8 => (8, 32),
            Mode::NvFp4 => (4, 16),
        }
    }
}

/// Mode, bits and group of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    pub(crate) mode: Mode,
    pub(crate) bits: usize,
    pub(crate) group: usize,
}

/// What the config says of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Override {
    /// `false`: not quantized.
    Dense,
    Packed(Packing),
}

/// The default and the overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuantConfig {
    pub(crate) default: Option<Packing>,
    overrides: BTreeMap<String, Override>,
}

impl QuantConfig {
    /// From a parsed `config.json`. An error is the key and what is wrong with its value.
    pub(crate) fn parse(config: &Value) -> Result<Self, (String, String)> {
        let own = config.get("quantization").filter(|q| q.is_object());
        // With a `quant_method` it describes another toolkit's format (GPTQ, FP8, ...), not MLX's.
        let shared = config.get("quantization_config").filter(|q| q.get("quant_method").is_none());
        let Some(Value::Object(fields)) = own.or(shared) else {
            return Ok(QuantConfig::default());
        };
        let mut parsed =
            QuantConfig { default: packing("quantization", fields)?, overrides: BTreeMap::new() };
        for (key, value) in fields {
            let over = match value {
                Value::Object(fields) => match packing(key, fields)? {
                    Some(packing) => Override::Packed(packing),
                    None => continue,
                },
                Value::Bool(false) => Override::Dense,
                // `true` is the default again; anything else is one of the default's own fields.
                _ => continue,
            };
            parsed.overrides.insert(key.clone(), over);
        }
        Ok(parsed)
    }

    /// The override for a module, by its path in the file.
    pub(crate) fn override_of(&self, module: &str) -> Option<Override> {
        self.overrides.get(module).copied()
    }
}

fn packing(key: &str, fields: &serde_json::Map<String, Value>) -> Result<Option<Packing>, (String, String)> {
    let bad = |field: &str, value: &Value| (key.to_owned(), format!("{field} is {value} in the config"));
    let number = |field: &str| match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|&n| (1..=4096).contains(&n)) {
            Some(n) => Ok(Some(n as usize)),
            None => Err(bad(field, value)),
        },
    };
    let mode = match fields.get("mode") {
        None | Some(Value::Null) => Mode::Affine,
        Some(value) => match value.as_str().and_then(Mode::parse) {
            Some(mode) => mode,
            None => return Err(bad("mode", value)),
        },
    };
    let (bits, group) = (number("bits")?, number("group_size")?);
    if bits.is_none() && group.is_none() && !fields.contains_key("mode") {
        return Ok(None);
    }
    let (default_bits, default_group) = mode.defaults();
    Ok(Some(Packing { mode, bits: bits.unwrap_or(default_bits), group: group.unwrap_or(default_group) }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const fn packed(mode: Mode, bits: usize, group: usize) -> Option<Override> {
        Some(Override::Packed(Packing { mode, bits, group }))
    }

    #[test]
    fn overrides() {
        let config = QuantConfig::parse(&json!({"quantization": {
            "group_size": 32, "bits": 4, "mode": "mxfp4",
            "a.router": {"group_size": 64, "bits": 8},
            "b": {"group_size": null, "bits": 6},
            "c": false,
            "d": true,
            "e": {"mode": "nvfp4"},
        }}))
        .unwrap();
        assert_eq!(config.default, Some(Packing { mode: Mode::MxFp4, bits: 4, group: 32 }));
        assert_eq!(config.override_of("a.router"), packed(Mode::Affine, 8, 64));
        assert_eq!(config.override_of("b"), packed(Mode::Affine, 6, 64));
        assert_eq!(config.override_of("c"), Some(Override::Dense));
        assert_eq!(config.override_of("d"), None);
        assert_eq!(config.override_of("e"), packed(Mode::NvFp4, 4, 16));
        assert_eq!(config.override_of("f"), None);
    }

    #[test]
    fn other_toolkits_are_not_mlx() {
        let gptq = json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}});
        assert_eq!(QuantConfig::parse(&gptq), Ok(QuantConfig::default()));
        let shared = json!({"quantization_config": {"bits": 4, "group_size": 128}});
        assert!(QuantConfig::parse(&shared).unwrap().default.is_some());
        assert_eq!(QuantConfig::parse(&json!({})), Ok(QuantConfig::default()));
    }

    #[test]
    fn nonsense_is_named() {
        let of = |fields: Value| QuantConfig::parse(&json!({ "quantization": fields })).unwrap_err();
        assert_eq!(of(json!({"bits": 4, "m": {"bits": -1}})).0, "m");
        assert!(of(json!({"bits": 4, "mode": "int4"})).1.contains("\"int4\""));
        assert!(of(json!({"bits": "four"})).1.contains("bits"));
        assert!(of(json!({"bits": 4, "group_size": 0})).1.contains("group_size"));
    }
}
