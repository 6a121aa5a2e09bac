//! Launches that a GPU runs again and again with no host in between, for benchmarks: by itself a small kernel takes less
//! time than its launch.

use portolan_device::{Device, Graph, Stream};

use super::{Target, run_variant};
use crate::{
    Launch, Result, StepShape, Variant,
    chart::Entry,
    gpu::{GpuPrograms, Prepared},
};

/// Launches of one variant, captured one after the other, on a stream of their own.
#[derive(Debug)]
pub struct Recording {
    graph: Graph,
    stream: Stream,
    runs: usize,
    /// They keep what the graph uses: buffers, and kernels.
    _launches: Vec<Launch>,
    _kernels: Vec<Prepared>,
}

impl Recording {
    /// Captures `runs` runs of the launches in turn. Each is run once before: what it needs is compiled then, and its
    /// scratch taken. What was enqueued for them elsewhere must be done.
    ///
    /// # Errors
    /// As [`run_variant`], and when the device cannot capture.
    pub fn new(
        variant: &Variant,
        mut launches: Vec<Launch>,
        runs: usize,
        shape: StepShape,
        (device, programs): (&Device, &GpuPrograms),
    ) -> Result<Self> {
        let stream = device.stream()?;
        let target = Target { device, team: None, stream: &stream, programs };
        let warm = launches.iter_mut().try_for_each(|launch| run_variant(variant, launch, shape, &target));
        // Whatever happened: the launches may be dropped now.
        stream.synchronize()?;
        warm?;
        let mut kernels = Vec::new();
        if let Entry::Gpu(kernel) = variant.entry {
            for launch in &launches {
                kernels.extend(programs.prepare(&[(kernel, launch)])?);
            }
        }
        stream.begin_capture()?;
        let count = launches.len().max(1);
        let ran = (0..runs).try_for_each(|run| match launches.get_mut(run % count) {
            Some(launch) => run_variant(variant, launch, shape, &target),
            None => Ok(()),
        });
        // The capture is ended whatever happened within.
        let graph = stream.end_capture();
        ran?;
        Ok(Recording { graph: graph?, stream, runs, _launches: launches, _kernels: kernels })
    }

    /// The runs that one [`Recording::run`] is.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Enqueues all of them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&self) -> Result<()> {
        // SAFETY: the launches were checked when they were placed; they and the kernels keep what the capture used, and
        // are dropped only once the stream is done.
        Ok(unsafe { self.stream.launch(&self.graph) }?)
    }

    /// Waits for what was enqueued.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::warn!("recorded launches may not have ended: {error}");
        }
    }
}
