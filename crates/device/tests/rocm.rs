//! The ROCm device: on a GPU, or on a stand-in for HIP that `PORTOLAN_HIP_LIBRARY` names; skipped where there is none.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use portolan_device::{
    Device, DeviceError, DeviceKind, KernelSource, LaunchConfig, MemoryKind, Slice, Stream, cpu::CpuOptions,
};
use portolan_testkit::skipped;

fn device() -> Option<Device> {
    Device::rocm(0).map_err(|error| skipped(&error.to_string())).ok()
}

/// Bytes in which a shift, or a piece that was left out, shows.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 7 + i / 251) as u8).collect()
}

fn upload(stream: &Stream, to: &Slice, bytes: &[u8]) {
    // SAFETY: each test has its buffers to itself.
    unsafe { stream.upload(to, bytes) }.unwrap();
}

fn download(stream: &Stream, from: &Slice) -> Vec<u8> {
    let mut out = vec![0; from.len()];
    // SAFETY: as above.
    unsafe { stream.download(&mut out, from) }.unwrap();
    out
}

#[test]
fn the_device_says_what_it_is() {
    let Some(device) = device() else { return };
    let caps = device.caps();
    assert_eq!(caps.kind(), DeviceKind::Rocm);
    assert!(caps.arch.starts_with("gfx") && !caps.arch.contains(':'), "{caps:?}");
    assert!([32, 64].contains(&caps.wave_width) && caps.units > 0 && !caps.name.is_empty(), "{caps:?}");
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped] {
        let pool = device.pool_info(kind).unwrap();
        assert!(pool.free > 0 && pool.free <= pool.total, "{kind:?}: {pool:?}");
    }
    assert_eq!(device.memory_info().unwrap().source, "hipMemGetInfo");
    let count = portolan_device::rocm::count().unwrap();
    let beyond = Device::rocm(count).expect_err("one past the last").to_string();
    assert!(beyond.contains(&format!("no AMD GPU number {count}")), "{beyond}");
}

#[test]
fn bytes_go_there_and_back() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    // Within the bounce buffer of 2 MiB, as long as it, and longer.
    for (seed, len) in [1, 255, 2 << 20, (5 << 20) + 13].into_iter().enumerate() {
        for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped] {
            let (buffer, expected) = (device.alloc(len, kind).unwrap(), bytes(len, seed));
            assert_eq!(buffer.host_ptr().is_some(), kind != MemoryKind::Device);
            assert_eq!(buffer.device_addr() % 256, 0);
            upload(&stream, &buffer.whole(), &expected);
            assert!(download(&stream, &buffer.whole()) == expected, "{kind:?}, {len} bytes");
        }
    }
    let buffer = device.alloc(8, MemoryKind::Device).unwrap();
    upload(&stream, &buffer.whole(), &[1; 8]);
    upload(&stream, &buffer.slice(3, 0).unwrap(), &[]);
    // SAFETY: the buffer is the test's own.
    unsafe { stream.fill(&buffer.slice(2, 3).unwrap(), 7) }.unwrap();
    assert_eq!(download(&stream, &buffer.whole()), [1, 1, 7, 7, 7, 1, 1, 1]);
}

#[test]
fn an_upload_that_is_pending_is_not_written_over() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    let (piece, count) = (100_000, 64);
    let buffer = device.alloc(piece * count, MemoryKind::Device).unwrap();
    // Three times the bounce buffer, with no wait between.
    for i in 0..count {
        upload(&stream, &buffer.slice(i * piece, piece).unwrap(), &bytes(piece, i));
    }
    let found = download(&stream, &buffer.whole());
    for (i, found) in found.chunks(piece).enumerate() {
        assert!(found == bytes(piece, i), "piece {i}");
    }
}

#[test]
fn copies_of_two_streams_are_ordered_by_an_event() {
    let Some(device) = device() else { return };
    let (first, second, event) =
        (device.stream().unwrap(), device.stream().unwrap(), device.event().unwrap());
    let len = 3 << 20;
    let [mut from, to] = [(); 2].map(|()| device.alloc(len, MemoryKind::Pinned).unwrap());
    let middle = device.alloc(len, MemoryKind::Device).unwrap();
    from.host_mut().unwrap().copy_from_slice(&bytes(len, 5));
    // SAFETY: all three live to the end, and the event and the wait order who touches them.
    unsafe {
        first.copy(&middle.whole(), &from.whole()).unwrap();
        first.record(&event).unwrap();
        second.wait(&event).unwrap();
        second.copy(&to.whole(), &middle.whole()).unwrap();
        second.synchronize().unwrap();
        assert!(event.is_complete().unwrap());
        event.synchronize().unwrap();
        assert!(to.whole().host_bytes().unwrap() == bytes(len, 5));
    }
    // An event of another runtime is an error, and no crash.
    let cpu = Device::cpu(&CpuOptions::default()).unwrap();
    assert!(matches!(first.record(&cpu.event().unwrap()), Err(DeviceError::Failed { .. })));
}

/// Adds `STEP` to each of `n` numbers.
const TEXT: &str = r#"
#include "args.h"
extern "C" __global__ void add(Args args) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.n) args.values[i] += args.scale * STEP;
}
"#;

const HEADER: &str = "struct Args { float* values; float scale; int n; };\n";

fn add(defines: &[(&str, String)], device: &Device) -> portolan_device::Kernel {
    let headers = [("args.h", HEADER)];
    let source = KernelSource { file: "add.hip", text: TEXT, headers: &headers, entry: "add", defines };
    device.kernel(&source).unwrap()
}

fn args(values: &Slice, scale: f32, n: i32) -> Vec<u8> {
    let mut args = values.device_addr().to_le_bytes().to_vec();
    args.extend(scale.to_le_bytes());
    args.extend(n.to_le_bytes());
    args
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn a_kernel_runs_and_is_captured() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    let values = device.alloc(100 * 4, MemoryKind::Device).unwrap().whole();
    upload(&stream, &values, &[0; 400]);
    let kernel = add(&[("STEP", "2.0f".to_owned())], &device);
    let (config, args) = (LaunchConfig::new([2, 1, 1], 64, 0), args(&values, 1.5, 99));
    let launch = || {
        // SAFETY: the struct is the kernel's, and what it names lives to the end of the test.
        unsafe { stream.launch_kernel(&kernel, &config, &args) }
    };
    launch().unwrap();
    let mut expected = vec![3.0f32; 99];
    expected.push(0.0);
    assert_eq!(floats(&download(&stream, &values)), expected);

    match stream.begin_capture() {
        Err(DeviceError::Unsupported { .. }) => return skipped("this HIP captures no graphs"),
        other => other.unwrap(),
    }
    launch().unwrap();
    launch().unwrap();
    // SAFETY: the buffer is the test's own.
    let refused = unsafe { stream.upload(&values, &[0; 400]) };
    assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
    let graph = stream.end_capture().unwrap();
    assert_eq!(floats(&download(&stream, &values)), expected, "a capture runs nothing");
    for _ in 0..3 {
        // SAFETY: what was captured is still there.
        unsafe { stream.launch(&graph) }.unwrap();
    }
    // The first launch and three times two: seven times 3.
    expected[..99].fill(21.0);
    assert_eq!(floats(&download(&stream, &values)), expected);
}

#[test]
fn errors_name_the_kernel() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    let text = "extern \"C\" __global__ void broken(int n) { not_declared(n); }";
    let source = KernelSource { file: "broken.hip", text, headers: &[], entry: "broken", defines: &[] };
    let said = device.kernel(&source).expect_err("a text that does not compile").to_string();
    for part in ["broken (broken.hip)", "hiprtc", &device.caps().arch, "not_declared"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let values = device.alloc(16, MemoryKind::Device).unwrap().whole();
    let (kernel, args) = (add(&[("STEP", "1.0f".to_owned())], &device), args(&values, 0.0, 0));
    let config = LaunchConfig::new([1, 1, 1], 4096, 0);
    // SAFETY: as for the launches above; this one is refused.
    let said =
        unsafe { stream.launch_kernel(&kernel, &config, &args) }.expect_err("too many threads").to_string();
    assert!(said.contains("add with grid [1, 1, 1], block [4096, 1, 1]"), "{said}");
    let cluster = LaunchConfig { cluster: 2, ..LaunchConfig::new([2, 1, 1], 64, 0) };
    // SAFETY: as above.
    let refused = unsafe { stream.launch_kernel(&kernel, &cluster, &args) };
    assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
}
