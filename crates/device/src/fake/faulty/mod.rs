//! A device around another: it counts what is called and what is live, and makes one call fail.
//!
//! Whatever does not fail is the inner device's: its memory, its kernels, its results. So a test over the CPU or a GPU
//! computes real numbers up to the fault, and can ask for them again after it.
//!
//! A call that fails does not reach the inner device, with two exceptions, without which the inner device would be left
//! in a state that no driver leaves behind: a capture is ended all the same, and a device that is lost first finishes
//! what it was given, since whoever hears of the loss may free the memory at once.

mod stream;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use stream::{FaultyEvent, FaultyKernel, FaultyStream};

use super::Call;
use crate::{
    Device, DeviceCaps, DeviceError, KernelSource, MemoryInfo, MemoryKind, Result,
    backend::{Backend, EventBackend, KernelBackend, RawMemory, StreamBackend},
    cpu::Team,
};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// [`DeviceError::OutOfMemory`].
    OutOfMemory,
    /// [`DeviceError::Failed`].
    Failed,
    /// [`DeviceError::Lost`], which is the answer to every later call as well.
    Lost,
}

/// The call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub call: Call,
    /// Which one, counted from 0 over the calls of that kind since the fault was set.
    pub nth: usize,
    /// How.
    pub kind: FaultKind,
}

/// What was made and is not yet given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Allocations.
    pub allocations: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Streams, events, kernels and graphs.
    pub objects: usize,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<Call, usize>,
    /// The fault, and how many calls of its kind are still to go well.
    fault: Option<(Fault, usize)>,
    fired: bool,
    lost: bool,
    memory: HashMap<u64, usize>,
    /// Memory that was given back without having been taken.
    strays: usize,
    /// All streams, to be waited for when the device is lost.
    streams: Vec<Weak<dyn StreamBackend>>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<dyn Backend>,
    state: Mutex<State>,
    /// Held once by every stream, event, kernel and graph.
    objects: Arc<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it where it is to fail. `asked` is what an allocation asks for.
    fn call_for(&self, call: Call, pool: &'static str, asked: usize) -> Result<()> {
        let mut state = self.state();
        *state.calls.entry(call).or_default() += 1;
        let device = self.inner.caps().id;
        let lost = || DeviceError::Lost { device, reason: format!("{} was told to fail", call.name()) };
        if state.lost {
            return Err(lost());
        }
        let Some((fault, left)) = state.fault.as_mut().filter(|(fault, _)| fault.call == call) else {
            return Ok(());
        };
        if *left > 0 {
            *left -= 1;
            return Ok(());
        }
        let kind = fault.kind;
        (state.fault, state.fired) = (None, true);
        match kind {
            FaultKind::OutOfMemory => Err(DeviceError::OutOfMemory { device, pool, asked, available: None }),
            FaultKind::Failed => {
                let reason = "it was told to fail".to_owned();
                Err(DeviceError::Failed { device, call: call.name(), reason })
            }
            FaultKind::Lost => {
                state.lost = true;
                let streams = std::mem::take(&mut state.streams);
                drop(state);
                for stream in streams.iter().filter_map(Weak::upgrade) {
                    // A stream that captures refuses, and has nothing under way.
                    let _ = stream.synchronize();
                }
                Err(lost())
            }
        }
    }

    fn call(&self, call: Call) -> Result<()> {
        self.call_for(call, MemoryKind::Device.name(), 0)
    }
}

/// The device. See the [module](self). Cloning shares it.
#[derive(Clone, Debug)]
pub struct Faulty {
    shared: Arc<Shared>,
}

impl Faulty {
    /// Around `inner`, without a fault so far.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Faulty { shared: Arc::new(Shared { inner, state: Mutex::default(), objects: Arc::default() }) }
    }

    /// A handle to it. This object goes on telling what the handle's users did.
    pub fn device(&self) -> Device {
        Device::from_backend(Arc::new(self.clone()))
    }

    /// Sets the fault, counted from now on, and forgets one that has not come yet.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        (state.fault, state.fired) = (Some((fault, fault.nth)), false);
    }

    /// Whether the fault has come.
    pub fn fired(&self) -> bool {
        self.shared.state().fired
    }

    /// How often a call was made.
    pub fn calls(&self, call: Call) -> usize {
        self.shared.state().calls.get(&call).copied().unwrap_or(0)
    }

    /// What is live.
    pub fn live(&self) -> Live {
        let objects = Arc::strong_count(&self.shared.objects) - 1;
        let state = self.shared.state();
        Live { allocations: state.memory.len(), bytes: state.memory.values().sum(), objects }
    }

    /// How often memory was given back that was not taken, or was given back before.
    pub fn strays(&self) -> usize {
        self.shared.state().strays
    }

    fn held<T>(&self, inner: T) -> Held<T> {
        Held { inner, shared: self.shared.clone(), _counted: self.shared.objects.clone() }
    }
}

/// An object of the inner device, counted while it lives.
#[derive(Debug)]
struct Held<T> {
    inner: T,
    shared: Arc<Shared>,
    _counted: Arc<()>,
}

impl Backend for Faulty {
    fn caps(&self) -> &DeviceCaps {
        self.shared.inner.caps()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.shared.call(Call::MemoryInfo)?;
        self.shared.inner.memory_info()
    }

    fn alloc(&self, len: usize, kind: MemoryKind) -> Result<RawMemory> {
        let call = if kind == MemoryKind::Device { Call::Alloc } else { Call::Pin };
        self.shared.call_for(call, kind.name(), len)?;
        let raw = self.shared.inner.alloc(len, kind)?;
        self.shared.state().memory.insert(raw.device_addr, raw.len);
        Ok(raw)
    }

    unsafe fn free(&self, raw: &RawMemory) {
        // Before the inner device can give the address to somebody else.
        if self.shared.state().memory.remove(&raw.device_addr).is_none() {
            self.shared.state().strays += 1;
            return;
        }
        // SAFETY: the caller's promise; the memory came from the inner device's `alloc` through this one's.
        unsafe { self.shared.inner.free(raw) }
    }

    fn create_stream(&self) -> Result<Box<dyn StreamBackend>> {
        self.shared.call(Call::CreateStream)?;
        let inner: Arc<dyn StreamBackend> = Arc::from(self.shared.inner.create_stream()?);
        self.shared.state().streams.push(Arc::downgrade(&inner));
        Ok(Box::new(FaultyStream(self.held(inner))))
    }

    fn create_event(&self) -> Result<Box<dyn EventBackend>> {
        self.shared.call(Call::CreateEvent)?;
        Ok(Box::new(FaultyEvent(self.held(self.shared.inner.create_event()?))))
    }

    fn load_kernel(&self, source: &KernelSource<'_>) -> Result<Box<dyn KernelBackend>> {
        self.shared.call(Call::LoadKernel)?;
        Ok(Box::new(FaultyKernel(self.held(self.shared.inner.load_kernel(source)?))))
    }

    fn team(&self) -> Option<&Arc<Team>> {
        self.shared.inner.team()
    }
}
