//! Memory: taken, given back, copied, filled, asked about.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::Arc,
};

use super::{exported, late, put};
use crate::{
    codes::{
        Code, INVALID_DEVICE_POINTER, INVALID_MEMCPY_DIRECTION, INVALID_VALUE, STREAM_CAPTURE_UNSUPPORTED,
    },
    graph,
    memory::{Allocation, Kind, checked_len},
    report,
    settings::{self, Check, Pageable},
    state::{state, stream_of},
    stream::Stream,
    work::{Work, refuse, submit, wait_for},
};

fn alloc(place: *mut *mut c_void, len: usize, kind: Kind, flags: u32) -> Result<(), Code> {
    report::lost()?;
    graph::no_unsafe_call()?;
    if len == 0 {
        return put(place, std::ptr::null_mut());
    }
    let address = state().memory.alloc(checked_len(len)?, kind, flags, &settings::get())?;
    put(place, address as *mut c_void)
}

fn free(pointer: *mut c_void, call: &str) -> Result<(), Code> {
    graph::no_unsafe_call()?;
    if pointer.is_null() {
        return Ok(());
    }
    let check = settings::get().check;
    let address = pointer as usize;
    let mut held = state();
    let range = held.memory.at(address).map(|a| a.base..a.base + a.len);
    if let Some(range) = range {
        let pending = held.clocks.in_flight(&range);
        // Backtraces take long to put in words.
        let history = match pending.is_empty() {
            true => String::new(),
            false => held.memory.at(address).map(Allocation::history).unwrap_or_default(),
        };
        drop(held);
        for (stream, number, what, _) in pending {
            if check > Check::Off {
                report::violation(&format!(
                    "free-in-flight: {call} of {address:#x} while {what} on stream {} still uses it{history}",
                    stream.number
                ));
            }
            stream.wait(number);
        }
        held = state();
    }
    held.memory.free(address, call, check).map_err(|text| {
        report::violation(&text);
        // An overrun has freed all the same.
        if text.starts_with("overrun") { INVALID_VALUE } else { INVALID_DEVICE_POINTER }
    })
}

/// What a range of a copy is.
fn side(address: usize, len: usize) -> Result<Option<Kind>, Code> {
    match state().memory.check_range(address, len) {
        Ok(allocation) => Ok(allocation.map(|a| a.kind)),
        Err(text) => Err(refuse(&text)),
    }
}

/// A copy of any direction. `kind`: HIP's `hipMemcpyKind`, 4 where the addresses say it.
fn copy(stream: &Arc<Stream>, dst: usize, src: usize, len: usize, kind: u32) -> Result<(), Code> {
    report::lost()?;
    if len == 0 {
        return Ok(());
    }
    if dst == 0 || src == 0 {
        return Err(INVALID_VALUE);
    }
    let (to, from) = (side(dst, len)?, side(src, len)?);
    // Pinned and managed memory may stand on either side.
    let is_host = |side: Option<Kind>| side != Some(Kind::Device);
    let is_device = |side: Option<Kind>| side.is_some();
    let fits = match kind {
        0 => is_host(to) && is_host(from),
        1 => is_device(to) && is_host(from),
        2 => is_host(to) && is_device(from),
        3 => is_device(to) && is_device(from),
        4 => true,
        _ => false,
    };
    if !fits {
        refuse(&format!("direction: a copy of kind {kind} from {src:#x} ({from:?}) to {dst:#x} ({to:?})"));
        return Err(INVALID_MEMCPY_DIRECTION);
    }
    if let Some(code) = late() {
        return submit(stream, Work::Fail(code)).map(drop);
    }
    let pageable = [(to, "to"), (from, "from")].into_iter().find(|(side, _)| side.is_none());
    if let Some((_, word)) = pageable {
        if let Some(capture) = graph::capture_of(stream) {
            capture.invalidate();
            refuse(&format!("pageable: a captured copy of {len} bytes {word} pageable memory"));
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if settings::get().pageable == Pageable::Flag {
            report::violation(&format!(
                "pageable: an asynchronous copy of {len} bytes {word} pageable memory"
            ));
        }
    }
    match (to, from) {
        // Into pageable memory the call itself waits.
        (None, _) => {
            submit(stream, Work::Copy { dst, src, len, sum: None })?;
            wait_for(stream);
            report::lost()
        }
        (Some(_), None) => {
            // SAFETY: the caller passes a source of that length.
            let bytes: Arc<[u8]> = unsafe { std::slice::from_raw_parts(src as *const u8, len) }.into();
            submit(stream, Work::Staged { dst, bytes }).map(drop)
        }
        _ => submit(stream, Work::Copy { dst, src, len, sum: None }).map(drop),
    }
}

/// A copy that the call waits for.
fn copy_now(dst: usize, src: usize, len: usize, kind: u32) -> Result<(), Code> {
    let stream = stream_of(std::ptr::null_mut())?;
    copy(&stream, dst, src, len, kind)?;
    wait_for(&stream);
    report::lost()
}

fn fill(stream: &Arc<Stream>, dst: usize, value: u32, width: usize, count: usize) -> Result<(), Code> {
    report::lost()?;
    let len = count.checked_mul(width).ok_or(INVALID_VALUE)?;
    if len == 0 {
        return Ok(());
    }
    if side(dst, len)?.is_none() || !dst.is_multiple_of(width) {
        return Err(refuse(&format!("bad-pointer: a fill of {len} bytes at {dst:#x}")));
    }
    let work = late().map_or(Work::Fill { dst, value, width, len }, Work::Fail);
    submit(stream, work).map(drop)
}

/// HIP's number of a kind of memory: 1 host, 2 device, 3 managed.
fn type_of(kind: Kind) -> u32 {
    match kind {
        Kind::Pinned => 1,
        Kind::Device => 2,
        Kind::Managed => 3,
    }
}

/// `hipPointerAttribute_t` of HIP 6 and later.
#[repr(C)]
#[derive(Debug)]
pub struct PointerAttributes {
    kind: u32,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
    is_managed: c_int,
    flags: c_uint,
}

exported! {
    /// Takes `len` bytes of the device.
    fn hipMalloc(place: *mut *mut c_void, len: usize) { alloc(place, len, Kind::Device, 0) }

    /// Gives the device's memory back, or managed memory.
    fn hipFree(pointer: *mut c_void) { free(pointer, "hipFree") }

    /// Takes `len` bytes of the host that the device reads and writes.
    fn hipHostMalloc(place: *mut *mut c_void, len: usize, flags: c_uint) {
        alloc(place, len, Kind::Pinned, flags)
    }

    /// Gives pinned memory back.
    fn hipHostFree(pointer: *mut c_void) { free(pointer, "hipHostFree") }

    /// Takes `len` bytes that host and device see.
    fn hipMallocManaged(place: *mut *mut c_void, len: usize, flags: c_uint) {
        alloc(place, len, Kind::Managed, flags)
    }

    /// The device's address of pinned memory, which is the host's.
    fn hipHostGetDevicePointer(place: *mut *mut c_void, host: *mut c_void, flags: c_uint) {
        let pinned = state().memory.at(host as usize).is_some_and(|a| a.kind == Kind::Pinned);
        if flags != 0 || !pinned {
            return Err(INVALID_VALUE);
        }
        put(place, host)
    }

    /// Free and total bytes of the device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) {
        report::lost()?;
        let (left, all) = state().memory.info(&settings::get());
        put(free, left as usize)?;
        put(total, all as usize)
    }

    /// Copies, in the order of a stream.
    fn hipMemcpyAsync(dst: *mut c_void, src: *const c_void, len: usize, kind: c_uint, stream: *mut c_void) {
        copy(&stream_of(stream)?, dst as usize, src as usize, len, kind)
    }

    /// Copies from the host, in the order of a stream.
    fn hipMemcpyHtoDAsync(dst: *mut c_void, src: *const c_void, len: usize, stream: *mut c_void) {
        copy(&stream_of(stream)?, dst as usize, src as usize, len, 1)
    }

    /// Copies to the host, in the order of a stream.
    fn hipMemcpyDtoHAsync(dst: *mut c_void, src: *mut c_void, len: usize, stream: *mut c_void) {
        copy(&stream_of(stream)?, dst as usize, src as usize, len, 2)
    }

    /// Copies on the device, in the order of a stream.
    fn hipMemcpyDtoDAsync(dst: *mut c_void, src: *mut c_void, len: usize, stream: *mut c_void) {
        copy(&stream_of(stream)?, dst as usize, src as usize, len, 3)
    }

    /// Copies, and waits.
    fn hipMemcpy(dst: *mut c_void, src: *const c_void, len: usize, kind: c_uint) {
        copy_now(dst as usize, src as usize, len, kind)
    }

    /// Copies from the host, and waits.
    fn hipMemcpyHtoD(dst: *mut c_void, src: *const c_void, len: usize) {
        copy_now(dst as usize, src as usize, len, 1)
    }

    /// Copies to the host, and waits.
    fn hipMemcpyDtoH(dst: *mut c_void, src: *mut c_void, len: usize) {
        copy_now(dst as usize, src as usize, len, 2)
    }

    /// Fills bytes, in the order of a stream.
    fn hipMemsetD8Async(dst: *mut c_void, value: u8, count: usize, stream: *mut c_void) {
        fill(&stream_of(stream)?, dst as usize, value.into(), 1, count)
    }

    /// Fills words of two bytes, in the order of a stream.
    fn hipMemsetD16Async(dst: *mut c_void, value: u16, count: usize, stream: *mut c_void) {
        fill(&stream_of(stream)?, dst as usize, value.into(), 2, count)
    }

    /// Fills words of four bytes, in the order of a stream.
    fn hipMemsetD32Async(dst: *mut c_void, value: c_int, count: usize, stream: *mut c_void) {
        fill(&stream_of(stream)?, dst as usize, value as u32, 4, count)
    }

    /// Fills bytes, in the order of a stream.
    fn hipMemsetAsync(dst: *mut c_void, value: c_int, count: usize, stream: *mut c_void) {
        fill(&stream_of(stream)?, dst as usize, value as u32 & 0xff, 1, count)
    }

    /// Fills bytes, and waits.
    fn hipMemset(dst: *mut c_void, value: c_int, count: usize) {
        let stream = stream_of(std::ptr::null_mut())?;
        fill(&stream, dst as usize, value as u32 & 0xff, 1, count)?;
        wait_for(&stream);
        report::lost()
    }

    /// What an address is. An error for one that the runtime does not know.
    fn hipPointerGetAttributes(attributes: *mut PointerAttributes, pointer: *const c_void) {
        let (kind, flags) = {
            let state = state();
            let known = state.memory.at(pointer as usize).ok_or(INVALID_VALUE)?;
            (known.kind, known.flags)
        };
        let on_host = if kind == Kind::Device { std::ptr::null_mut() } else { pointer.cast_mut() };
        put(attributes, PointerAttributes {
            kind: type_of(kind),
            device: 0,
            device_pointer: pointer.cast_mut(),
            host_pointer: on_host,
            is_managed: (kind == Kind::Managed).into(),
            flags,
        })
    }

    /// One attribute of an address: its type, addresses, whether it is managed, the device, its allocation's range.
    fn hipPointerGetAttribute(data: *mut c_void, which: c_uint, pointer: *mut c_void) {
        let (kind, base, len) = {
            let state = state();
            let known = state.memory.at(pointer as usize).ok_or(INVALID_VALUE)?;
            (known.kind, known.base, known.len)
        };
        match which {
            2 => put(data.cast(), type_of(kind)),
            3 => put(data.cast(), pointer),
            4 if kind != Kind::Device => put(data.cast(), pointer),
            8 => put(data.cast(), c_uint::from(kind == Kind::Managed)),
            9 => put(data.cast(), 0 as c_int),
            11 => put(data.cast(), base),
            12 => put(data.cast(), len),
            _ => Err(INVALID_VALUE),
        }
    }
}
