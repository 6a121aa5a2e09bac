//! Compiling what a program needs, and launching it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use portolan_device::{Device, DeviceError, Kernel, KernelSource, LaunchConfig, MemoryKind, Slice, Stream};

use super::{Defines, GpuKernel, offline::Wanted, sources};
use crate::{Launch, Result, StepShape};

/// Steps of up to so many rows let kernels begin early. On an H200 that made decoding an eighth faster, and a prefill of
/// 512 rows a quarter slower.
const MOST_OVERLAPPED_ROWS: usize = 32;

/// A kernel with what it is compiled with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    file: &'static str,
    entry: &'static str,
    defines: Defines,
}

/// A kernel that serves a launch, compiled and loaded.
#[derive(Clone)]
pub struct Prepared {
    kernel: &'static GpuKernel,
    loaded: Arc<Kernel>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({} of {})", self.kernel.entry, self.kernel.file)
    }
}

/// The compiled kernels of a device, each once.
#[derive(Debug)]
pub struct GpuPrograms {
    device: Device,
    loaded: Mutex<HashMap<Key, Arc<Kernel>>>,
}

impl GpuPrograms {
    /// None compiled yet.
    pub fn new(device: &Device) -> Self {
        GpuPrograms { device: device.clone(), loaded: Mutex::default() }
    }

    /// How many kernels have been compiled or found on disk.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Kernel>>> {
        // Nothing panics while it is held.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles and loads the kernels of several launches, those that differ side by side.
    ///
    /// # Errors
    /// The compiler's, with its log; what the device reports.
    pub fn prepare(&self, wanted: &[(&'static GpuKernel, &Launch)]) -> Result<Vec<Prepared>> {
        let keys: Vec<Key> = wanted.iter().map(|(kernel, launch)| self.key(kernel, launch)).collect();
        let mut missing: Vec<&Key> = Vec::new();
        {
            let loaded = self.lock();
            for key in &keys {
                if !loaded.contains_key(key) && !missing.contains(&key) {
                    missing.push(key);
                }
            }
        }
        self.load_all(&missing)?;
        let loaded = self.lock();
        let prepared = keys
            .iter()
            .zip(wanted)
            .filter_map(|(key, (kernel, _))| Some(Prepared { kernel, loaded: loaded.get(key)?.clone() }));
        Ok(prepared.collect())
    }

    /// Compiles kernels ahead, side by side, so that launches find them.
    pub fn load_ahead(&self, wanted: &[Wanted]) -> Result<()> {
        let key = |w: &Wanted| Key {
            file: w.file.rsplit_once('.').map_or(w.file, |(stem, _)| stem),
            entry: w.entry,
            defines: w.defines.clone(),
        };
        let keys: Vec<Key> = wanted.iter().map(key).collect();
        let loaded = self.lock();
        let missing: Vec<&Key> = keys.iter().filter(|key| !loaded.contains_key(key)).collect();
        drop(loaded);
        self.load_all(&missing)
    }

    /// Compiles and loads kernels, each on a thread of its own.
    fn load_all(&self, missing: &[&Key]) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(missing.len());
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(&key) = missing.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                let kernel = Arc::new(self.load(key)?);
                self.lock().insert(key.clone(), kernel);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles.into_iter().try_for_each(|handle| match handle.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn key(&self, kernel: &'static GpuKernel, launch: &Launch) -> Key {
        let defines = kernel.all_defines(launch, self.device.caps());
        Key { file: kernel.file, entry: kernel.entry, defines }
    }

    fn load(&self, key: &Key) -> Result<Kernel> {
        let kind = self.device.caps().kind();
        // The chart offers no variant without a file.
        let (file, text) = sources::file(kind, key.file)
            .ok_or(DeviceError::Unsupported { device: self.device.id(), what: "this kernel" })?;
        Ok(self.device.kernel(&KernelSource {
            file,
            text,
            headers: sources::headers(kind),
            entry: key.entry,
            defines: &key.defines,
        })?)
    }

    /// Room for kernels' own use, zeroed, of a kind of memory that kernels reach.
    pub fn scratch(&self, stream: &Stream, bytes: usize, kind: MemoryKind) -> Result<Slice> {
        let slice = self.device.alloc(bytes, kind)?.whole();
        // SAFETY: the memory is new.
        unsafe { stream.fill(&slice, 0) }?;
        Ok(slice)
    }

    /// Bytes of scratch that a kernel wants for a launch's largest step.
    pub fn scratch_bytes(&self, kernel: &GpuKernel, launch: &Launch, largest: StepShape) -> usize {
        (kernel.scratch)(launch, largest, self.device.caps())
    }
}

impl Prepared {
    /// Enqueues it for a step.
    ///
    /// # Safety
    /// What the launch names stays allocated until the work is done, and all that touches it is ordered on `stream`.
    /// The launch has passed [`Launch::check`], the step fits its buffers, and its scratch is what the kernel asked for.
    pub unsafe fn enqueue(
        &self,
        device: &Device,
        stream: &Stream,
        launch: &Launch,
        shape: StepShape,
    ) -> Result<()> {
        let call = (self.kernel.call)(launch, shape, device.caps());
        let mut config = LaunchConfig::new(call.grid, call.block, call.shared);
        // Every kernel waits by itself for what is ahead of it (`begin` of dialect.cuh). Small ones gain what launching
        // takes; large ones lose, since blocks that wait hold room that others could work in.
        config.overlap = shape.rows <= MOST_OVERLAPPED_ROWS && device.caps().has_feature("overlap");
        // SAFETY: the caller's promise; the struct is the kernel's own, which its text asserts.
        Ok(unsafe { stream.launch_kernel(&self.loaded, &config, call.args.as_bytes()) }?)
    }
}
