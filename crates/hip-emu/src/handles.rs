//! Handles: numbers that stand for the runtime's objects. None is used twice, so that a stale one is known.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    codes::{Code, INVALID_HANDLE},
    report,
};

/// The live objects of a kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    what: &'static str,
    /// Sets the handles of one kind apart from those of others.
    tag: usize,
    items: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(what: &'static str, tag: usize) -> Self {
        Handles { what, tag, items: Mutex::new((0, BTreeMap::new())) }
    }

    pub(crate) fn insert(&self, item: Arc<T>) -> *mut c_void {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.0 += 1;
        // Never an address that a program could have: above what the processor can address.
        let handle = 0x4e00_0000_0000_0000 | self.tag << 48 | items.0 << 4;
        items.1.insert(handle, item);
        handle as *mut c_void
    }

    pub(crate) fn get(&self, handle: *mut c_void) -> Result<Arc<T>, Code> {
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.1.get(&(handle as usize)).cloned().ok_or_else(|| self.stale(handle, items.0))
    }

    pub(crate) fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, Code> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let made = items.0;
        items.1.remove(&(handle as usize)).ok_or_else(|| self.stale(handle, made))
    }

    fn stale(&self, handle: *mut c_void, made: usize) -> Code {
        let number = (handle as usize & 0xffff_ffff_ffff) >> 4;
        let ours = handle as usize >> 48 == 0x4e00 | self.tag && (1..=made).contains(&number);
        let what = self.what;
        report::violation(&match ours {
            true => format!("stale-handle: {what} {handle:p} was destroyed before"),
            false => format!("bad-handle: {handle:p} is no {what}"),
        });
        INVALID_HANDLE
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).1.values().cloned().collect()
    }

    /// `3 streams`, where there are any.
    pub(crate) fn told(&self) -> Option<String> {
        let n = self.items.lock().unwrap_or_else(PoisonError::into_inner).1.len();
        (n > 0).then(|| format!("{n} x {}", self.what))
    }

    pub(crate) fn len(&self) -> usize {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).1.len()
    }
}
