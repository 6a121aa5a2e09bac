//! Kernels and graphs of the fake device: they are counted, and compute nothing.

use super::{Call, FakeBackend};
use crate::{
    KernelResources, Result,
    backend::{GraphBackend, KernelBackend, StreamBackend},
};

#[derive(Debug)]
pub(super) struct FakeKernel;

impl KernelBackend for FakeKernel {
    fn resources(&self) -> KernelResources {
        KernelResources::default()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[derive(Debug)]
pub(super) struct FakeGraph {
    pub(super) backend: FakeBackend,
}

impl GraphBackend for FakeGraph {
    unsafe fn launch(&self, _: &dyn StreamBackend) -> Result<()> {
        self.backend.call(Call::LaunchGraph)
    }
}
