//! One line for each choice of a port, under `PORTOLAN_DEBUG_KERNELS=1`.

use std::{
    collections::BTreeSet,
    fmt::Write,
    sync::{LazyLock, Mutex, PoisonError},
};

use portolan_device::{DeviceCaps, DeviceKind, env};

use crate::{CacheKind, Decline, OpKind, OpSpec, Variant};

/// Choices that have been logged: op, device, and the name of the port or of the reason.
type Seen = BTreeSet<(OpKind, DeviceKind, &'static str)>;

static ON: LazyLock<bool> = LazyLock::new(|| {
    env::switch("PORTOLAN_DEBUG_KERNELS").unwrap_or_else(|bad| {
        tracing::warn!("{bad}");
        None
    }) == Some(true)
});
static SEEN: Mutex<Seen> = Mutex::new(BTreeSet::new());

/// Logs a result of [`crate::select_port`] (target `portolan::ports`, level info), each op and port once. Does
/// nothing unless `PORTOLAN_DEBUG_KERNELS` is on.
pub fn log_choice(spec: &OpSpec<'_>, caps: &DeviceCaps, choice: Result<&Variant, Decline>) {
    if *ON && first(&SEEN, spec, caps, choice) {
        tracing::info!(target: "portolan::ports", "{}", port_line(spec, caps, choice));
    }
}

/// Whether this is the first such choice.
fn first(
    seen: &Mutex<Seen>,
    spec: &OpSpec<'_>,
    caps: &DeviceCaps,
    choice: Result<&Variant, Decline>,
) -> bool {
    let name = choice.map_or_else(Decline::name, |v| v.name);
    seen.lock().unwrap_or_else(PoisonError::into_inner).insert((spec.op.kind(), caps.kind(), name))
}

/// The line: `portolan-port op=matmul device=cpu port=int8 rows=1 input=q8rows x=576 weight=affine4-g32-f16[576,576]`, or
/// `decline=Shape` in place of the port. Fields are `name=value` without spaces in either.
pub fn port_line(spec: &OpSpec<'_>, caps: &DeviceCaps, choice: Result<&Variant, Decline>) -> String {
    let mut line = format!("portolan-port op={} device={}", spec.op.kind(), caps.id);
    // Writing to a string cannot fail.
    let _ = match choice {
        Ok(variant) => write!(line, " port={}", variant.name),
        Err(reason) => write!(line, " decline={}", reason.name()),
    };
    let input = format!("{:?}", spec.input).to_ascii_lowercase();
    let _ = write!(line, " rows={} input={input} x={}", spec.rows, spec.input_cols);
    for weight in spec.weights {
        let shape: Vec<_> = weight.shape.iter().map(usize::to_string).collect();
        let _ = write!(line, " weight={}[{}]", weight.encoding, shape.join(","));
        if let portolan_weights::Layout::Packed(name) = weight.layout {
            let _ = write!(line, " layout={name}");
        }
    }
    if let Some((kind, dtype)) = spec.cache {
        let kind = match kind {
            CacheKind::Paged { .. } => "paged",
            CacheKind::Latent { .. } => "latent",
            CacheKind::State { .. } => "state",
        };
        let _ = write!(line, " cache={kind}-{dtype}");
    }
    line
}

#[cfg(test)]
mod tests {
    use portolan_device::{DType, Device, cpu::CpuOptions};
    use portolan_weights::{Encoding, Layout};

    use super::*;
    use crate::{Op, ValueType, chart, chart::WeightSpec};

    #[test]
    fn a_line_is_parseable_and_comes_once() {
        let device = Device::cpu(&CpuOptions::default()).unwrap();
        let caps = device.caps();
        let weights = [WeightSpec {
            encoding: Encoding::Affine { bits: 4, group: 32, meta: DType::F16 },
            layout: Layout::Packed("rows8"),
            shape: vec![48, 64],
        }];
        let kind = CacheKind::Paged { kv_heads: 1, k_dim: 8, v_dim: 8, window: None };
        let spec = OpSpec {
            op: &Op::Matmul,
            rows: 1,
            activation: DType::F32,
            input: ValueType::Q8Rows,
            input_cols: 64,
            weights: &weights,
            cache: Some((kind, DType::F16)),
        };
        let plain = chart::slot(OpKind::Matmul, DeviceKind::Cpu).last().unwrap();
        let tail = "rows=1 input=q8rows x=64 weight=affine4-g32-f16[48,64] layout=rows8 cache=paged-f16";
        let taken = port_line(&spec, caps, Ok(plain));
        assert_eq!(taken, format!("portolan-port op=matmul device=cpu port=plain {tail}"));
        let declined = port_line(&spec, caps, Err(Decline::Shape));
        assert_eq!(declined, format!("portolan-port op=matmul device=cpu decline=Shape {tail}"));
        let fields = taken.split(' ').skip(1);
        assert!(
            fields.clone().all(|f| f.split_once('=').is_some_and(|(n, v)| !n.is_empty() && !v.is_empty()))
        );

        let seen = Mutex::new(BTreeSet::new());
        assert!(first(&seen, &spec, caps, Ok(plain)));
        assert!(!first(&seen, &spec, caps, Ok(plain)), "once");
        assert!(first(&seen, &spec, caps, Err(Decline::Shape)), "another answer is another line");
    }
}
