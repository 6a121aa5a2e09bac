//! What a stream does, and how it gets into the queue.

use std::{
    ffi::c_void,
    sync::{Arc, OnceLock},
    time::Instant,
};

use crate::{
    clocks::{Access, AccessKind},
    codes::{Code, INVALID_VALUE, UNKNOWN},
    launch::Launch,
    report,
    settings::{self, Check},
    state::{self, state},
    stream::Stream,
};

/// A piece of work. Addresses are checked before it is queued.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// `sum`: of the source's bytes when it was queued, under full checks.
    Copy {
        dst: usize,
        src: usize,
        len: usize,
        sum: Option<u64>,
    },
    /// From bytes that were set aside.
    Staged {
        dst: usize,
        bytes: Arc<[u8]>,
    },
    /// A pattern of `width` bytes, again and again.
    Fill {
        dst: usize,
        value: u32,
        width: usize,
        len: usize,
    },
    Launch(Arc<Launch>),
    /// Until another stream has done so much.
    Wait(Arc<Stream>, u64),
    Stamp(Arc<OnceLock<Instant>>),
    /// A function of the host with its argument.
    Host(HostCall),
    /// Injected: the queue fails here.
    Fail(Code),
}

/// `hipLaunchHostFunc`'s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) argument: *mut c_void,
}

// SAFETY: whoever queues a function says that it may run on the runtime's thread.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

/// FNV-1a over words, with the rest by bytes: enough to see a change.
pub(crate) fn checksum(address: usize, len: usize) -> u64 {
    // SAFETY: a live range, which the caller has checked.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| step(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| step(hash, u64::from(byte)))
}

impl Work {
    /// What it touches.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        let access = |start: usize, len: usize, kind| Access { range: start..start + len, kind };
        match self {
            Work::Copy { dst, src, len, .. } => {
                vec![access(*dst, *len, AccessKind::Write), access(*src, *len, AccessKind::Read)]
            }
            Work::Staged { dst, bytes } => vec![access(*dst, bytes.len(), AccessKind::Write)],
            Work::Fill { dst, len, .. } => vec![access(*dst, *len, AccessKind::Write)],
            Work::Launch(launch) => {
                launch.pointers().iter().map(|&p| access(p, 1, AccessKind::Pointer)).collect()
            }
            Work::Wait(..) | Work::Stamp(_) | Work::Host(_) | Work::Fail(_) => Vec::new(),
        }
    }

    /// Its name in messages.
    fn told(&self) -> String {
        match self {
            Work::Copy { len, .. } => format!("a copy of {len} bytes"),
            Work::Staged { bytes, .. } => format!("a copy of {} bytes", bytes.len()),
            Work::Fill { len, .. } => format!("a fill of {len} bytes"),
            Work::Launch(launch) => format!("the kernel {}", launch.name()),
            Work::Wait(..) | Work::Stamp(_) | Work::Host(_) | Work::Fail(_) => "an event".to_owned(),
        }
    }

    /// Does it, on the stream's thread. After the loss of the device nothing is done but to wait.
    pub(crate) fn run(&self) {
        if let Work::Wait(stream, number) = self {
            stream.wait(*number);
            return;
        }
        if let Work::Stamp(stamp) = self {
            let _ = stamp.set(Instant::now());
            return;
        }
        let settings = settings::get();
        if !settings.delay.is_zero() {
            std::thread::sleep(settings.delay);
        }
        if report::lost().is_err() {
            return;
        }
        match self {
            Work::Copy { dst, src, len, sum } => {
                if sum.is_some_and(|sum| sum != checksum(*src, *len)) {
                    report::lose(
                        UNKNOWN,
                        &format!(
                            "changed-in-flight: the {len} bytes at {src:#x} changed while a copy of them was queued"
                        ),
                    );
                }
                // SAFETY: both ranges were checked, and are freed only after this is done.
                unsafe { std::ptr::copy(*src as *const u8, *dst as *mut u8, *len) };
            }
            Work::Staged { dst, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), *dst as *mut u8, bytes.len()) };
            }
            Work::Fill { dst, value, width, len } => {
                let pattern = value.to_le_bytes();
                // SAFETY: as above.
                let target = unsafe { std::slice::from_raw_parts_mut(*dst as *mut u8, *len) };
                match width {
                    1 => target.fill(pattern[0]),
                    _ => target.chunks_mut(*width).for_each(|c| c.copy_from_slice(&pattern[..c.len()])),
                }
            }
            Work::Launch(launch) => launch.run(&settings),
            // SAFETY: whoever queued it promised so.
            Work::Host(call) => unsafe { (call.function)(call.argument) },
            Work::Fail(code) => report::fail_late(*code),
            Work::Wait(..) | Work::Stamp(_) => {}
        }
    }
}

/// Puts work into a stream's queue, or into the capture that the stream is part of, and returns its number.
pub(crate) fn submit(stream: &Arc<Stream>, mut work: Work) -> Result<u64, Code> {
    if let Some(capture) = crate::graph::capture_of(stream) {
        return capture.push(stream, work);
    }
    let check = settings::get().check;
    let peers = if stream.blocking { state::STREAMS.all() } else { Vec::new() };
    let default = if stream.blocking { Some(state::default_stream()?) } else { None };
    let accesses = if check == Check::Off { Vec::new() } else { work.accesses() };
    let told = work.told();

    let mut state = state();
    if let Some(default) = default {
        // The default stream waits for all blocking streams, and they for it.
        let others = match stream.number {
            0 => peers.into_iter().filter(|s| s.blocking).collect(),
            _ => vec![default],
        };
        for other in others {
            let last = other.submitted();
            if !other.is_done(last) {
                stream.push(Work::Wait(other.clone(), last));
            }
            let clock = state.clocks.of(&other);
            state.clocks.stream_waits(stream, &clock);
        }
    }
    if check >= Check::Full
        && let Work::Copy { src, len, sum, .. } = &mut work
    {
        // What queued work may yet write is not the host's to change.
        let range = *src..*src + *len;
        let quiet = state.clocks.in_flight(&range).iter().all(|f| f.3 == AccessKind::Read);
        *sum = quiet.then(|| checksum(*src, *len));
    }
    let races = state.clocks.begin(stream, &accesses, &told);
    let number = stream.push(work);
    state.clocks.log(stream, number, accesses, &told);
    drop(state);
    for race in races {
        report::lose(UNKNOWN, &race);
    }
    Ok(number)
}

/// Waits for all that is queued on a stream; the host knows of it then.
pub(crate) fn wait_for(stream: &Arc<Stream>) {
    let mut held = state();
    let clock = held.clocks.of(stream);
    let last = stream.submitted();
    drop(held);
    stream.wait(last);
    held = state();
    held.clocks.host_waited(&clock);
}

/// Refuses a range with a violation.
pub(crate) fn refuse(text: &str) -> Code {
    report::violation(text);
    INVALID_VALUE
}
