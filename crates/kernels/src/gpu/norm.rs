//! Norms: `kernels-cuda/norm.cu`.

use bytemuck::{Pod, Zeroable};
use portolan_device::DeviceCaps;
use portolan_weights::Encoding;

use super::{
    Call, Defines, GpuKernel,
    args::address,
    no_scratch,
    simt::{self, BLOCK, UNIT, number, simt},
    takes::{self, Answer, check},
    type_name,
};
use crate::{
    Decline, Launch, Op, OpKind, StepShape,
    chart::{OpSpec, Variant},
};

/// `Args` of norm.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Args {
    a: u64,
    b: u64,
    weight: u64,
    s: u64,
    y: u64,
    norms: u32,
    width: u32,
    eps: f32,
    aligned: u32,
}

static RMS_NORM: GpuKernel = GpuKernel {
    file: "norm",
    entry: "rms_norm",
    args_size: size_of::<Args>(),
    defines,
    call,
    scratch: no_scratch,
};

static ADD_RMS_NORM: GpuKernel = GpuKernel { entry: "add_rms_norm", ..RMS_NORM };

pub(super) fn variants(op: OpKind) -> Vec<Variant> {
    const DESCRIBE: &str = "any size; dense weights";
    match op {
        OpKind::RmsNorm => vec![simt(rms_norm, DESCRIBE, &RMS_NORM)],
        OpKind::AddRmsNorm => vec![simt(add_rms_norm, DESCRIBE, &ADD_RMS_NORM)],
        _ => Vec::new(),
    }
}

fn dense(spec: &OpSpec<'_>) -> Answer {
    takes::weights(spec)?;
    check(spec.weights.iter().all(|w| matches!(w.encoding, Encoding::Dense(_))), Decline::Dtype)
}

fn rms_norm(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::rms_norm(spec, caps)?;
    dense(spec)
}

fn add_rms_norm(spec: &OpSpec<'_>, caps: &DeviceCaps) -> Answer {
    takes::floats(spec, caps)?;
    dense(spec)?;
    let width = spec.weights.first().and_then(|w| w.shape.last()).copied();
    check(spec.input_cols > 0 && width == Some(spec.input_cols), Decline::Shape)
}

/// How a norm is cut: the threads that make it, the units that each of them holds in registers, a block's threads.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    team: usize,
    chunks: usize,
    block: usize,
}

impl Cut {
    /// A wave for what it can hold, so that nothing waits for a barrier; else a block, as wide as the row. It depends
    /// on nothing but the width, and with it the order of the sum.
    fn new(width: usize, caps: &DeviceCaps) -> Self {
        let wave = caps.wave_width as usize;
        let chunks = |team: usize, most: usize| width.div_ceil(team * UNIT).next_power_of_two().min(most);
        if width <= wave * UNIT * 4 {
            return Cut { team: wave, chunks: chunks(wave, 4), block: BLOCK };
        }
        let team = width.div_ceil(UNIT).next_power_of_two().clamp(256, 1024);
        Cut { team, chunks: chunks(team, 2), block: team }
    }
}

/// Columns of a norm and what is added to its mean square.
fn attributes(launch: &Launch) -> (usize, f32) {
    match launch.op {
        Op::RmsNorm { width, eps } => (width.max(1), eps),
        Op::AddRmsNorm { eps } => (launch.inputs[0].cols.max(1), eps),
        _ => (1, 0.0),
    }
}

fn defines(launch: &Launch, caps: &DeviceCaps) -> Defines {
    let cut = Cut::new(attributes(launch).0, caps);
    let (inputs, outputs) = (&launch.inputs, &launch.outputs);
    let types = match launch.op {
        Op::AddRmsNorm { .. } => {
            vec![("A_T", &inputs[0]), ("B_T", &inputs[1]), ("S_T", &outputs[0]), ("Y_T", &outputs[1])]
        }
        _ => vec![("A_T", &inputs[0]), ("Y_T", &outputs[0])],
    };
    let mut defines = simt::block_and_types(cut.block, &types, launch);
    defines.extend([number("TEAM", cut.team), number("CHUNKS", cut.chunks)]);
    if let Some(Encoding::Dense(dtype)) = launch.weights.first().map(|w| w.encoding) {
        defines.push(("W_T", type_name(dtype)));
    }
    if launch.op.kind() == OpKind::AddRmsNorm {
        defines.push(number("ADD", 1));
    }
    defines
}

fn call(launch: &Launch, shape: StepShape, caps: &DeviceCaps) -> Call {
    let (width, eps) = attributes(launch);
    let cut = Cut::new(width, caps);
    let (inputs, outputs) = (&launch.inputs, &launch.outputs);
    let norms = shape.of(inputs[0].rows) * inputs[0].cols / width;
    let weight = launch.weights[0].planes.first().map_or(0, |plane| plane.device_addr());
    let views: Vec<_> = inputs.iter().chain(outputs).collect();
    let mut args = Args {
        a: address(&inputs[0]),
        weight,
        norms: norms as u32,
        width: width as u32,
        eps,
        aligned: (simt::aligned(width, &views) && weight.is_multiple_of(16)).into(),
        ..Args::default()
    };
    if launch.op.kind() == OpKind::AddRmsNorm {
        args.b = address(&inputs[1]);
        (args.s, args.y) = (address(&outputs[0]), address(&outputs[1]));
    } else {
        args.y = address(&outputs[0]);
    }
    simt::call(norms.div_ceil(cut.block / cut.team), cut.block, &args)
}

#[cfg(test)]
mod tests {
    use portolan_device::{DeviceId, DeviceKind};

    use super::*;

    fn caps(wave_width: u32) -> DeviceCaps {
        let id = DeviceId { kind: DeviceKind::Cuda, ordinal: 0 };
        let (name, arch, features) = (String::new(), String::new(), Vec::new());
        DeviceCaps { id, name, arch, features, wave_width, integrated: false, units: 1 }
    }

    #[track_caller]
    fn check(wave: u32, width: usize, expected: [usize; 3]) {
        let Cut { team, chunks, block } = Cut::new(width, &caps(wave));
        assert_eq!([team, chunks, block], expected, "width {width} in waves of {wave}");
    }

    #[test]
    fn cuts() {
        check(32, 1, [32, 1, 128]);
        check(32, 256, [32, 1, 128]);
        check(32, 576, [32, 4, 128]);
        check(32, 1024, [32, 4, 128]);
        check(32, 1025, [256, 1, 256]);
        check(32, 4096, [512, 1, 512]);
        check(32, 5120, [1024, 1, 1024]);
        check(32, 16_384, [1024, 2, 1024]);
        check(32, 100_000, [1024, 2, 1024]);
        check(64, 2048, [64, 4, 128]);
        check(64, 2049, [512, 1, 512]);
    }
}
