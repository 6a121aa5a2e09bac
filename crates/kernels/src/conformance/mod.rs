//! The conformance suite, made from the chart.
//!
//! For every op and every variant in a device's slot, chosen or not, [`run`] makes cases over types, encodings,
//! layouts and awkward sizes, and holds the result against the op's decomposition run by the plain f32 kernels.
//! Outputs and caches are filled with NaN first, so that an unwritten element and a stray read are seen, and lie
//! between guards. A variant that calls itself batch-invariant is run again on fewer rows, and a CPU kernel with
//! another number of threads: both must give the same bits.
//!
//! Benchmarks place their inputs with the same code: see [`host`], [`cases`] and [`place`].

pub mod cases;
mod compare;
pub mod host;
pub mod place;
mod recording;
pub mod reference;
pub mod rng;
pub mod tolerance;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use portolan_device::{DType, Device, DeviceKind, MemoryKind, Stream, cpu::Team};
use portolan_weights::Layout;

pub use crate::cpu::plain::reference as plain_variant;
pub use compare::{Failure, Worst};
use host::Case;
use place::{Placer, Results, weight_specs};
pub use recording::Recording;
use reference::Reference;

use crate::{
    KernelError, Launch, OpKind, Result, StepShape, Variant, chart,
    chart::Entry,
    gpu::{GpuPrograms, offline},
};

/// One variant's answer to one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The op.
    pub op: OpKind,
    /// The variant.
    pub variant: &'static str,
    /// The type of activations.
    pub activation: DType,
    /// The case and the layout of its weights.
    pub case: String,
    /// The worst error, or what is wrong.
    pub outcome: Result<Worst, Failure>,
}

/// A variant over all of its cases.
#[derive(Clone, Debug)]
pub struct SummaryRow {
    /// The op.
    pub op: OpKind,
    /// The variant.
    pub variant: &'static str,
    /// The type of activations.
    pub activation: DType,
    /// Cases that it took.
    pub cases: usize,
    /// Of which it failed.
    pub failed: usize,
    /// The worst error of those that it passed.
    pub worst: Worst,
    /// What is allowed.
    pub allowed: f32,
}

/// All variants of a device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// In the order of the chart.
    pub rows: Vec<SummaryRow>,
}

impl Summary {
    /// Failed cases of all variants.
    pub fn failed(&self) -> usize {
        self.rows.iter().map(|r| r.failed).sum()
    }

    /// Variants that no case reached with any type of activations: a hole in the suite.
    pub fn not_run(&self) -> Vec<(OpKind, &'static str)> {
        let reached = |row: &&SummaryRow| {
            self.rows.iter().any(|r| (r.op, r.variant) == (row.op, row.variant) && r.cases > 0)
        };
        let mut missed: Vec<_> =
            self.rows.iter().filter(|r| !reached(r)).map(|r| (r.op, r.variant)).collect();
        missed.dedup();
        missed
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<14} {:<5} {:>6} {:>6} {:>10} {:>10} {:>6}",
            "op", "variant", "type", "cases", "failed", "worst", "allowed", "share"
        )?;
        for r in &self.rows {
            let share = r.worst.share * 100.0;
            writeln!(
                f,
                "{:<14} {:<14} {:<5} {:>6} {:>6} {:>10.2e} {:>10.2e} {share:>5.0}%",
                r.op.name(),
                r.variant,
                r.activation.to_string(),
                r.cases,
                r.failed,
                r.worst.error,
                r.allowed
            )?;
        }
        Ok(())
    }
}

/// Runs every variant of a device that `filter` wants over the cases that `keep` keeps, and reports each.
///
/// # Errors
/// When a device cannot be used at all. What goes wrong in a case is that case's outcome.
pub fn run(
    device: &Device,
    filter: &dyn Fn(OpKind, &Variant) -> bool,
    keep: &dyn Fn(&Case) -> bool,
    report: &mut dyn FnMut(CaseResult),
) -> Result<Summary> {
    let mut summary = Summary::default();
    for &activation in activations(device) {
        let suite = Suite::new(device, activation)?;
        if device.caps().kind() != DeviceKind::Cpu {
            // Thousands of kernels are better compiled side by side than one by one.
            let wanted = offline::wanted(device.caps(), &[activation], filter, keep)?;
            tracing::info!("{activation}: {} kernels", wanted.len());
            suite.programs.load_ahead(&wanted)?;
        }
        for op in OpKind::ALL {
            let variants: Vec<_> =
                chart::slot(op, device.caps().kind()).iter().filter(|v| filter(op, v)).collect();
            summary.rows.extend(suite.op(op, &variants, keep, report));
        }
    }
    Ok(summary)
}

/// The types of activations that a device's kernels have.
pub fn activations(device: &Device) -> &'static [DType] {
    match device.caps().kind() {
        DeviceKind::Cpu => &[DType::F32],
        DeviceKind::Cuda | DeviceKind::Rocm => &[DType::F32, DType::F16, DType::BF16],
    }
}

/// The suite on one device, with one type of activations.
#[derive(Debug)]
pub struct Suite {
    placer: Placer,
    programs: GpuPrograms,
    reference: Reference,
    /// A team of another size than the device's.
    other_team: Team,
}

impl Suite {
    /// Prepares the device and the reference.
    pub fn new(device: &Device, activation: DType) -> Result<Self> {
        let threads = device.team().map_or(1, |t| t.threads());
        let other_team = Team::new(if threads == 3 { 2 } else { 3 }).map_err(|e| {
            portolan_device::DeviceError::Failed {
                device: device.id(),
                call: "starting threads",
                reason: e.to_string(),
            }
        })?;
        let placer = Placer::new(device, activation)?;
        Ok(Suite { placer, programs: GpuPrograms::new(device), reference: Reference::new()?, other_team })
    }

    /// Runs variants of one op over all of the op's cases.
    pub fn op(
        &self,
        op: OpKind,
        variants: &[&Variant],
        keep: &dyn Fn(&Case) -> bool,
        report: &mut dyn FnMut(CaseResult),
    ) -> Vec<SummaryRow> {
        let row = |v: &&Variant| SummaryRow {
            op,
            variant: v.name,
            activation: self.placer.activation(),
            cases: 0,
            failed: 0,
            worst: Worst::default(),
            allowed: tolerance::of_variant(op, v, self.placer.activation()),
        };
        let mut rows: Vec<_> = variants.iter().map(row).collect();
        if variants.is_empty() {
            return rows;
        }
        for case in cases::of(op).into_iter().filter(|case| keep(case)) {
            let case = case.rounded(self.placer.activation());
            // Run when the first variant takes the case.
            let mut expected = None;
            for layout in self.layouts(&case) {
                for (row, variant) in rows.iter_mut().zip(variants) {
                    if !self.takes(variant, &case, layout) {
                        continue;
                    }
                    let expected = expected.get_or_insert_with(|| self.reference.run(&case));
                    let outcome = match expected {
                        Ok(expected) => self.check(variant, &case, layout, expected),
                        Err(error) => Err(Failure::NotRun(format!("reference: {error}"))),
                    };
                    row.cases += 1;
                    match &outcome {
                        Ok(worst) => {
                            row.worst.error = row.worst.error.max(worst.error);
                            row.worst.share = row.worst.share.max(worst.share);
                        }
                        Err(_) => row.failed += 1,
                    }
                    let case = match layout {
                        Layout::Planes => case.name.clone(),
                        other => format!("{} {other:?}", case.name),
                    };
                    let activation = self.placer.activation();
                    report(CaseResult { op, variant: variant.name, activation, case, outcome });
                }
            }
        }
        rows
    }

    /// The layouts that the device's kernels would like for the case's matrices.
    fn layouts(&self, case: &Case) -> Vec<Layout> {
        let mut layouts = vec![Layout::Planes];
        if let Some(w) = case.weights.iter().find(|w| w.is_matrix()) {
            for layout in chart::layouts(w.encoding, &w.shape, self.placer.device().caps()) {
                if !layouts.contains(&layout) {
                    layouts.push(layout);
                }
            }
        }
        layouts
    }

    fn takes(&self, variant: &Variant, case: &Case, layout: Layout) -> bool {
        let weights = weight_specs(case, layout);
        let spec = case.spec(&weights, self.placer.activation());
        (variant.rows.0..=variant.rows.1).contains(&spec.rows)
            && (variant.takes)(&spec, self.placer.device().caps()).is_ok()
    }

    /// Runs a variant on a case and holds it against the reference.
    fn check(
        &self,
        variant: &Variant,
        case: &Case,
        layout: Layout,
        expected: &Results,
    ) -> Result<Worst, Failure> {
        let results = self.results(variant, case, layout, None)?;
        let activation = self.placer.activation();
        let limit = tolerance::of_variant(case.op.kind(), variant, activation);
        let worst = compare::compare(case, limit, activation, &results, expected)?;
        if matches!(variant.entry, Entry::Cpu(_))
            && self.results(variant, case, layout, Some(&self.other_team))? != results
        {
            return Err(Failure::Threads);
        }
        if variant.batch_invariant {
            self.check_parts(variant, case, layout, &results)?;
        }
        Ok(worst)
    }

    /// The first and the last rows of a case, run alone, must give the bits that they have in the whole.
    fn check_parts(
        &self,
        variant: &Variant,
        case: &Case,
        layout: Layout,
        whole: &Results,
    ) -> Result<(), Failure> {
        let fewest = variant.rows.0.max(1);
        if fewest >= case.rows() {
            return Ok(());
        }
        for first in [0, case.rows() - fewest] {
            let Some(part) = case.part(first, fewest).filter(|part| self.takes(variant, part, layout)) else {
                continue;
            };
            let results = self.results(variant, &part, layout, None)?;
            for (part, whole) in results.outputs.iter().zip(&whole.outputs) {
                let row = part.len() / fewest;
                if part[..] != whole[first * row..(first + fewest) * row] {
                    return Err(Failure::Batch { rows: first..first + fewest });
                }
            }
        }
        Ok(())
    }

    /// Places a case, runs a variant on it (on another team if one is given), and reads back what it made.
    fn results(
        &self,
        variant: &Variant,
        case: &Case,
        layout: Layout,
        team: Option<&Team>,
    ) -> Result<Results, Failure> {
        let not_run = |e: KernelError| Failure::NotRun(e.to_string());
        let mut placed = self.placer.place(case, layout).map_err(not_run)?;
        let device = self.placer.device();
        let team = team.or(device.team().map(AsRef::as_ref));
        let target = Target { device, team, stream: self.placer.stream(), programs: &self.programs };
        catch_unwind(AssertUnwindSafe(|| run_variant(variant, &mut placed.launch, case.shape, &target)))
            .map_err(|_| Failure::Panicked)?
            .map_err(not_run)?;
        self.placer.results(&placed).map_err(not_run)
    }
}

/// What a variant is run on.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The device.
    pub device: &'a Device,
    /// For a CPU's kernels.
    pub team: Option<&'a Team>,
    /// Of the device.
    pub stream: &'a Stream,
    /// Of the device.
    pub programs: &'a GpuPrograms,
}

/// Runs a variant on a launch that has been checked; on a GPU it gives it scratch, and returns when it is enqueued.
///
/// # Errors
/// When the device is not of the variant's kind, or fails.
pub fn run_variant(
    variant: &Variant,
    launch: &mut Launch,
    shape: StepShape,
    target: &Target<'_>,
) -> Result<()> {
    if variant_rows(launch, shape) == 0 {
        return Ok(());
    }
    match (variant.entry, target.team) {
        (Entry::Gpu(kernel), _) => {
            let bytes = target.programs.scratch_bytes(kernel, launch, shape);
            if bytes > 0 && launch.scratch.as_ref().is_none_or(|s| s.len() < bytes) {
                launch.scratch = Some(target.programs.scratch(target.stream, bytes, MemoryKind::Device)?);
            }
            let prepared = target.programs.prepare(&[(kernel, launch)])?;
            for prepared in prepared {
                // SAFETY: the launch was checked when it was placed, keeps its buffers, and everything that touches
                // them goes through this one stream; the shape is the case's own.
                unsafe { prepared.enqueue(target.device, target.stream, launch, shape) }?;
            }
            Ok(())
        }
        (Entry::Cpu(kernel), Some(team)) => {
            kernel(launch, shape, team);
            Ok(())
        }
        (Entry::Cpu(_), None) => Err(portolan_device::DeviceError::Unsupported {
            device: target.device.id(),
            what: "a team of threads, which CPU kernels run on",
        }
        .into()),
    }
}

/// The rows that a kernel has work for.
fn variant_rows(launch: &Launch, shape: StepShape) -> usize {
    launch.outputs.first().map_or(shape.rows, |y| shape.of(y.rows))
}

#[cfg(test)]
mod faults;
