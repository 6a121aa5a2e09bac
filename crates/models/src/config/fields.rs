//! Typed access to a JSON object's fields, with errors that name file and field.

use std::path::Path;

use serde_json::Value;

use crate::{ModelError, Result};

/// An object of the configuration.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) path: &'a Path,
    /// Prefix of the names in messages: `rope_scaling.`.
    pub(super) prefix: &'a str,
    pub(super) value: &'a Value,
}

impl<'a> Fields<'a> {
    /// A field's value; null counts as missing.
    pub(super) fn find(&self, field: &str) -> Option<&'a Value> {
        self.value.get(field).filter(|v| !v.is_null())
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub(super) fn bad(&self, field: &str, found: impl ToString, expected: &str) -> ModelError {
        ModelError::BadField {
            path: self.path.to_owned(),
            field: self.name(field),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }

    pub(super) fn missing(&self, field: &str) -> ModelError {
        ModelError::MissingField { path: self.path.to_owned(), field: self.name(field) }
    }

    /// A whole number. One that is written as a float (`512.0`) counts too.
    pub(super) fn usize(&self, field: &str) -> Result<Option<usize>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let number = value.as_u64().or_else(|| {
            value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f)).map(|f| f as u64)
        });
        let number = number.and_then(|n| usize::try_from(n).ok());
        number.map(Some).ok_or_else(|| self.bad(field, value, "a whole number that is not negative"))
    }

    pub(super) fn need_usize(&self, field: &str) -> Result<usize> {
        self.usize(field)?.ok_or_else(|| self.missing(field))
    }

    /// A finite number.
    pub(super) fn f64(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let number = value.as_f64().filter(|f| f.is_finite());
        number.map(Some).ok_or_else(|| self.bad(field, value, "a finite number"))
    }

    pub(super) fn need_f64(&self, field: &str) -> Result<f64> {
        self.f64(field)?.ok_or_else(|| self.missing(field))
    }

    pub(super) fn bool(&self, field: &str) -> Result<Option<bool>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(field, value, "true or false"))
    }

    pub(super) fn str(&self, field: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(field, value, "a text"))
    }

    /// A list with one entry a layer.
    pub(super) fn layer_list(&self, field: &str, layers: usize) -> Result<Option<&'a [Value]>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.bad(field, value, "a list"))?;
        if list.len() < layers {
            let found = format!("a list of {}", list.len());
            return Err(self.bad(
                field,
                found,
                &format!("an entry for each layer, and num_hidden_layers is {layers}"),
            ));
        }
        Ok(Some(&list[..layers]))
    }

    /// An object inside this one.
    pub(super) fn object(&self, field: &str, prefix: &'a str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.find(field) else { return Ok(None) };
        if !value.is_object() {
            return Err(self.bad(field, value, "an object"));
        }
        Ok(Some(Fields { path: self.path, prefix, value }))
    }
}
