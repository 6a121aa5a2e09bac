//! Streams, events, captures and graphs: asynchronous, in order, and with errors that come late.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Hip, Ptr, Source, arg, open, open_with_compiler};

const NOT_READY: u32 = 600;
const DEFAULT: u32 = 4;
/// Work takes so long that a host which does not wait is seen.
const SLOW: (&str, &str) = ("HIP_EMU_DELAY_US", "100000");

fn bytes(pointer: Ptr, len: usize) -> Vec<u8> {
    // SAFETY: pinned memory of that length, to which no work writes now.
    unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), len) }.to_vec()
}

#[test]
fn work_is_done_later_and_in_order() {
    let hip = open(&[SLOW]);
    let (stream, event) = (hip.stream(), hip.event());
    let (d, h) = (hip.malloc(16), hip.pinned(16));
    hip.ok(hip.hipMemsetD8Async(d, 1, 16, stream));
    hip.ok(hip.hipMemsetD8Async(d, 2, 8, stream));
    hip.ok(hip.hipMemcpyAsync(h, d, 16, DEFAULT, stream));
    hip.ok(hip.hipEventRecord(event, stream));
    assert_eq!(hip.hipEventQuery(event), NOT_READY);
    assert_eq!(hip.hipStreamQuery(stream), NOT_READY);
    hip.ok(hip.hipEventSynchronize(event));
    hip.ok(hip.hipEventQuery(event));
    hip.ok(hip.hipStreamQuery(stream));
    assert_eq!(bytes(h, 16), [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(hip.violations(), "");
}

#[test]
fn an_event_orders_two_streams() {
    let hip = open(&[SLOW]);
    let (a, b, event) = (hip.stream(), hip.stream(), hip.event());
    let (d, h) = (hip.malloc(4), hip.pinned(4));
    // An event that was never recorded holds nobody up.
    hip.ok(hip.hipStreamWaitEvent(b, event, 0));
    hip.ok(hip.hipMemsetD8Async(d, 9, 4, a));
    hip.ok(hip.hipEventRecord(event, a));
    hip.ok(hip.hipStreamWaitEvent(b, event, 0));
    hip.ok(hip.hipMemcpyAsync(h, d, 4, DEFAULT, b));
    // A stream and an event that are destroyed finish what they have.
    hip.ok(hip.hipEventDestroy(event));
    hip.ok(hip.hipStreamDestroy(a));
    hip.ok(hip.hipStreamSynchronize(b));
    assert_eq!(bytes(h, 4), [9; 4]);
    assert_eq!(hip.violations(), "");
}

#[test]
fn pageable_memory_is_set_aside_before_the_call_returns() {
    let hip = open(&[SLOW]);
    let (stream, d) = (hip.stream(), hip.malloc(8));
    let mut source = [3u8; 8];
    let mut target = vec![0u8; 8];
    hip.ok(hip.hipMemcpyAsync(d, source.as_ptr().cast(), 8, DEFAULT, stream));
    source.fill(4);
    // Into pageable memory the call waits.
    hip.ok(hip.hipMemcpyAsync(target.as_mut_ptr().cast(), d, 8, DEFAULT, stream));
    assert_eq!(target, [3; 8]);
}

#[test]
fn the_default_stream_waits_for_blocking_ones_alone() {
    let hip = open(&[SLOW]);
    let d = hip.malloc(4);
    let mut blocking = std::ptr::null_mut();
    hip.ok(hip.hipStreamCreateWithFlags(&mut blocking, 0));
    hip.ok(hip.hipMemsetD8Async(d, 5, 4, blocking));
    assert_eq!(hip.download::<u8>(d, 4), [5; 4]);
    assert_eq!(hip.violations(), "");
    hip.ok(hip.hipMemsetD8Async(d, 6, 4, hip.stream()));
    let mut target = [0u8; 4];
    hip.hipMemcpy(target.as_mut_ptr().cast(), d, 4, DEFAULT);
    assert!(hip.violations().contains("race"));
}

const COUNT: &str = "extern \"C\" __global__ void count(unsigned *p, unsigned n) { if (threadIdx.x == 0) p[0] = p[0] * 2 + n; }";

fn counter(hip: &Hip) -> (Ptr, Ptr) {
    let count = hip.function(hip.module(&Source { text: COUNT, ..Source::default() }), "count");
    (count, hip.upload(&[0u32]))
}

#[test]
fn a_captured_step_runs_again_and_again() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let (count, p) = counter(&hip);
    let (stream, other, event) = (hip.stream(), hip.stream(), hip.event());
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    hip.ok(hip.hipStreamBeginCapture(stream, 1));
    hip.ok(hip.launch(count, 1, 32, 0, stream, &[arg(&p), arg(&1u32)]));
    // To another stream and back.
    hip.ok(hip.hipEventRecord(event, stream));
    hip.ok(hip.hipStreamWaitEvent(other, event, 0));
    hip.ok(hip.launch(count, 1, 32, 0, other, &[arg(&p), arg(&0u32)]));
    hip.ok(hip.hipEventRecord(event, other));
    hip.ok(hip.hipStreamWaitEvent(stream, event, 0));
    hip.ok(hip.hipStreamEndCapture(stream, &mut graph));
    hip.ok(hip.hipGraphInstantiateWithFlags(&mut exec, graph, 0));
    hip.ok(hip.hipGraphDestroy(graph));
    // Nothing has run yet.
    assert_eq!(hip.download::<u32>(p, 1), [0]);
    for _ in 0..2 {
        hip.ok(hip.hipGraphLaunch(exec, stream));
    }
    hip.ok(hip.hipStreamSynchronize(stream));
    hip.ok(hip.hipGraphExecDestroy(exec));
    assert_eq!(hip.download::<u32>(p, 1), [10]);
    assert_eq!(hip.violations(), "");
}

/// What is not allowed while a stream captures: its code, and that of the capture's end.
#[track_caller]
fn spoilt(code: u32, end: u32, f: impl FnOnce(&Hip, Ptr) -> u32) {
    let hip = open(&[]);
    let stream = hip.stream();
    let mut graph = 1 as Ptr;
    hip.ok(hip.hipStreamBeginCapture(stream, 1));
    assert_eq!(f(&hip, stream), code);
    assert_eq!(hip.hipStreamEndCapture(stream, &mut graph), end);
    assert!(graph.is_null());
    // The stream is as before.
    hip.ok(hip.hipStreamSynchronize(stream));
}

#[test]
fn captures_that_are_spoilt() {
    spoilt(900, 901, |hip, stream| hip.hipStreamSynchronize(stream));
    spoilt(900, 901, |hip, _| hip.hipMalloc(&mut std::ptr::null_mut(), 8));
    spoilt(905, 901, |hip, stream| {
        let (other, event) = (hip.stream(), hip.event());
        hip.ok(hip.hipEventRecord(event, other));
        hip.hipStreamWaitEvent(stream, event, 0)
    });
    spoilt(0, 904, |hip, stream| {
        let (other, event) = (hip.stream(), hip.event());
        hip.ok(hip.hipEventRecord(event, stream));
        hip.hipStreamWaitEvent(other, event, 0)
    });
}

#[test]
fn events_keep_the_time() {
    let hip = open(&[("HIP_EMU_DELAY_US", "30000")]);
    let (mut start, mut end, stream) = (std::ptr::null_mut(), std::ptr::null_mut(), hip.stream());
    let (d, mut milliseconds) = (hip.malloc(4), 0f32);
    hip.ok(hip.hipEventCreateWithFlags(&mut start, 0));
    hip.ok(hip.hipEventCreateWithFlags(&mut end, 0));
    hip.ok(hip.hipEventRecord(start, stream));
    hip.ok(hip.hipMemsetD8Async(d, 0, 4, stream));
    hip.ok(hip.hipEventRecord(end, stream));
    assert_eq!(hip.hipEventElapsedTime(&mut milliseconds, start, end), NOT_READY);
    hip.ok(hip.hipEventSynchronize(end));
    hip.ok(hip.hipEventElapsedTime(&mut milliseconds, start, end));
    // The delay is slept: at least that long.
    assert!(milliseconds >= 30.0, "{milliseconds}");
}

#[test]
fn calls_fail_when_they_are_told_to() {
    let hip =
        open(&[("HIP_EMU_FAIL", "hipMalloc:2:2,hipStreamSynchronize:1:719,hipMemsetD8Async:2:700:late")]);
    let (d, stream) = (hip.malloc(8), hip.stream());
    let mut pointer = std::ptr::null_mut();
    assert_eq!(hip.hipMalloc(&mut pointer, 8), 2);
    hip.ok(hip.hipMalloc(&mut pointer, 8));
    assert_eq!(hip.hipStreamSynchronize(stream), 719);
    hip.ok(hip.hipStreamSynchronize(stream));
    hip.ok(hip.hipMemsetD8Async(d, 0, 8, stream));
    hip.ok(hip.hipStreamSynchronize(stream));
    // Accepted, and fails when its turn comes.
    hip.ok(hip.hipMemsetD8Async(d, 0, 8, stream));
    assert_eq!(hip.hipStreamSynchronize(stream), 700);
    assert_eq!(hip.hipMalloc(&mut pointer, 8), 700);
    // Memory can be given back all the same.
    hip.ok(hip.hipFree(d));
    assert!(hip.text(Hip::hip_emu_calls).contains("hipMalloc 4\n"));
    // Left out, and said to have gone well.
    hip.ok(hip.hipDeviceReset());
    hip.set("HIP_EMU_FAIL", "hipFree:1:0");
    let d = hip.malloc(8);
    let alive = hip.hip_emu_live();
    hip.ok(hip.hipFree(d));
    assert_eq!(hip.hip_emu_live(), alive);
    // Whichever call is the third.
    hip.set("HIP_EMU_FAIL", "*:3:1");
    hip.ok(hip.hipDeviceReset());
    hip.ok(hip.hipMalloc(&mut pointer, 8));
    assert_eq!(hip.hipEventQuery(std::ptr::null_mut()), 1);
    hip.ok(hip.hipMalloc(&mut pointer, 8));
    assert_eq!(hip.violations(), "");
}

#[test]
fn devices_are_what_the_profile_says() {
    for (device, lanes, integrated, arch) in [
        ("gfx1151", 32, 1, "gfx1151"),
        ("gfx1100", 32, 0, "gfx1100"),
        ("gfx942", 64, 0, "gfx942:sramecc+:xnack-"),
    ] {
        let hip = open(&[("HIP_EMU_DEVICE", device), ("HIP_EMU_POOL_BYTES", "1000")]);
        let attribute = |which| {
            let mut value = 0;
            hip.ok(hip.hipDeviceGetAttribute(&mut value, which, 0));
            value
        };
        assert_eq!((attribute(87), attribute(16)), (lanes, integrated));
        let mut properties = [0u8; 1472];
        hip.ok(hip.hipGetDevicePropertiesR0600(properties.as_mut_ptr().cast(), 0));
        let name = &properties[1160..];
        assert_eq!(&name[..name.iter().position(|&b| b == 0).unwrap()], arch.as_bytes());
        let (mut free, mut total, mut pointer) = (0, 0, std::ptr::null_mut());
        assert_eq!(hip.hipMalloc(&mut pointer, 1001), 2);
        hip.ok(hip.hipMalloc(&mut pointer, 600));
        hip.ok(hip.hipMemGetInfo(&mut free, &mut total));
        assert_eq!((free, total), (400, 1000));
        assert_eq!(hip.hipMalloc(&mut pointer, 401), 2);
        // An integrated device's managed memory is the host's.
        assert_eq!(hip.hipMallocManaged(&mut pointer, 401, 1), if integrated == 1 { 0 } else { 2 });
        hip.ok(hip.hipHostMalloc(&mut pointer, 5000, 0));
    }
}
