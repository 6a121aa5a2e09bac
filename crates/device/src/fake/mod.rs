//! A device for tests: memory that the host does not see, and copies that run as late as they may.
//!
//! A copy runs when an event after it or its stream is waited for, and not before, so that a staging slot which is
//! filled again too early is seen as wrong bytes. Any call can be made to fail. What a driver would answer with a
//! crash (memory freed under a copy, or twice) is written down in [`FakeBackend::faults`].

mod call;
mod crash;
mod faulty;
mod kernel;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

pub use call::Call;
pub use crash::crash;
pub use faulty::{Fault, FaultKind, Faulty, Live};
use kernel::FakeKernel;
use stream::{FakeEvent, FakeStream};

use crate::{
    Device, DeviceCaps, DeviceError, DeviceId, DeviceKind, KernelSource, MemoryInfo, MemoryKind, Result,
    Slice,
    backend::{Backend, EventBackend, KernelBackend, RawMemory, StreamBackend},
    rocm::memory_sources::MemorySources,
};

/// What the device is like.
#[derive(Clone, Copy, Debug)]
pub struct FakeOptions {
    /// Bytes of device memory.
    pub device_bytes: usize,
    /// Bytes that can be pinned.
    pub pinned_bytes: usize,
    /// A fault: events say that they are complete before anything has run.
    pub events_lie: bool,
    /// The call that fails, counted from 0 over all calls of that kind.
    pub fail: Option<(Call, usize)>,
    /// The device is lost from the failure on: every later call fails as well.
    pub lost: bool,
    /// It takes kernels and captures steps. They compute nothing: what they would write keeps its old bytes.
    pub kernels: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        FakeOptions {
            device_bytes: 1 << 30,
            pinned_bytes: 1 << 30,
            events_lie: false,
            fail: None,
            lost: false,
            kernels: false,
        }
    }
}

#[derive(Debug)]
struct Memory {
    kind: MemoryKind,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct CopyWork {
    stream: u64,
    number: u64,
    dst: (u64, usize),
    src: (u64, usize),
    len: usize,
}

/// What the device holds and has done.
#[derive(Debug, Default)]
struct State {
    memory: HashMap<u64, Memory>,
    next_addr: u64,
    /// Work not yet run, of all streams.
    work: VecDeque<CopyWork>,
    numbers: u64,
    streams: u64,
    calls: HashMap<Call, usize>,
    pinned_peak: usize,
    lost: bool,
    faults: Vec<String>,
}

/// The device. See the [module](self).
#[derive(Clone, Debug)]
pub struct FakeBackend {
    caps: DeviceCaps,
    options: FakeOptions,
    /// Of an integrated GPU: what its sources say before anything is taken, and whether it has managed memory.
    apu: Option<(MemorySources, bool)>,
    state: Arc<Mutex<State>>,
}

impl FakeBackend {
    /// A device, which calls itself `cuda:0`.
    pub fn new(options: FakeOptions) -> Self {
        let caps = DeviceCaps {
            id: DeviceId { kind: DeviceKind::Cuda, ordinal: 0 },
            name: "a fake device".to_owned(),
            arch: "fake".to_owned(),
            features: Vec::new(),
            wave_width: 32,
            integrated: false,
            units: 1,
        };
        let state = State { next_addr: 1 << 40, ..State::default() };
        FakeBackend { caps, options, apu: None, state: Arc::new(Mutex::new(state)) }
    }

    /// An integrated GPU, which calls itself `rocm:0` and a gfx1151. Each pool has what the sources say, less what was
    /// taken of its kind; `managed` says whether it offers managed memory. The sources themselves stay as they are.
    pub fn apu(sources: MemorySources, managed: bool) -> Self {
        let mut fake = FakeBackend::new(FakeOptions::default());
        fake.caps.id.kind = DeviceKind::Rocm;
        fake.caps.arch = "gfx1151".to_owned();
        fake.caps.integrated = true;
        fake.apu = Some((sources, managed));
        fake
    }

    /// What there is of a kind in all.
    fn pool(&self, kind: MemoryKind) -> MemoryInfo {
        let told = |bytes: usize| MemoryInfo { free: bytes as u64, total: bytes as u64, source: "fake" };
        match (&self.apu, kind) {
            (Some((sources, _)), MemoryKind::Device) => sources.runtime.unwrap_or(told(0)),
            (Some((sources, managed)), MemoryKind::Mapped) => sources.mapped(*managed),
            (Some((sources, _)), MemoryKind::Pinned) => sources.mapped(false),
            (None, MemoryKind::Device) => told(self.options.device_bytes),
            (None, _) => told(self.options.pinned_bytes),
        }
    }

    /// What is left of a kind.
    fn left(&self, state: &State, kind: MemoryKind) -> MemoryInfo {
        let pool = self.pool(kind);
        MemoryInfo { free: pool.free.saturating_sub(state.bytes_of(kind) as u64), ..pool }
    }

    /// A handle to it. This object goes on telling what the handle's users did.
    pub fn device(&self) -> Device {
        Device::from_backend(Arc::new(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocations that are not given back.
    pub fn live(&self) -> usize {
        self.state().memory.len()
    }

    /// Bytes allocated of a kind.
    pub fn bytes_of(&self, kind: MemoryKind) -> usize {
        self.state().bytes_of(kind)
    }

    /// Most bytes pinned at a time.
    pub fn pinned_peak(&self) -> usize {
        self.state().pinned_peak
    }

    /// How often a call was made.
    pub fn calls(&self, call: Call) -> usize {
        self.state().calls.get(&call).copied().unwrap_or(0)
    }

    /// What no driver would forgive.
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// The bytes of a slice of device memory as they are now: work that is still to run has not run.
    pub fn bytes(&self, slice: &Slice) -> Vec<u8> {
        let state = self.state();
        let bytes = state.memory.get(&slice.buffer().device_addr()).map_or(&[][..], |m| &m.bytes);
        bytes.get(slice.offset()..slice.offset() + slice.len()).unwrap_or(&[]).to_vec()
    }

    /// Counts a call; an error where it is to fail.
    fn call(&self, call: Call) -> Result<()> {
        let mut state = self.state();
        let count = state.calls.entry(call).or_default();
        let now = *count;
        *count += 1;
        if self.options.fail == Some((call, now)) && self.options.lost {
            state.lost = true;
        }
        let device = self.caps.id;
        if state.lost {
            return Err(DeviceError::Lost { device, reason: "it was told to fail".to_owned() });
        }
        if self.options.fail != Some((call, now)) {
            return Ok(());
        }
        match call {
            Call::Alloc => Err(out_of_memory(device, MemoryKind::Device, 0, None)),
            Call::Pin => Err(out_of_memory(device, MemoryKind::Pinned, 0, None)),
            _ => Err(DeviceError::Failed {
                device,
                call: call.name(),
                reason: "it was told to fail".to_owned(),
            }),
        }
    }
}

fn out_of_memory(device: DeviceId, kind: MemoryKind, asked: usize, available: Option<u64>) -> DeviceError {
    DeviceError::OutOfMemory { device, pool: kind.name(), asked, available }
}

impl State {
    fn bytes_of(&self, kind: MemoryKind) -> usize {
        self.memory.values().filter(|m| m.kind == kind).map(|m| m.bytes.len()).sum()
    }

    /// Runs a stream's copies up to a number.
    fn run(&mut self, stream: u64, number: u64) {
        let (now, later): (VecDeque<_>, VecDeque<_>) =
            self.work.drain(..).partition(|w| w.stream == stream && w.number <= number);
        self.work = later;
        for work in now {
            let ((src, from), (dst, to)) = (work.src, work.dst);
            let bytes = self.memory.get(&src).and_then(|m| m.bytes.get(from..from + work.len));
            let Some(bytes) = bytes.map(<[u8]>::to_vec) else {
                self.faults.push(format!("a copy ran from memory that is gone: {work:?}"));
                continue;
            };
            match self.memory.get_mut(&dst).and_then(|m| m.bytes.get_mut(to..to + work.len)) {
                Some(place) => place.copy_from_slice(&bytes),
                None => self.faults.push(format!("a copy ran to memory that is gone: {work:?}")),
            }
        }
    }
}

impl Backend for FakeBackend {
    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.left(&self.state(), MemoryKind::Device))
    }

    fn pool_info(&self, kind: MemoryKind) -> Result<MemoryInfo> {
        match (&self.apu, kind) {
            (None, MemoryKind::Pinned | MemoryKind::Mapped) => Ok(Device::host_memory()),
            _ => Ok(self.left(&self.state(), kind)),
        }
    }

    fn memory_sources(&self) -> Option<MemorySources> {
        self.apu.as_ref().map(|(sources, _)| *sources)
    }

    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory> {
        let host_sees = kind != MemoryKind::Device;
        self.call(if host_sees { Call::Pin } else { Call::Alloc })?;
        let mut state = self.state();
        let free = self.left(&state, kind).free;
        if len as u64 > free {
            return Err(out_of_memory(self.caps.id, kind, len, Some(free)));
        }
        // Device memory starts with what the last user left there.
        let mut memory = Memory { kind, bytes: vec![0xa5; len] };
        let addr = state.next_addr;
        state.next_addr += (len as u64).next_multiple_of(256) + 256;
        let host = host_sees.then(|| NonNull::new(memory.bytes.as_mut_ptr())).flatten();
        state.memory.insert(addr, memory);
        let pinned = state.bytes_of(MemoryKind::Pinned);
        state.pinned_peak = state.pinned_peak.max(pinned);
        Ok(RawMemory { device_addr: addr, host, len, kind })
    }

    unsafe fn free(&self, raw: &RawMemory) {
        let mut state = self.state();
        let used = |work: &&CopyWork| work.src.0 == raw.device_addr || work.dst.0 == raw.device_addr;
        if let Some(work) = state.work.iter().find(used).filter(|_| !state.lost) {
            let fault = format!("memory was freed under a copy: {work:?}");
            state.faults.push(fault);
        }
        if state.memory.remove(&raw.device_addr).is_none() {
            state.faults.push(format!("freed twice: {raw:?}"));
        }
    }

    fn create_stream(&self) -> Result<Box<dyn StreamBackend>> {
        let mut state = self.state();
        state.streams += 1;
        Ok(Box::new(FakeStream { backend: self.clone(), number: state.streams }))
    }

    fn create_event(&self) -> Result<Box<dyn EventBackend>> {
        self.call(Call::CreateEvent)?;
        Ok(Box::new(FakeEvent {
            backend: self.clone(),
            after: Mutex::new(None),
            seen: AtomicBool::new(true),
        }))
    }

    fn load_kernel(&self, _: &KernelSource<'_>) -> Result<Box<dyn KernelBackend>> {
        if !self.options.kernels {
            return Err(DeviceError::Unsupported { device: self.caps.id, what: "device code" });
        }
        self.call(Call::LoadKernel)?;
        Ok(Box::new(FakeKernel))
    }
}
