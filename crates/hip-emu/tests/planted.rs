//! Every kind of mistake is planted, and must be caught: in kernels, in the use of memory, between streams.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Hip, Ptr, Source, arg, open, open_with_clang, open_with_compiler};

const NONE: Ptr = std::ptr::null_mut();
const ILLEGAL_ADDRESS: u32 = 700;
const ASSERT: u32 = 710;
const LAUNCH_FAILURE: u32 = 719;

/// Launches a kernel `k(int *p, int n)` on a buffer of 64 ints, 64 threads, with 256 bytes of dynamic shared memory: the
/// wait gives `code`, and the report has all `words`.
#[track_caller]
fn kernel(body: &str, code: u32, words: &[&str]) {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = format!("extern \"C\" __global__ void k(int *p, int n) {{ {body} }}");
    let k = hip.function(hip.module(&Source { text: &text, ..Source::default() }), "k");
    let (p, n) = (hip.upload(&[1i32; 64]), 64);
    hip.ok(hip.launch(k, 1, 64, 256, NONE, &[arg(&p), arg(&n)]));
    let got = hip.hipDeviceSynchronize();
    let report = hip.violations();
    assert_eq!(got, code, "{report}");
    // Other compilers than clang do not say what a trap is for.
    let nameless = !hip.text(Hip::hip_emu_compiler).contains("clang") && report.contains("an array's bounds");
    for word in words {
        assert!(report.contains(word) || nameless, "{word}: {report}");
    }
    if code == 0 {
        assert_eq!(report, "");
        return;
    }
    // The error stays until the device is reset, and nothing hangs.
    assert_eq!(hip.launch(k, 1, 64, 256, NONE, &[arg(&p), arg(&n)]), code);
    hip.ok(hip.hipDeviceReset());
    hip.ok(hip.hipFree(p));
}

#[test]
fn a_right_kernel_is_let_pass() {
    kernel("p[threadIdx.x] += n;", 0, &[]);
}

/// A fault can be planted in a right text.
#[test]
fn a_text_is_edited() {
    let Some(hip) = open_with_compiler(&[("HIP_EMU_EDIT", "threadIdx.x]=>threadIdx.x + 1]")]) else { return };
    let text = "extern \"C\" __global__ void k(int *p) { p[threadIdx.x] = 1; }";
    let k = hip.function(hip.module(&Source { text, ..Source::default() }), "k");
    let p = hip.upload(&[0i32; 64]);
    hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p)]));
    assert_eq!(hip.hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    assert!(hip.violations().contains("out-of-range"));
}

#[test]
fn addresses_outside_of_buffers() {
    let at = "block [0, 0, 0], thread [3, 0, 0]";
    kernel(
        "if (threadIdx.x == 3) p[n] = 1;",
        ILLEGAL_ADDRESS,
        &["out-of-range", "the kernel k", at, "byte 0 behind"],
    );
    kernel(
        "if (threadIdx.x == 3) n = p[n + 5]; p[0] = n;",
        ILLEGAL_ADDRESS,
        &["out-of-range", "byte 20 behind"],
    );
    kernel("p[-2000] = 1;", ILLEGAL_ADDRESS, &["out-of-range", "before the start", "made by hipMalloc"]);
    kernel("*(volatile int *)(long long)(n - 60) = 1;", ILLEGAL_ADDRESS, &["null-pointer"]);
    kernel("*(volatile int *)((long long)p ^ 1ll << 45) = 1;", ILLEGAL_ADDRESS, &["wild-pointer"]);
}

#[test]
fn shared_memory_outside_of_its_bounds() {
    let bounds = "__shared__ int s[32]; s[threadIdx.x] = n; __syncthreads(); p[threadIdx.x] = s[31];";
    kernel(bounds, LAUNCH_FAILURE, &["array-bounds", "thread [32, 0, 0]"]);
    kernel(
        "HIP_DYNAMIC_SHARED(int, s) s[threadIdx.x + 1] = n; p[0] = s[0];",
        ILLEGAL_ADDRESS,
        &["shared-overrun", "4 bytes behind 256"],
    );
    kernel(
        "HIP_DYNAMIC_SHARED(int, s) s[threadIdx.x + 2000] = n; p[0] = s[0];",
        ILLEGAL_ADDRESS,
        &["shared-overrun"],
    );
}

#[test]
fn barriers_and_exchanges_that_part_threads() {
    let parted = "if (threadIdx.x < 32) __syncthreads(); else { p[1] = 2; __syncthreads(); }";
    kernel(parted, LAUNCH_FAILURE, &["divergent-barrier"]);
    kernel("int v = 0; if (threadIdx.x < 7) v = __shfl(n, 9); p[0] = v;", LAUNCH_FAILURE, &["inactive-lane"]);
    let deep = "volatile char big[200000]; big[threadIdx.x] = 1; p[0] = big[n];";
    kernel(deep, LAUNCH_FAILURE, &["stack-overflow"]);
}

#[test]
fn what_a_gpu_passes_over() {
    kernel("assert(p[threadIdx.x] == 2);", ASSERT, &["assert:", "p[threadIdx.x] == 2"]);
    kernel("if (threadIdx.x == 5) __trap();", LAUNCH_FAILURE, &["trap", "thread [5, 0, 0]"]);
    kernel("p[0] = n / (p[0] - 1);", LAUNCH_FAILURE, &["arithmetic"]);
    kernel("p[0] = n << (p[0] + 31);", LAUNCH_FAILURE, &["shift"]);
    kernel("const int4 *q = (const int4 *)(p + 1); p[0] = q->x + q->w;", LAUNCH_FAILURE, &["misaligned"]);
}

/// Without the barrier some order gives another result: shared memory is full of NaNs before it is written.
#[test]
fn a_missing_barrier() {
    let sums = |barrier: &str| {
        let text = format!(
            "extern \"C\" __global__ void k(float *p) {{
                __shared__ float s[64];
                s[threadIdx.x] = p[threadIdx.x];
                {barrier}
                p[threadIdx.x] = s[63 - threadIdx.x];
            }}"
        );
        ["forward", "reverse", "random"].map(|order| {
            let hip = open_with_compiler(&[("HIP_EMU_ORDER", order)])?;
            let k = hip.function(hip.module(&Source { text: &text, ..Source::default() }), "k");
            let p = hip.upload(&[1f32; 64]);
            hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p)]));
            Some(hip.download::<f32>(p, 64).iter().sum::<f32>())
        })
    };
    if sums("__syncthreads();") == [None; 3] {
        return;
    }
    assert_eq!(sums("__syncthreads();"), [Some(64.0); 3]);
    assert!(sums("").iter().all(|sum| sum.is_some_and(f32::is_nan)));
}

/// Full checks find it in one run, whatever the order.
#[test]
fn races_in_shared_memory() {
    let check = |body: &str, racing: bool| {
        let full = [("HIP_EMU_CHECK", "full")];
        let Some(hip) = open_with_clang(&full, "races in shared memory") else { return };
        let text = format!(
            "extern \"C\" __global__ void k(int *p) {{ __shared__ int s[64]; int t = threadIdx.x; {body} }}"
        );
        let k = hip.function(hip.module(&Source { text: &text, ..Source::default() }), "k");
        let p = hip.upload(&[1i32; 64]);
        hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p)]));
        let got = hip.hipDeviceSynchronize();
        let report = hip.violations();
        assert_eq!(got, if racing { LAUNCH_FAILURE } else { 0 }, "{body}: {report}");
        assert_eq!(report.contains("shared-race"), racing, "{body}: {report}");
    };
    check("s[t] = t; __syncthreads(); p[t] = s[63 - t] + 2;", false);
    check("s[t] = t; p[t] = s[63 - t];", true);
    // It is read in one turn and written in the next.
    check("for (int i = 0; i < 2; i++) { s[t] = i; __syncthreads(); p[t] += s[63 - t]; }", true);
    check(
        "for (int i = 0; i < 2; i++) { s[t] = i; __syncthreads(); p[t] += s[63 - t]; __syncthreads(); }",
        false,
    );
    // Within a wave lanes may meet without a barrier.
    check("s[t] = t; __syncwarp(); p[t] = s[t ^ 1] + 2;", false);
    check("s[t] = t; p[t] = s[t ^ 1] + 2;", true);
    check("if (t < 2) s[0] = t; __syncthreads(); p[t] = s[0] + 5;", true);
}

/// Something done with the runtime: the result of the last call, and the kind of violation in the report.
#[track_caller]
fn runtime(settings: &[(&str, &str)], code: u32, kind: &str, f: impl FnOnce(&Hip) -> u32) {
    let hip = open(settings);
    let got = f(&hip);
    let report = hip.violations();
    assert_eq!(got, code, "{report}");
    assert!(report.contains(kind) && (kind.is_empty() == report.is_empty()), "{kind}: {report}");
}

#[test]
fn memory_is_freed_once_and_by_the_right_call() {
    let free = |hip: &Hip, p: Ptr| hip.hipFree(p);
    runtime(&[], 0, "", |hip| free(hip, hip.malloc(8)));
    runtime(&[], 17, "double-free", |hip| {
        let p = hip.malloc(8);
        hip.ok(free(hip, p));
        free(hip, p)
    });
    runtime(&[], 17, "wrong-free", |hip| free(hip, hip.pinned(8)));
    runtime(&[], 17, "wrong-free", |hip| hip.hipHostFree(hip.malloc(8)));
    runtime(&[], 17, "bad-free", |hip| free(hip, hip.malloc(8).wrapping_byte_add(4)));
    runtime(&[], 17, "bad-free", |hip| free(hip, arg(&1)));
    runtime(&[], 1, "overrun", |hip| {
        let p = hip.pinned(10);
        // SAFETY: a byte behind the end, before the page that faults.
        unsafe { p.cast::<u8>().add(10).write(1) };
        hip.hipHostFree(p)
    });
}

#[test]
fn copies_stay_within_live_memory() {
    let copy = |hip: &Hip, dst: Ptr, src: Ptr, len, kind| hip.hipMemcpy(dst, src, len, kind);
    runtime(&[], 1, "out-of-range", |hip| copy(hip, hip.malloc(8), arg(&[0u8; 16]), 16, 1));
    runtime(&[], 1, "use-after-free", |hip| {
        let p = hip.malloc(8);
        hip.ok(hip.hipFree(p));
        copy(hip, p, arg(&[0u8; 8]), 8, 4)
    });
    runtime(&[], 21, "direction", |hip| copy(hip, hip.malloc(8), arg(&[0u8; 8]), 8, 2));
    runtime(&[("HIP_EMU_PAGEABLE", "flag")], 0, "pageable", |hip| {
        copy(hip, hip.malloc(8), arg(&[0u8; 8]), 8, 1)
    });
}

#[test]
fn a_kernel_that_uses_freed_memory() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = "extern \"C\" __global__ void k(int *p) { p[threadIdx.x] = 1; }";
    let k = hip.function(hip.module(&Source { text, ..Source::default() }), "k");
    let p = hip.malloc(256);
    hip.ok(hip.hipFree(p));
    hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p)]));
    assert_eq!(hip.hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    let report = hip.violations();
    assert!(report.contains("use-after-free") && report.contains("\n  freed"), "{report}");
    // Who took it, and who gave it back.
    assert!(report.contains("planted"), "{report}");
}

const SLOW: (&str, &str) = ("HIP_EMU_DELAY_US", "20000");

#[test]
fn memory_is_not_freed_under_a_copy() {
    runtime(&[SLOW], 0, "free-in-flight", |hip| {
        let (d, h) = (hip.malloc(64), hip.pinned(64));
        hip.ok(hip.hipMemcpyAsync(d, h, 64, 4, hip.stream()));
        hip.hipHostFree(h)
    });
}

#[test]
fn two_streams_on_one_buffer() {
    let two = |hip: &Hip, ordered: bool| {
        let (a, b, event) = (hip.stream(), hip.stream(), hip.event());
        let (d, h) = (hip.malloc(64), hip.pinned(64));
        hip.ok(hip.hipMemcpyAsync(d, h, 64, 4, a));
        if ordered {
            hip.ok(hip.hipEventRecord(event, a));
            hip.ok(hip.hipStreamWaitEvent(b, event, 0));
        }
        hip.ok(hip.hipMemsetD8Async(d, 0, 64, b));
        hip.hipStreamSynchronize(b)
    };
    runtime(&[], 0, "", |hip| two(hip, true));
    runtime(&[], 999, "race", |hip| two(hip, false));
    // The host has waited: that orders them too.
    runtime(&[], 0, "", |hip| {
        let (a, b) = (hip.stream(), hip.stream());
        let (d, h) = (hip.malloc(64), hip.pinned(64));
        hip.ok(hip.hipMemcpyAsync(d, h, 64, 4, a));
        hip.ok(hip.hipStreamSynchronize(a));
        hip.ok(hip.hipMemsetD8Async(d, 0, 64, b));
        hip.hipStreamSynchronize(b)
    });
}

#[test]
fn a_slot_that_is_filled_again_too_early() {
    let twice = |hip: &Hip, wait: bool| {
        let (stream, d, h) = (hip.stream(), hip.malloc(64), hip.pinned(64));
        hip.ok(hip.hipMemcpyAsync(d, h, 64, 4, stream));
        if wait {
            hip.ok(hip.hipStreamSynchronize(stream));
        }
        // SAFETY: pinned memory of that length.
        unsafe { h.cast::<u8>().write_bytes(7, 64) };
        hip.hipStreamSynchronize(stream)
    };
    let full = [("HIP_EMU_CHECK", "full"), SLOW];
    runtime(&full, 0, "", |hip| twice(hip, true));
    runtime(&full, 999, "changed-in-flight", |hip| twice(hip, false));
}

#[test]
fn a_launch_that_writes_nothing() {
    let Some(hip) = open_with_compiler(&[("HIP_EMU_CHECK", "full")]) else { return };
    let text = "extern \"C\" __global__ void k(int *p, int n) { if (n > 100) p[threadIdx.x] = n; }";
    let k = hip.function(hip.module(&Source { text, ..Source::default() }), "k");
    let p = hip.malloc(256);
    hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p), arg(&101)]));
    hip.ok(hip.hipDeviceSynchronize());
    hip.ok(hip.launch(k, 1, 64, 0, NONE, &[arg(&p), arg(&100)]));
    assert_ne!(hip.hipDeviceSynchronize(), 0);
    assert!(hip.violations().contains("wrote-nothing"));
}

#[test]
fn launches_that_cannot_be() {
    let Some(hip) = open_with_compiler(&[]) else { return };
    let text = "extern \"C\" __global__ void __launch_bounds__(64) k(int *p, int n) { p[0] = n; }";
    let k = hip.function(hip.module(&Source { text, ..Source::default() }), "k");
    let p = hip.malloc(4);
    let args = [arg(&p), arg(&1)];
    assert_eq!(hip.launch(k, 0, 64, 0, NONE, &args), 9);
    assert_eq!(hip.launch(k, 1, 65, 0, NONE, &args), LAUNCH_FAILURE);
    assert_eq!(hip.launch(k, 1, 64, 1 << 20, NONE, &args), 701);
    assert_eq!(hip.launch_packed(k, 64, 0, &[0u64; 4], 8), 1);
    let report = hip.violations();
    for words in ["empty grid", "65 threads", "1048576 of dynamic", "8 bytes of arguments, and it takes 12"] {
        assert!(report.contains(words), "{words}: {report}");
    }
}

#[test]
fn handles_that_are_none() {
    runtime(&[], 400, "stale-handle", |hip| {
        let stream = hip.stream();
        hip.ok(hip.hipStreamDestroy(stream));
        hip.hipStreamSynchronize(stream)
    });
    runtime(&[], 400, "bad-handle", |hip| hip.hipEventRecord(hip.stream(), NONE));
    runtime(&[], 209, "", |hip| hip.hipModuleLoadData(&mut NONE.clone(), [0u64; 4].as_ptr().cast()));
}

#[test]
fn what_is_not_given_back_is_told() {
    let hip = open(&[]);
    let (p, event) = (hip.malloc(24), hip.event());
    assert_eq!(hip.hip_emu_live(), 2);
    let leaks = hip.text(Hip::hip_emu_leaks);
    assert!(leaks.contains("24 bytes") && leaks.contains("1 x event"), "{leaks}");
    hip.ok(hip.hipFree(p));
    hip.ok(hip.hipEventDestroy(event));
    assert_eq!(hip.hip_emu_live(), 0);
}
