//! Violations: told on standard error and in the report file, counted, and given to the program at its next wait.

use std::{
    backtrace::Backtrace,
    fmt::Write as _,
    io::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::{
    codes::{Code, SUCCESS},
    settings,
};

/// The error that every later call gives; 0 for none.
static LOST: AtomicU32 = AtomicU32::new(SUCCESS);
static VIOLATIONS: AtomicUsize = AtomicUsize::new(0);
static TEXT: Mutex<String> = Mutex::new(String::new());

/// Frames of a backtrace that are told.
const FRAMES: usize = 6;

/// Writes a line to standard error. A closed standard error is nobody's fault.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "hip-emu: {text}");
}

/// Tells a violation, whose first word is its kind, as in `use-after-free: ...`.
pub(crate) fn violation(text: &str) {
    VIOLATIONS.fetch_add(1, Ordering::AcqRel);
    say(text);
    {
        let mut all = TEXT.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_str(text);
        all.push('\n');
    }
    if let Some(path) = settings::get().report {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{text}")) {
            say(&format!("HIP_EMU_REPORT={}: {error}", path.display()));
        }
    }
}

/// A violation that the program hears of late: every later call that could fail does so.
pub(crate) fn lose(code: Code, text: &str) {
    violation(text);
    fail_late(code);
}

/// Makes every later call fail. The first error stays.
pub(crate) fn fail_late(code: Code) {
    let _ = LOST.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Acquire);
}

/// The error of a lost device.
pub(crate) fn lost() -> Result<(), Code> {
    match LOST.load(Ordering::Acquire) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// As good as new: what `hipDeviceReset` does.
pub(crate) fn recover() {
    LOST.store(SUCCESS, Ordering::Release);
}

/// How many violations there were, and their texts; both are forgotten.
pub(crate) fn take() -> (usize, String) {
    let text = std::mem::take(&mut *TEXT.lock().unwrap_or_else(PoisonError::into_inner));
    (VIOLATIONS.swap(0, Ordering::AcqRel), text)
}

/// How many violations there were.
pub(crate) fn count() -> usize {
    VIOLATIONS.load(Ordering::Acquire)
}

/// The callers of a backtrace outside of this library, one a line.
pub(crate) fn callers(trace: &Backtrace) -> String {
    let text = trace.to_string();
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    let mut told = 0;
    while let Some(line) = lines.next() {
        let symbol = line.trim_start().split_once(": ").map_or(line, |(_, symbol)| symbol).trim();
        let place = lines.next_if(|l| l.trim_start().starts_with("at "));
        let own =
            ["amdhip64_emu", "std::", "core::", "<core::", "<std::", "__libc", "_start", "__rust", "rust_"];
        if place.is_some_and(|p| p.contains("/rustc/"))
            || symbol.starts_with("hip")
            || symbol == "<unknown>"
            || own.iter().any(|o| symbol.starts_with(o))
        {
            continue;
        }
        let _ = write!(out, "\n    {symbol}{}", place.map_or(String::new(), |p| format!(" {}", p.trim())));
        told += 1;
        if told == FRAMES {
            break;
        }
    }
    out
}
