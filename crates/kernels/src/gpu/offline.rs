//! Which kernels the cases of the conformance suite need on a device that need not be there: to compile them all.

use std::collections::BTreeSet;

use portolan_device::{DType, Device, DeviceCaps, KernelSource, cpu::CpuOptions};
use portolan_weights::Layout;

use super::{Defines, sources, variants};
use crate::{
    OpKind, Result, Variant,
    conformance::{
        cases,
        host::Case,
        place::{Placer, weight_specs},
    },
};

/// A kernel to compile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The op.
    pub op: OpKind,
    /// The variant.
    pub variant: &'static str,
    /// The file of device code, with its extension.
    pub file: &'static str,
    /// The entry point.
    pub entry: &'static str,
    /// What it is compiled with.
    pub defines: Defines,
}

impl Wanted {
    /// Its text.
    pub fn source(&self, caps: &DeviceCaps) -> KernelSource<'_> {
        let stem = self.file.rsplit_once('.').map_or(self.file, |(stem, _)| stem);
        let text = sources::file(caps.kind(), stem).map_or("", |(_, text)| text);
        KernelSource {
            file: self.file,
            text,
            headers: sources::headers(caps.kind()),
            entry: self.entry,
            defines: &self.defines,
        }
    }
}

/// Every kernel that the cases of the conformance suite need on a device with these capabilities, each once: of those
/// variants that `filter` wants, for those cases that `keep` keeps.
pub fn wanted(
    caps: &DeviceCaps,
    activations: &[DType],
    filter: &dyn Fn(OpKind, &Variant) -> bool,
    keep: &dyn Fn(&Case) -> bool,
) -> Result<Vec<Wanted>> {
    let host = Device::cpu(&CpuOptions { threads: 1 })?;
    let mut found = BTreeSet::new();
    for &activation in activations {
        let placer = Placer::new(&host, activation)?;
        for op in OpKind::ALL {
            let variants: Vec<_> = variants(op, caps.kind()).iter().filter(|v| filter(op, v)).collect();
            // Making the cases takes longer than looking at them.
            let cases = if variants.is_empty() { Vec::new() } else { cases::of(op) };
            for case in cases.into_iter().filter(|case| keep(case)) {
                let weights = weight_specs(&case, Layout::Planes);
                let spec = case.spec(&weights, activation);
                let serves = |v: &&&Variant| {
                    (v.rows.0..=v.rows.1).contains(&spec.rows) && (v.takes)(&spec, caps).is_ok()
                };
                let taking = variants.iter().filter(serves);
                let taking: Vec<_> = taking.filter_map(|v| Some((*v, v.entry.gpu()?))).collect();
                if taking.is_empty() || case.rows() == 0 {
                    continue;
                }
                let launch = placer.place(&case, Layout::Planes)?.launch;
                for (variant, kernel) in taking {
                    let defines = kernel.all_defines(&launch, caps);
                    let Some((file, _)) = sources::file(caps.kind(), kernel.file) else { continue };
                    found.insert(Wanted { op, variant: variant.name, file, entry: kernel.entry, defines });
                }
            }
        }
    }
    Ok(found.into_iter().collect())
}
