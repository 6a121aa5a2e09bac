//! The calls of a device that can be made to fail.

/// A call that can be made to fail. [`FakeBackend`](super::FakeBackend) counts those that a load makes and, with
/// kernels, those of a step; [`Faulty`](super::Faulty) counts all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// An allocation of device memory.
    Alloc,
    /// An allocation of pinned memory.
    Pin,
    /// A question after free memory.
    MemoryInfo,
    /// A new stream.
    CreateStream,
    /// A new event.
    CreateEvent,
    /// A kernel compiled and loaded.
    LoadKernel,
    /// A copy handed to a stream.
    Copy,
    /// An upload of pageable bytes.
    Upload,
    /// A download to pageable bytes.
    Download,
    /// Bytes set.
    Fill,
    /// A kernel launched, or recorded while a stream captures.
    Launch,
    /// An event recorded.
    Record,
    /// A stream told to wait for an event.
    StreamWait,
    /// A wait for an event, or a question after it.
    WaitEvent,
    /// A wait for a stream.
    Synchronize,
    /// The beginning of a capture.
    BeginCapture,
    /// The end of a capture.
    EndCapture,
    /// A captured graph launched.
    LaunchGraph,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 18] = [
        Call::Alloc,
        Call::Pin,
        Call::MemoryInfo,
        Call::CreateStream,
        Call::CreateEvent,
        Call::LoadKernel,
        Call::Copy,
        Call::Upload,
        Call::Download,
        Call::Fill,
        Call::Launch,
        Call::Record,
        Call::StreamWait,
        Call::WaitEvent,
        Call::Synchronize,
        Call::BeginCapture,
        Call::EndCapture,
        Call::LaunchGraph,
    ];

    /// Its name in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Call::Alloc => "alloc",
            Call::Pin => "pin",
            Call::MemoryInfo => "memory_info",
            Call::CreateStream => "create_stream",
            Call::CreateEvent => "create_event",
            Call::LoadKernel => "load_kernel",
            Call::Copy => "copy",
            Call::Upload => "upload",
            Call::Download => "download",
            Call::Fill => "fill",
            Call::Launch => "launch",
            Call::Record => "record",
            Call::StreamWait => "wait",
            Call::WaitEvent => "event",
            Call::Synchronize => "synchronize",
            Call::BeginCapture => "begin_capture",
            Call::EndCapture => "end_capture",
            Call::LaunchGraph => "launch of a graph",
        }
    }
}
