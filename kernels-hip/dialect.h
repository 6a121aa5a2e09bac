// What differs between CUDA and HIP, under one set of names: the HIP side of kernels-cuda/dialect.cuh, which kernel bodies
// that serve both include by that name. Nothing is included: hipRTC, or clang with a prelude, is enough.
//
// Matrix units are not here: a HIP kernel that uses them has a body of its own.
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

// Memory at an address that the host gave. Said to be the device's memory, else the compiler takes "flat" instructions
// that ask at run time whether an address is one of shared memory, and whose answers are waited for together with those
// of shared memory.
template <typename T> __device__ __forceinline__ T *at(u64 address) {
    return (T *)(__attribute__((opencl_global)) T *)address;
}

// Two bytes each. Arithmetic is done in f32.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

#define DEVICE __device__ __forceinline__

DEVICE float to_f32(float x) { return x; }
DEVICE float to_f32(f16 x) { return (float)__builtin_bit_cast(_Float16, x.bits); }
DEVICE float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

// Rounds to nearest, ties to even.
template <typename T> DEVICE T from_f32(float x);
template <> DEVICE float from_f32<float>(float x) { return x; }
template <> DEVICE f16 from_f32<f16>(float x) {
    f16 y;
    y.bits = __builtin_bit_cast(u16, (_Float16)x);
    return y;
}
// Not every architecture has an instruction for it. Half of the last place is added, less one bit where the last place
// is even; a NaN stays one, since its payload may lie in the bits that go.
template <> DEVICE bf16 from_f32<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = bits + 0x7fffu + (bits >> 16 & 1);
    bf16 y;
    y.bits = (u16)(x != x ? 0x7fffu : rounded >> 16);
    return y;
}

// Two floats rounded into the halves of a word, `lo` in the low half.
template <typename T> DEVICE u32 pack2(float lo, float hi) {
    return (u32)from_f32<T>(hi).bits << 16 | from_f32<T>(lo).bits;
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
template <typename T> DEVICE T lane_xor(T x, int mask) { return __shfl_xor(x, mask, LANES); }
// The value of lane `lane`.
template <typename T> DEVICE T lane_get(T x, int lane) { return __shfl(x, lane, LANES); }
// Lanes see what the others of the wave wrote to shared memory before.
DEVICE void lanes_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
DEVICE float not_a_number() { return __uint_as_float(0x7fc00000u); }
DEVICE float exp_f32(float x) { return __expf(x); }
// 2^x; what would be subnormal may become 0. LOCAL_FIX(9): HIP 5's compiler has no name for the instruction.
#if __has_builtin(__builtin_amdgcn_exp2f)
DEVICE float exp2_f32(float x) { return __builtin_amdgcn_exp2f(x); }
#else
DEVICE float exp2_f32(float x) { return __builtin_exp2f(x); }
#endif

// Bits of weights.

// (x & mask) | bits, in one instruction.
DEVICE u32 and_or(u32 x, u32 mask, u32 bits) { return (x & mask) | bits; }

// The low four nibbles of a word, a byte each.
DEVICE u32 nibbles_to_bytes(u32 x) { return (x & 0xfu) | (x & 0xf0u) << 4 | (x & 0xf00u) << 8 | (x & 0xf000u) << 12; }

// Byte i is byte n of `hi:lo`, n being bits 4i..4i + 3 of `selector`.
DEVICE u32 permute_bytes(u32 lo, u32 hi, u32 selector) {
    return __builtin_amdgcn_perm(hi, lo, nibbles_to_bytes(selector) & 0x07070707u);
}

// Byte i is byte n of `hi:lo` (bytes below 128), n being bits 4i..4i + 4 of `selector`; 0 where n is 8 or more.
DEVICE u32 lookup4(u32 lo, u32 hi, u32 selector) {
    u32 n = nibbles_to_bytes(selector);
    // 8 to 11 choose a byte's sign, which is 0 below 128.
    return __builtin_amdgcn_perm(hi, lo, n & ~((n & 0x08080808u) >> 1));
}

// The dynamic shared memory of a launch.
template <typename T> DEVICE T *dynamic_shared() {
    extern __shared__ __align__(16) u8 dynamic_shared_bytes[];
    return (T *)dynamic_shared_bytes;
}

// Kernels begin when the one ahead of them on the stream has ended: there is nothing to let go, or to wait for.
DEVICE void let_next_begin() {}
DEVICE void after_previous() {}
DEVICE void begin() {}
