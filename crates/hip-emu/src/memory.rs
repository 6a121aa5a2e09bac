//! Memory of the device and pinned memory of the host: each allocation in a mapping of its own, between pages that
//! fault, at an address that is never used again.

use std::{backtrace::Backtrace, collections::BTreeMap, ops::Range};

use crate::{
    codes::{Code, INVALID_VALUE, OUT_OF_MEMORY},
    report::{callers, say},
    settings::{Check, Settings},
};

/// Where memory was taken, and how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `hipMalloc`.
    Device,
    /// `hipHostMalloc`.
    Pinned,
    /// `hipMallocManaged`.
    Managed,
}

impl Kind {
    pub(crate) fn call(self) -> &'static str {
        match self {
            Kind::Device => "hipMalloc",
            Kind::Pinned => "hipHostMalloc",
            Kind::Managed => "hipMallocManaged",
        }
    }
}

/// An allocation, live or freed.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    /// The mapping, with the pages that fault.
    map: Range<usize>,
    made: Option<Backtrace>,
    freed: Option<Option<Backtrace>>,
}

impl Allocation {
    pub(crate) fn is_live(&self) -> bool {
        self.freed.is_none()
    }

    /// Where it was made, and freed.
    pub(crate) fn history(&self) -> String {
        let told = |trace: &Option<Backtrace>| trace.as_ref().map(callers).unwrap_or_default();
        let mut text = format!("\n  made by {}{}", self.kind.call(), told(&self.made));
        if let Some(freed) = &self.freed {
            text += &format!("\n  freed{}", told(freed));
        }
        text
    }

    pub(crate) fn words(&self) -> String {
        format!("a buffer of {} bytes at {:#x}", self.len, self.base)
    }
}

/// All allocations, by the start of their mappings.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    all: BTreeMap<usize, Allocation>,
    device_bytes: u64,
    host_bytes: u64,
    freed: usize,
}

const PAGE: usize = 4096;
/// Bytes on either side of an allocation that fault, and are known to be near it. They are addresses, not memory.
const GUARD: usize = 1 << 20;
/// Freed allocations whose addresses are kept, so that a use of them is known.
const QUARANTINE: usize = 16 << 10;
/// Fills fresh memory: a NaN in every floating type.
const POISON: u8 = 0xff;
/// Fills what is between an allocation and its pages' ends.
const CANARY: u8 = 0xc5;

impl Memory {
    /// Takes memory.
    pub(crate) fn alloc(
        &mut self,
        len: usize,
        kind: Kind,
        flags: u32,
        settings: &Settings,
    ) -> Result<usize, Code> {
        let from_host = kind == Kind::Pinned || (kind == Kind::Managed && settings.profile.integrated);
        let (used, pool) = match from_host {
            true => (&mut self.host_bytes, settings.host_pool),
            false => (&mut self.device_bytes, settings.pool),
        };
        if (len as u64) > pool.saturating_sub(*used) {
            return Err(OUT_OF_MEMORY);
        }
        let data = len.checked_next_multiple_of(settings.align).ok_or(OUT_OF_MEMORY)?;
        let pages = data.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
        let flags_of_map = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), pages + 2 * GUARD, libc::PROT_NONE, flags_of_map, -1, 0)
        };
        if map == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let map = map as usize;
        let start = map + GUARD;
        // SAFETY: the pages between the two that fault.
        if unsafe { libc::mprotect(start as *mut _, pages, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            // SAFETY: mapped above.
            unsafe { libc::munmap(map as *mut _, pages + 2 * GUARD) };
            return Err(OUT_OF_MEMORY);
        }
        *used += len as u64;
        // The end lies at the page that faults, as close as the alignment lets it.
        let base = start + pages - data;
        if settings.check > Check::Off {
            let poisoned = len.min(settings.poison);
            // SAFETY: within the mapping.
            unsafe {
                (start as *mut u8).write_bytes(CANARY, base - start);
                (base as *mut u8).write_bytes(POISON, poisoned);
                ((base + len) as *mut u8).write_bytes(CANARY, data - len);
            }
        }
        let made = (settings.check > Check::Off).then(Backtrace::force_capture);
        let range = map..map + pages + 2 * GUARD;
        self.all.insert(map, Allocation { base, len, kind, flags, map: range, made, freed: None });
        Ok(base)
    }

    /// Free and total bytes of the device.
    pub(crate) fn info(&self, settings: &Settings) -> (u64, u64) {
        (settings.pool.saturating_sub(self.device_bytes), settings.pool)
    }

    /// The allocation whose mapping holds an address, its faulting pages included; it may be freed.
    pub(crate) fn near(&self, address: usize) -> Option<&Allocation> {
        self.all.range(..=address).next_back().map(|(_, a)| a).filter(|a| a.map.contains(&address))
    }

    /// The live allocation that an address lies in.
    pub(crate) fn at(&self, address: usize) -> Option<&Allocation> {
        self.near(address).filter(|a| a.is_live() && (a.base..a.base + a.len.max(1)).contains(&address))
    }

    /// Whether bytes may be copied from or to: within one allocation, or wholly the host's own.
    ///
    /// # Errors
    /// What is wrong with them; the first word is the kind of violation.
    pub(crate) fn check_range(&self, address: usize, len: usize) -> Result<Option<&Allocation>, String> {
        let Some(near) = self.near(address) else {
            return Ok(None);
        };
        let told = || format!("{}{}", near.words(), near.history());
        if !near.is_live() {
            return Err(format!("use-after-free: {len} bytes at {address:#x} are of {}", told()));
        }
        let inside =
            address >= near.base && address.checked_add(len).is_some_and(|end| end <= near.base + near.len);
        if !inside {
            return Err(format!("out-of-range: {len} bytes at {address:#x} are not all of {}", told()));
        }
        Ok(Some(near))
    }

    /// Gives memory back. The pages fault from then on.
    ///
    /// # Errors
    /// What is wrong; the first word is the kind of violation.
    pub(crate) fn free(&mut self, address: usize, call: &str, check: Check) -> Result<(), String> {
        let by_host = call == "hipHostFree";
        let Some(near) = self.near(address) else {
            return Err(format!("bad-free: {call} of {address:#x}, which is no allocation's"));
        };
        let told = || format!("{}{}", near.words(), near.history());
        if !near.is_live() {
            return Err(format!("double-free: {call} of {}", told()));
        }
        if near.base != address {
            return Err(format!("bad-free: {call} of {address:#x}, which is within {}", told()));
        }
        if by_host != (near.kind == Kind::Pinned) {
            return Err(format!("wrong-free: {call} of {}", told()));
        }
        let overrun = near.canaries_broken().filter(|_| check > Check::Off);
        let overrun = overrun.map(|what| format!("overrun: there are writes {what} {}", told()));
        let key = near.map.start;
        if let Some(allocation) = self.all.get_mut(&key) {
            let freed = (check > Check::Off).then(Backtrace::force_capture);
            allocation.freed = Some(freed);
            let len = allocation.map.len();
            // SAFETY: the whole mapping of an allocation that nobody uses any more; its addresses stay taken.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                libc::mmap(key as *mut _, len, libc::PROT_NONE, flags, -1, 0);
            }
            let bytes = allocation.len as u64;
            match allocation.kind {
                Kind::Device => self.device_bytes -= bytes,
                Kind::Pinned => self.host_bytes -= bytes,
                // It was of one of the two, by the profile of then.
                Kind::Managed if self.host_bytes >= bytes => self.host_bytes -= bytes,
                Kind::Managed => self.device_bytes = self.device_bytes.saturating_sub(bytes),
            }
            self.freed += 1;
        }
        self.forget_oldest();
        overrun.map_or(Ok(()), Err)
    }

    /// Lets the lowest of the freed ones go once there are too many.
    fn forget_oldest(&mut self) {
        if self.freed <= QUARANTINE {
            return;
        }
        let oldest = self.all.iter().find(|(_, a)| !a.is_live()).map(|(&key, a)| (key, a.map.len()));
        if let Some((key, len)) = oldest {
            self.all.remove(&key);
            self.freed -= 1;
            // SAFETY: the mapping of a freed allocation, known to nobody any more.
            unsafe { libc::munmap(key as *mut _, len) };
        }
    }

    /// All that is not freed.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Allocation> {
        self.all.values().filter(|a| a.is_live())
    }

    /// Live allocations whose surroundings were written to.
    pub(crate) fn overruns(&self) -> Vec<String> {
        let told = |a: &Allocation| {
            Some(format!("overrun: there are writes {} {}{}", a.canaries_broken()?, a.words(), a.history()))
        };
        self.live().filter_map(told).collect()
    }

    /// Where an address lies that a kernel should not have touched. The first word is the kind of violation.
    pub(crate) fn explain(&self, address: usize) -> String {
        let Some(near) = self.near(address) else {
            return match address {
                0..0x10000 => format!("null-pointer: it touches {address:#x}"),
                _ => format!("wild-pointer: it touches {address:#x}, which is no buffer's"),
            };
        };
        let told = format!("{}{}", near.words(), near.history());
        if !near.is_live() {
            return format!("use-after-free: it touches byte {} of {told}", address.wrapping_sub(near.base));
        }
        match address.checked_sub(near.base + near.len) {
            Some(behind) => format!("out-of-range: it touches the byte {behind} behind the end of {told}"),
            None => {
                let before = near.base.saturating_sub(address);
                format!("out-of-range: it touches the byte {before} before the start of {told}")
            }
        }
    }
}

impl Allocation {
    /// `behind` or `before`, where the pattern around the bytes is no longer whole.
    fn canaries_broken(&self) -> Option<&'static str> {
        self.made.as_ref()?;
        let (start, end) = (self.map.start + GUARD, self.map.end - GUARD);
        // SAFETY: the readable pages of a live allocation.
        let whole = |from: usize, to: usize| unsafe {
            std::slice::from_raw_parts(from as *const u8, to - from).iter().all(|&byte| byte == CANARY)
        };
        if !whole(self.base + self.len, end) {
            return Some("behind");
        }
        (!whole(start, self.base)).then_some("before")
    }
}

/// A length that a program may ask for.
pub(crate) fn checked_len(len: usize) -> Result<usize, Code> {
    if len > isize::MAX as usize / 2 {
        say("an allocation of more than a quarter of the address space");
        return Err(INVALID_VALUE);
    }
    Ok(len)
}
