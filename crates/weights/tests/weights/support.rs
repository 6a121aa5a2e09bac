use std::path::Path;

use portolan_device::{Device, cpu::CpuOptions};
use portolan_weights::{
    Checkpoint, Expr, LoadOptions, LoadRequest, LoadTransferStats, Planes, Repack, Result, WeightError,
    WeightTensor, decode_rows, load, plan_load,
};

/// A weight whose planes were copied out of device memory.
pub(crate) struct Loaded {
    pub(crate) weight: WeightTensor,
    pub(crate) planes: Vec<Vec<u8>>,
}

impl Loaded {
    /// Decoded by the plain definition.
    pub(crate) fn decode(&self) -> Vec<f32> {
        let shape = &self.weight.shape;
        let k = shape.last().copied().unwrap_or(1);
        let mut planes: [&[u8]; 4] = [&[]; 4];
        for (slot, plane) in planes.iter_mut().zip(&self.planes) {
            *slot = plane;
        }
        let mut out = vec![0.0; shape.iter().product()];
        decode_rows(&Planes { encoding: self.weight.encoding, k, planes }, 0, &mut out);
        out
    }
}

pub(crate) fn cpu() -> Device {
    Device::cpu(&CpuOptions { threads: 1 }).unwrap()
}

pub(crate) fn request(name: &str, expr: Expr) -> LoadRequest {
    LoadRequest { name: name.to_owned(), expr, repack: None }
}

/// Loads, then copies the planes out. Once nobody else holds the buffers, the host may look at them safely.
pub(crate) fn load_requests(
    checkpoint: &Checkpoint,
    requests: Vec<LoadRequest>,
    readers: usize,
) -> Result<(Vec<Loaded>, LoadTransferStats)> {
    let device = cpu();
    let plan = plan_load(checkpoint, requests)?;
    let stream = device.stream()?;
    let mut seen = Vec::new();
    let mut report = |done, total| seen.push((done, total));
    let (weights, stats) = load(
        checkpoint,
        &plan,
        &device,
        &stream,
        &LoadOptions { readers, ..Default::default() },
        &mut report,
    )?;
    assert!(seen.windows(2).all(|w| w[0].0 < w[1].0), "progress goes up: {seen:?}");
    assert!(seen.last().is_none_or(|&(done, total)| done == total), "and ends at the total: {seen:?}");
    assert_eq!(stats.cross_stream_waits, 0);
    Ok((take_planes(weights), stats))
}

/// Copies the planes out of memory that the host sees, of which nobody else may hold a part.
pub(crate) fn take_planes(mut weights: Vec<WeightTensor>) -> Vec<Loaded> {
    let mut buffers = Vec::new();
    let mut places = Vec::new();
    for weight in &mut weights {
        let planes = std::mem::take(&mut weight.planes);
        for slice in &planes {
            assert_eq!(slice.device_addr() % 256, 0, "{} is aligned", weight.name);
            if buffers
                .iter()
                .all(|b: &portolan_device::Buffer| b.device_addr() != slice.buffer().device_addr())
            {
                buffers.push(slice.buffer().clone());
            }
        }
        places
            .push(planes.iter().map(|s| (s.buffer().device_addr(), s.offset(), s.len())).collect::<Vec<_>>());
    }
    let mut loaded = Vec::new();
    for (weight, places) in weights.into_iter().zip(places) {
        let planes = places.into_iter().map(|(address, offset, len)| {
            let buffer = buffers.iter_mut().find(|b| b.device_addr() == address).unwrap();
            buffer.host_mut().expect("no other handle is left")[offset..offset + len].to_vec()
        });
        loaded.push(Loaded { planes: planes.collect(), weight });
    }
    loaded
}

pub(crate) fn load_expr(checkpoint: &Checkpoint, expr: Expr) -> Result<Loaded> {
    Ok(load_requests(checkpoint, vec![request("w", expr)], 2)?.0.remove(0))
}

/// One tensor of the checkpoint, loaded as it is stored and decoded.
#[track_caller]
pub(crate) fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    load_expr(checkpoint, Expr::source(name)).unwrap().decode()
}

/// Equal but for the sign of a zero; NaN equals NaN.
#[track_caller]
pub(crate) fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(a == e || a.is_nan() && e.is_nan(), "{what}: element {i} is {a}, expected {e}");
    }
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The error of opening a file with these bytes.
#[track_caller]
pub(crate) fn open_error(name: &str, bytes: &[u8]) -> WeightError {
    let dir = folder();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let error = Checkpoint::open(&path).expect_err("the file is broken");
    assert!(error.to_string().contains(name), "the message names the file: {error}");
    error
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

/// Reverses the rows of each group of `row_multiple` rows, as a stand-in for a kernel's layout.
#[derive(Debug)]
pub(crate) struct ReverseGroups {
    pub(crate) multiple: usize,
    pub(crate) by_blocks: bool,
}

impl Repack for ReverseGroups {
    fn layout(&self) -> portolan_weights::Layout {
        portolan_weights::Layout::Packed("reversed")
    }

    fn plane_bytes(&self, encoding: portolan_weights::Encoding, rows: usize, k: usize) -> Vec<usize> {
        let padded = rows.next_multiple_of(self.multiple);
        encoding.planes().iter().map(|&p| encoding.row_bytes(p, k) * padded).collect()
    }

    fn row_multiple(&self) -> usize {
        self.multiple
    }

    fn by_blocks(&self) -> bool {
        self.by_blocks
    }

    fn run(&self, src: &Planes<'_>, first: usize, n: usize, out: &mut [&mut [u8]]) {
        assert_eq!(first % self.multiple, 0);
        for (out, &plane) in out.iter_mut().zip(src.encoding.planes()) {
            let bytes = src.encoding.row_bytes(plane, src.k);
            for row in 0..n {
                let at = first + row;
                let to = at / self.multiple * self.multiple + (self.multiple - 1 - at % self.multiple);
                out[to * bytes..(to + 1) * bytes].copy_from_slice(src.row(plane, row));
            }
        }
    }
}
