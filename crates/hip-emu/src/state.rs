//! What the process has of the runtime: memory, clocks, and the live objects.

use std::{
    ffi::c_void,
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::{
    clocks::Clocks,
    codes::Code,
    compile::Program,
    event::Event,
    graph::Graph,
    handles::Handles,
    inject,
    memory::Memory,
    module::{Function, Module},
    report, settings,
    stream::Stream,
};

/// Memory and order, under one lock. Nobody waits for a queue while holding it.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) clocks: Clocks,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// Takes the lock.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) static STREAMS: Handles<Stream> = Handles::new("stream", 1);
pub(crate) static EVENTS: Handles<Event> = Handles::new("event", 2);
pub(crate) static MODULES: Handles<Module> = Handles::new("module", 3);
pub(crate) static FUNCTIONS: Handles<Function> = Handles::new("function", 4);
pub(crate) static GRAPHS: Handles<Graph> = Handles::new("graph", 5);
pub(crate) static EXECS: Handles<Graph> = Handles::new("executable graph", 6);
pub(crate) static PROGRAMS: Handles<Mutex<Program>> = Handles::new("program", 7);

/// The stream that takes work for which none is named.
pub(crate) fn default_stream() -> Result<Arc<Stream>, Code> {
    static DEFAULT: OnceLock<Result<Arc<Stream>, Code>> = OnceLock::new();
    DEFAULT.get_or_init(|| Stream::start(0, true)).clone()
}

/// The stream of a handle; none and the legacy one are the default stream.
pub(crate) fn stream_of(handle: *mut c_void) -> Result<Arc<Stream>, Code> {
    if handle as usize <= 1 { default_stream() } else { STREAMS.get(handle) }
}

/// All streams, the default one included.
pub(crate) fn all_streams() -> Result<Vec<Arc<Stream>>, Code> {
    let mut streams = STREAMS.all();
    streams.push(default_stream()?);
    Ok(streams)
}

/// What is alive, a line each; nothing where all was given back.
pub(crate) fn leaks() -> Vec<String> {
    let mut told: Vec<String> =
        state().memory.live().map(|a| format!("leak: {}{}", a.words(), a.history())).collect();
    // Functions go with their modules.
    let objects =
        [STREAMS.told(), EVENTS.told(), MODULES.told(), GRAPHS.told(), EXECS.told(), PROGRAMS.told()];
    told.extend(objects.into_iter().flatten().map(|object| format!("leak: {object}")));
    told
}

/// How many objects of all kinds are alive.
pub(crate) fn live() -> usize {
    let objects = [STREAMS.len(), EVENTS.len(), MODULES.len(), GRAPHS.len(), EXECS.len(), PROGRAMS.len()];
    state().memory.live().count() + objects.iter().sum::<usize>()
}

/// Makes what is alive at the end of the process a violation, and writes how often each function was called, where that
/// is asked for.
pub(crate) fn tell_at_exit() {
    extern "C" fn tell() {
        let settings = settings::get();
        if settings.leaks {
            leaks().iter().for_each(|leak| report::violation(leak));
        }
        if let Some(path) = settings.calls
            && let Err(error) = std::fs::write(&path, inject::counts())
        {
            report::say(&format!("HIP_EMU_CALLS={}: {error}", path.display()));
        }
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: a function without arguments, in a library whose threads keep it loaded.
    ONCE.call_once(|| unsafe {
        libc::atexit(tell);
    });
}

/// Tells of a fault of the host's own code that lies in or near a buffer, before the process ends of it. In a signal
/// handler, so the lock is only tried.
pub(crate) fn host_fault(address: usize) {
    let Ok(state) = STATE.try_lock() else { return };
    if state.memory.near(address).is_some() {
        report::say(&format!("on the host: {}", state.memory.explain(address)));
    }
}
