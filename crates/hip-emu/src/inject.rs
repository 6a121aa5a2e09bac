//! Calls that are made to fail, and the count of all calls.
//!
//! `HIP_EMU_FAIL` is a list with commas of `CALL:K:ERROR` or `CALL:K:ERROR:late`: the K-th call of a function (from 1;
//! `*` for any function) does nothing and gives the error; `late`, it is accepted, and its work fails when its turn
//! comes in the queue.

use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use crate::codes::Code;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    call: String,
    nth: u64,
    code: Code,
    late: bool,
}

/// What a call is to do instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Now(Code),
    /// The queue fails when it comes to it.
    Late(Code),
}

#[derive(Debug, Default)]
struct Calls {
    counts: BTreeMap<&'static str, u64>,
    all: u64,
    rules: Vec<Rule>,
}

static CALLS: LazyLock<Mutex<Calls>> = LazyLock::new(|| {
    let rules = match std::env::var("HIP_EMU_FAIL").as_deref().map(parse) {
        Ok(Ok(rules)) => rules,
        Ok(Err(error)) => {
            crate::report::say(&error);
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    Mutex::new(Calls { rules, ..Calls::default() })
});

fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let rule = |part: &str| {
        let fields: Vec<&str> = part.trim().split(':').collect();
        let (call, nth, code, late) = match fields[..] {
            [call, nth, code] => (call, nth, code, false),
            [call, nth, code, "late"] => (call, nth, code, true),
            _ => return None,
        };
        Some(Rule { call: call.to_owned(), nth: nth.parse().ok()?, code: code.parse().ok()?, late })
    };
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            rule(part).ok_or_else(|| format!("HIP_EMU_FAIL: {part} is not CALL:K:ERROR or CALL:K:ERROR:late"))
        })
        .collect()
}

/// Takes new rules and counts from nothing again.
pub(crate) fn set(text: &str) -> Result<(), String> {
    let rules = parse(text)?;
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner) = Calls { rules, ..Calls::default() };
    Ok(())
}

/// Counts a call, and says how it is to fail.
pub(crate) fn called(name: &'static str) -> Option<Fault> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = &mut *calls;
    calls.all += 1;
    let count = calls.counts.entry(name).or_default();
    *count += 1;
    let hit = |rule: &&Rule| match rule.call.as_str() {
        "*" => rule.nth == calls.all,
        call => call == name && rule.nth == *count,
    };
    let rule = calls.rules.iter().find(hit)?;
    crate::report::say(&format!("{name} fails with {}, as it was told to", rule.code));
    Some(if rule.late { Fault::Late(rule.code) } else { Fault::Now(rule.code) })
}

/// `NAME COUNT`, a line each.
pub(crate) fn counts() -> String {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    calls.counts.iter().map(|(name, count)| format!("{name} {count}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let rule = |call: &str, nth, code, late| Rule { call: call.to_owned(), nth, code, late };
        assert_eq!(
            parse("hipMalloc:3:2, *:7:719:late"),
            Ok(vec![rule("hipMalloc", 3, 2, false), rule("*", 7, 719, true)])
        );
        assert_eq!(parse(""), Ok(vec![]));
        for wrong in ["hipMalloc", "hipMalloc:x:2", "hipMalloc:1:2:soon", "a:1:2:late:3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
