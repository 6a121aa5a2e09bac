//! How large and how deep a value may grow in a template.
//!
//! The engine counts what a template makes, but not how it is put together: a list of itself twice, sixty times over,
//! takes a few hundred bytes and as good as for ever to print, and a list within a list a hundred thousand times over
//! ends the stack of whoever drops it. So a value is walked through wherever a template can build upon it: where a list
//! or a dict is written, where a variable is set, where a macro is entered and where it is printed.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Lists and dicts within each other. JSON from outside has at most 128 levels.
const MOST_DEPTH: usize = 150;

/// Values within a value, each counted as often as it stands there.
const MOST_ITEMS: usize = 1 << 18;

/// Bytes of the texts within a value, and of a text that is made from one.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// Items that are walked through for a unit of fuel.
const ITEMS_PER_FUEL: usize = 8;

struct Walk {
    items: usize,
    bytes: usize,
    /// A namespace can be changed later, so one that is kept in another may come to hold itself.
    refuse_namespaces: bool,
}

/// Refuses a value that is too large, too deep, or (as an attribute) one that holds a namespace.
fn check(state: &State, value: &Value, refuse_namespaces: bool) -> Result<(), Error> {
    if !is_container(value) {
        return Ok(());
    }
    let mut walk = Walk { items: 0, bytes: 0, refuse_namespaces };
    let fits = walk.value(value, 0);
    state.consume_fuel((walk.items / ITEMS_PER_FUEL) as u64)?;
    fits
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
}

/// The engine keeps the type to itself; its name is all that there is to go by.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn refused(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

impl Walk {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.items += 1;
        if self.items > MOST_ITEMS {
            return Err(refused(format!("a value of more than {MOST_ITEMS} items")));
        }
        if let Some(text) = value.as_str() {
            self.bytes = self.bytes.saturating_add(text.len());
            if self.bytes > MOST_BYTES {
                return Err(refused(format!("a value of more than {} MiB of text", MOST_BYTES >> 20)));
            }
        }
        if !is_container(value) {
            return Ok(());
        }
        if is_namespace(value) {
            return match self.refuse_namespaces {
                true => Err(refused("a namespace within a namespace".to_owned())),
                false => Ok(()),
            };
        }
        if depth == MOST_DEPTH {
            return Err(refused(format!("lists and dicts nested deeper than {MOST_DEPTH}")));
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            self.value(&item, depth + 1)?;
            if is_map {
                self.value(&value.get_item(&item)?, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// Passes a value on that has a sane size.
pub(super) fn checked_value(state: &State, value: &Value) -> Result<Value, Error> {
    check(state, value, false)?;
    Ok(value.clone())
}

/// Likewise for one that becomes an attribute of a namespace.
pub(super) fn checked_attribute(state: &State, value: &Value) -> Result<Value, Error> {
    check(state, value, true)?;
    Ok(value.clone())
}

/// Likewise for all of these; the answer is true.
pub(super) fn checked_all(state: &State, values: minijinja::value::Rest<Value>) -> Result<bool, Error> {
    values.iter().try_for_each(|value| check(state, value, false)).map(|()| true)
}

/// Before a value is written out.
pub(super) fn check_printed(state: &State, value: &Value) -> Result<(), Error> {
    check(state, value, false)
}
