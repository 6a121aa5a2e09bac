// HIP's spelling for a clang that has neither ROCm's headers nor its device libraries:
//     clang -x hip -nogpuinc -nogpulib -include prelude.h
// The gate `cargo xtask verify-rocm --only compile` uses it to see that every kernel compiles for every architecture, and
// what it takes. It is for that gate alone. What runs on a GPU is compiled by hipRTC, which brings its own definitions of
// all of this; so nothing here decides a result, and a function that is no single instruction need only be right and of
// a sensible size. A function that no kernel uses is not here, and one that is used for the first time is added.
#pragma once

#if defined(__HIP_DEVICE_COMPILE__) && defined(__AMDGCN__)

typedef __SIZE_TYPE__ size_t;

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// Threads of a block at most, and, as HIP counts, waves that are to fit on a SIMD.
#define PRELUDE_THREADS(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define PRELUDE_WAVES(threads, waves) PRELUDE_THREADS(threads) __attribute__((amdgpu_waves_per_eu(waves)))
#define PRELUDE_CHOOSE(first, second, chosen, ...) chosen
#define __launch_bounds__(...) PRELUDE_CHOOSE(__VA_ARGS__, PRELUDE_WAVES, PRELUDE_THREADS, )(__VA_ARGS__)

#define PRELUDE __device__ __forceinline__

// ---- Where a thread is

struct prelude_dim3 {
    unsigned x, y, z;
};

PRELUDE prelude_dim3 prelude_thread() {
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
PRELUDE prelude_dim3 prelude_block() {
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
PRELUDE prelude_dim3 prelude_block_size() {
    return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z()};
}
// The hidden arguments of code object 5 begin with the number of blocks in x, y and z.
PRELUDE prelude_dim3 prelude_blocks() {
    typedef const __attribute__((address_space(4))) unsigned *words;
    words counts = (words)__builtin_amdgcn_implicitarg_ptr();
    return {counts[0], counts[1], counts[2]};
}
#define threadIdx prelude_thread()
#define blockIdx prelude_block()
#define blockDim prelude_block_size()
#define gridDim prelude_blocks()

// ---- Vectors, aligned to their size

#define PRELUDE_VECTORS(type, name)                                                                                    \
    struct __align__(2 * sizeof(type)) name##2 {                                                                       \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct __align__(4 * sizeof(type)) name##4 {                                                                       \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    PRELUDE name##2 make_##name##2(type x, type y) { return {x, y}; }                                                  \
    PRELUDE name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
PRELUDE_VECTORS(float, float)
PRELUDE_VECTORS(int, int)
PRELUDE_VECTORS(unsigned, uint)

// ---- Order

PRELUDE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PRELUDE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

template <typename T> PRELUDE T atomicAdd(T *at, T x) {
    return __hip_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T> PRELUDE T atomicMax(T *at, T x) {
    return __hip_atomic_fetch_max(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T> PRELUDE T atomicExch(T *at, T x) {
    return __hip_atomic_exchange(at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// ---- Between lanes: in groups of `width` lanes, a power of two

PRELUDE unsigned prelude_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }

// A value of another lane, a word at a time. The instruction counts in bytes.
template <typename T> PRELUDE T prelude_from_lane(T x, unsigned lane) {
    static_assert(sizeof(T) % 4 == 0, "whole words");
    struct words {
        int word[sizeof(T) / 4];
    } w = __builtin_bit_cast(words, x);
    for (unsigned i = 0; i < sizeof(T) / 4; i++) w.word[i] = __builtin_amdgcn_ds_bpermute(4 * lane, w.word[i]);
    return __builtin_bit_cast(T, w);
}
template <typename T> PRELUDE T __shfl(T x, int from, int width) {
    unsigned lane = prelude_lane(), inside = width - 1;
    return prelude_from_lane(x, (lane & ~inside) | (from & inside));
}
template <typename T> PRELUDE T __shfl_xor(T x, int mask, int width) {
    unsigned lane = prelude_lane(), other = lane ^ mask;
    return prelude_from_lane(x, (other ^ lane) < (unsigned)width ? other : lane);
}

// ---- Numbers

PRELUDE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
PRELUDE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
PRELUDE int __float2int_rn(float x) { return (int)__builtin_rintf(x); }

PRELUDE int max(int x, int y) { return x > y ? x : y; }
PRELUDE int min(int x, int y) { return x < y ? x : y; }
PRELUDE unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
PRELUDE unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }

PRELUDE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
PRELUDE float fminf(float x, float y) { return __builtin_fminf(x, y); }
PRELUDE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
PRELUDE double rint(double x) { return __builtin_rint(x); }
PRELUDE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
PRELUDE float sqrtf(float x) { return __builtin_sqrtf(x); }
// The compiler lowers it without a library, for the whole range.
PRELUDE float expf(float x) { return __builtin_expf(x); }
PRELUDE float __expf(float x) { return __builtin_amdgcn_exp2f(1.44269504088896341f * x); }

// 1 - erf(x): below 1 by erf's Taylor series, from there by Laplace's continued fraction (Abramowitz and Stegun, 7.1.5
// and 7.1.14), cut where the rest is below an f32's last place.
PRELUDE float erfcf(float x) {
    float a = __builtin_fabsf(x), square = a * a, right;
    if (a < 1.0f) {
        float sum = 0, term = 1.12837916709551257f * a;
        for (int n = 0; n < 14; n++) {
            sum += term / (2 * n + 1);
            term *= -square / (n + 1);
        }
        right = 1.0f - sum;
    } else {
        float tail = a;
        for (int n = 64; n > 0; n--) tail = a + 0.5f * n / tail;
        right = 0.564189583547756287f * __builtin_expf(-square) / tail;
    }
    return x < 0 ? 2.0f - right : right;
}

// x^y of a positive x, as 2^(y log2 x), within some 1e-14: the logarithm of the mantissa by the series of artanh, the power
// of what is beyond a whole number by that of exp.
PRELUDE double pow(double x, double y) {
    int exponent = __builtin_amdgcn_frexp_exp(x);
    double mantissa = __builtin_amdgcn_frexp_mant(x);
    if (mantissa < 0.70710678118654752) mantissa *= 2, exponent--;
    double t = (mantissa - 1) / (mantissa + 1), sum = 0;
    for (int n = 25; n > 0; n -= 2) sum = sum * (t * t) + 1.0 / n;
    double power = y * (exponent + 2.8853900817779268 * t * sum);
    double whole = __builtin_rint(power), rest = (power - whole) * 0.69314718055994531, result = 1;
    for (int n = 14; n > 0; n--) result = 1 + result * rest / n;
    return __builtin_amdgcn_ldexp(result, (int)whole);
}

#endif
