//! Launches that a GPU runs again and again with no host in between, for benchmarks: by itself a small kernel takes less
//! time than its launch.

use portolan_device::{Graph, Stream};

use super::{Target, run_variant};
use crate::{Launch, Result, StepShape, Variant};

/// Launches of one variant, captured one after the other.
#[derive(Debug)]
pub struct Recording {
    graph: Graph,
    /// They keep what the graph uses.
    launches: Vec<Launch>,
    runs: usize,
}

impl Recording {
    /// Captures `runs` runs of the launches in turn. Each is run once before: what it needs is compiled then, and its
    /// scratch taken.
    ///
    /// # Errors
    /// As [`run_variant`], and when the device cannot capture.
    pub fn new(
        variant: &Variant,
        mut launches: Vec<Launch>,
        runs: usize,
        shape: StepShape,
        target: &Target<'_>,
    ) -> Result<Self> {
        for launch in &mut launches {
            run_variant(variant, launch, shape, target)?;
        }
        target.stream.synchronize()?;
        target.stream.begin_capture()?;
        let count = launches.len().max(1);
        let ran = (0..runs).try_for_each(|run| match launches.get_mut(run % count) {
            Some(launch) => run_variant(variant, launch, shape, target),
            None => Ok(()),
        });
        // The capture is ended whatever happened within.
        let graph = target.stream.end_capture();
        ran?;
        Ok(Recording { graph: graph?, launches, runs })
    }

    /// The runs that one [`Recording::run`] is.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Enqueues all of them on the stream that they were captured on.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&self, stream: &Stream) -> Result<()> {
        debug_assert!(!self.launches.is_empty());
        // SAFETY: the launches, which were checked when they were placed, keep every buffer that the capture used; what
        // touches those goes through this one stream.
        Ok(unsafe { stream.launch(&self.graph) }?)
    }
}
