//! The devices that are to fail, and a watchdog.

use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use portolan::{
    Error, LoadOptions, Plan,
    device::{
        Device, DeviceError,
        backend::Backend,
        cpu::{CpuBackend, CpuOptions},
        cuda::CudaBackend,
        fake::{Call, FakeBackend, FakeOptions, Fault, FaultKind, Faulty, Live},
        rocm::RocmBackend,
    },
    weights::LoadMode,
};
use portolan_testkit::{oracle, skipped};

/// How many calls of a kind are tried at most.
const MOST: usize = 24;

/// A device that the faults are put around.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    inner: Arc<dyn Backend>,
    fake: Option<FakeBackend>,
}

impl Subject {
    /// The CPU; a GPU that computes nothing, for the paths that only a GPU has; a real one where there is one.
    pub(crate) fn all() -> Vec<Subject> {
        let cpu = CpuBackend::new(&CpuOptions { threads: 1 }).unwrap();
        let fake = FakeBackend::new(FakeOptions { kernels: true, ..Default::default() });
        let mut all = vec![
            Subject { name: "cpu", inner: Arc::new(cpu), fake: None },
            Subject { name: "fake", inner: Arc::new(fake.clone()), fake: Some(fake) },
        ];
        match CudaBackend::new(0) {
            Ok(cuda) => all.push(Subject { name: "cuda", inner: Arc::new(cuda), fake: None }),
            Err(error) => skipped(&error.to_string()),
        }
        match RocmBackend::new(0) {
            Ok(rocm) => all.push(Subject { name: "rocm", inner: Arc::new(rocm), fake: None }),
            Err(error) => skipped(&error.to_string()),
        }
        all
    }

    pub(crate) fn faulty(&self) -> Faulty {
        Faulty::new(self.inner.clone())
    }

    pub(crate) fn device(&self) -> Device {
        Device::from_backend(self.inner.clone())
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// Everything was given back, once and in time.
    #[track_caller]
    pub(crate) fn check_clean(&self, faulty: &Faulty, what: &str) {
        assert_eq!((faulty.live(), faulty.strays()), (Live::default(), 0), "{what}: left behind");
        if let Some(fake) = &self.fake {
            assert_eq!((fake.live(), fake.faults()), (0, vec![]), "{what}");
        }
    }
}

/// The faults of a kind of call that was made `count` times: each call, or else the first, the last, and some between; in
/// every way that it fails.
pub(crate) fn faults(call: Call, count: usize) -> Vec<Fault> {
    let n = count.min(MOST);
    let picks = (0..n).map(|i| if n < 2 { 0 } else { i * (count - 1) / (n - 1) });
    picks.flat_map(|nth| kinds(call).iter().map(move |&kind| Fault { call, nth, kind })).collect()
}

/// The models: plain weights, and packed ones.
pub(crate) fn models() -> Vec<(&'static str, PathBuf)> {
    ["tiny/llama", "mlx/llama-affine-4b-g64"]
        .into_iter()
        .filter_map(|name| Some((name, oracle(name)?)))
        .collect()
}

/// Small enough that a load is quick, and with kernels whose results do not depend on the rows beside.
pub(crate) fn plan(path: &Path, device: &Device, mode: LoadMode) -> Result<Plan, Error> {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.deterministic = true;
    options.context = Some(96);
    options.cache_tokens = Some(256);
    options.chunk = 32;
    options.max_sequences = 2;
    options.max_logits = 4;
    options.load = mode;
    Plan::new(path, device, &options)
}

/// How each kind of call is made to fail.
fn kinds(call: Call) -> &'static [FaultKind] {
    match call {
        Call::Alloc | Call::Pin => &[FaultKind::OutOfMemory, FaultKind::Failed, FaultKind::Lost],
        _ => &[FaultKind::Failed, FaultKind::Lost],
    }
}

/// Whether a fault may go by without an error: memory that cannot be pinned is done without, a refused chunk of weights
/// is halved, a step that cannot be captured runs kernel by kernel; and a wait may have been for the end of what had
/// come already.
pub(crate) fn may_pass(fault: Fault) -> bool {
    match fault.call {
        Call::WaitEvent => true,
        _ if fault.kind == FaultKind::Lost => false,
        Call::Pin | Call::BeginCapture | Call::EndCapture | Call::Launch => true,
        Call::Alloc => fault.kind == FaultKind::OutOfMemory,
        _ => false,
    }
}

/// The error is the device's, of the kind that was asked for; one of memory says how much was asked.
#[track_caller]
pub(crate) fn check_error(error: &Error, kind: FaultKind, what: &str) {
    let right = match (kind, error.device_error()) {
        (
            FaultKind::OutOfMemory,
            Some(DeviceError::OutOfMemory { asked, .. } | DeviceError::NoRoom { asked, .. }),
        ) => *asked > 0 && error.to_string().contains(&asked.to_string()),
        (FaultKind::Failed, Some(DeviceError::Failed { .. })) => true,
        (FaultKind::Lost, Some(DeviceError::Lost { .. })) => error.to_string().contains("was lost"),
        _ => false,
    };
    assert!(right, "{what}: {error:?}");
}

/// Far longer than anything here takes: what is not done by then hangs.
const LONG: Duration = Duration::from_secs(120);

/// Runs some work on a thread of its own. A hang and a panic fail the test.
pub(crate) fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(LONG) {
        Ok(value) => {
            let _ = thread.join();
            value
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(_) => panic!("{what}: it ended without a result"),
        },
    }
}

/// The place of the largest number: the token that a greedy sampler takes.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(id, _)| id as u32)
}

/// A prompt that no other `salt` gives.
pub(crate) fn prompt(salt: u32) -> Vec<u32> {
    (0..40).map(|i| 3 + (salt * 101 + i * (37 + salt)) % 509).collect()
}
