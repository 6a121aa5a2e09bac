// What differs between CUDA and HIP, under one set of names. The HIP side has a file of its own with the same names,
// so that a kernel body serves both. Nothing is included: the runtime compiler alone is enough.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// Lanes that run in step, as the device says; never a compiler's macro.
#ifndef LANES
#error "LANES must be defined: the width of a wave of the device"
#endif

// Memory at an address that the host gave.
template <typename T> __device__ __forceinline__ T *at(u64 address) { return (T *)address; }

// Two bytes each. Arithmetic is done in f32.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

#define DEVICE __device__ __forceinline__

DEVICE float to_f32(float x) { return x; }
DEVICE float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

// Rounds to nearest, ties to even.
template <typename T> DEVICE T from_f32(float x);
template <> DEVICE float from_f32<float>(float x) { return x; }
template <> DEVICE f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> DEVICE bf16 from_f32<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Two floats rounded into the halves of a word, `lo` in the low half.
template <typename T> DEVICE u32 pack2(float lo, float hi);
template <> DEVICE u32 pack2<f16>(float lo, float hi) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
template <> DEVICE u32 pack2<bf16>(float lo, float hi) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
template <typename T> DEVICE float low_half(u32 x) {
    T y;
    y.bits = (u16)x;
    return to_f32(y);
}
template <typename T> DEVICE float high_half(u32 x) {
    T y;
    y.bits = (u16)(x >> 16);
    return to_f32(y);
}

// The value of lane `lane ^ mask`, within groups of LANES lanes.
template <typename T> DEVICE T lane_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask, LANES); }
// The value of lane `lane`.
template <typename T> DEVICE T lane_get(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane, LANES); }
DEVICE void lanes_sync() { __syncwarp(); }

DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
DEVICE float not_a_number() { return __uint_as_float(0x7fc00000u); }
DEVICE float exp_f32(float x) { return __expf(x); }

// Matrix units, and copies into shared memory.

// The address of shared memory as the functions below take it.
DEVICE u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// d += a b, of a 16x16 (rows of 16), b 16x8 (columns of 16) and d 16x8, spread over the 32 lanes as PTX says of
// mma.m16n8k16. T is the type of a and b, two elements a word; the sums are f32.
template <typename T> DEVICE void mma_16x8x16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
template <> DEVICE void mma_16x8x16<f16>(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <> DEVICE void mma_16x8x16<bf16>(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8 of matrix i / 8,
// a multiple of 16, and gets elements 2 * (i % 4) and the next of row i / 4 of each matrix.
DEVICE void load_matrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// The same with each matrix transposed.
DEVICE void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Starts to copy 16 bytes, or to write 16 zeros where `valid` is false; `global` must point at memory even then.
// Both addresses are multiples of 16.
DEVICE void copy_async16(u32 shared, const void *global, bool valid) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1; cp.async.cg.shared.global [%0], [g], 16, %2; }" ::"r"(shared),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}
// Ends a group of copies.
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N newest groups are under way. The block must still meet at a barrier.
template <int N> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Bits of weights.

// (x & mask) | bits, in one instruction.
DEVICE u32 and_or(u32 x, u32 mask, u32 bits) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}

// Byte i is byte n of `hi:lo`, n being bits 4i..4i + 3 of `selector`.
DEVICE u32 permute_bytes(u32 lo, u32 hi, u32 selector) { return __byte_perm(lo, hi, selector); }

// Byte i is byte n of `hi:lo` (bytes below 128), n being bits 4i..4i + 4 of `selector`; 0 where n is 8 or more.
DEVICE u32 lookup4(u32 lo, u32 hi, u32 selector) {
    u32 y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(lo), "r"(hi), "r"(selector));
    return y;
}

// 2^x within 2 ulp; what would be subnormal becomes 0.
DEVICE float exp2_f32(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The dynamic shared memory of a launch.
template <typename T> DEVICE T *dynamic_shared() {
    extern __shared__ __align__(16) u8 dynamic_shared_bytes[];
    return (T *)dynamic_shared_bytes;
}

// ---- Sums that blocks share

// Four floats that another block of the same launch may have written: they come from where all blocks write to.
DEVICE void load_fresh16(float (&x)[4], const void *from) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %4; ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [g]; }"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "l"(from)
                 : "memory");
}

// Adds one to a counter that blocks share, and gives what it was. What its block wrote before the barrier ahead of it is
// seen by the block of whoever counts later, after the barrier that follows.
DEVICE u32 count_arrival(u32 *counter) {
    u32 before;
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1; atom.acq_rel.gpu.global.add.u32 %0, [g], 1; }"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

// ---- Beginning early

// On Hopper and later a kernel may begin while the one ahead of it on the stream still runs. The first lets the next one
// do so; the second waits until everything ahead has ended and its writes are seen. Every kernel calls both before it reads
// or writes what another kernel of the program touches: weights alone may be read before.
DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void begin() {
    let_next_begin();
    after_previous();
}
