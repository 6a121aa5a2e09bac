// Functions of HIP's device library on the host: arithmetic, bits, conversions, atomics. Functions that the hardware
// approximates are exact to the host's library here; what a kernel may rely on is the documented error.
#pragma once

extern "C" {
#define HIP_EMU_LIBM(name)                                                                                             \
    double name(double) noexcept;                                                                                      \
    float name##f(float) noexcept;
HIP_EMU_LIBM(exp) HIP_EMU_LIBM(exp2) HIP_EMU_LIBM(expm1) HIP_EMU_LIBM(log) HIP_EMU_LIBM(log2) HIP_EMU_LIBM(log10)
HIP_EMU_LIBM(log1p) HIP_EMU_LIBM(sqrt) HIP_EMU_LIBM(cbrt) HIP_EMU_LIBM(sin) HIP_EMU_LIBM(cos) HIP_EMU_LIBM(tan)
HIP_EMU_LIBM(sinh) HIP_EMU_LIBM(cosh) HIP_EMU_LIBM(tanh) HIP_EMU_LIBM(asin) HIP_EMU_LIBM(acos) HIP_EMU_LIBM(atan)
HIP_EMU_LIBM(erf) HIP_EMU_LIBM(erfc) HIP_EMU_LIBM(floor) HIP_EMU_LIBM(ceil) HIP_EMU_LIBM(trunc) HIP_EMU_LIBM(rint)
HIP_EMU_LIBM(round) HIP_EMU_LIBM(nearbyint) HIP_EMU_LIBM(fabs)
#define HIP_EMU_LIBM2(name)                                                                                            \
    double name(double, double) noexcept;                                                                              \
    float name##f(float, float) noexcept;
HIP_EMU_LIBM2(pow) HIP_EMU_LIBM2(atan2) HIP_EMU_LIBM2(fmod) HIP_EMU_LIBM2(fmin) HIP_EMU_LIBM2(fmax)
HIP_EMU_LIBM2(copysign)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double frexp(double, int *) noexcept;
float frexpf(float, int *) noexcept;
void *memcpy(void *, const void *, size_t) noexcept;
void *memset(void *, int, size_t) noexcept;
void sincosf(float, float *, float *) noexcept;
void sincos(double, double *, double *) noexcept;
}

#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif

#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)

#define HIP_EMU_FAST(fast, exact) HIP_EMU_INLINE float fast(float x) { return exact(x); }
HIP_EMU_FAST(__expf, expf)
HIP_EMU_FAST(__logf, logf)
HIP_EMU_FAST(__log2f, log2f)
HIP_EMU_FAST(__log10f, log10f)
HIP_EMU_FAST(__sinf, sinf)
HIP_EMU_FAST(__cosf, cosf)
HIP_EMU_FAST(__tanf, tanf)
HIP_EMU_FAST(__fsqrt_rn, sqrtf)
HIP_EMU_INLINE float __exp10f(float x) { return powf(10.0f, x); }
HIP_EMU_INLINE float exp10f(float x) { return (float)pow(10.0, (double)x); }
HIP_EMU_INLINE float __powf(float x, float y) { return powf(x, y); }
HIP_EMU_INLINE float __fdividef(float x, float y) { return x / y; }
HIP_EMU_INLINE float __frcp_rn(float x) { return 1.0f / x; }
HIP_EMU_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
HIP_EMU_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
HIP_EMU_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
HIP_EMU_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
HIP_EMU_INLINE float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
HIP_EMU_INLINE float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
HIP_EMU_INLINE float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
HIP_EMU_INLINE float fdividef(float x, float y) { return x / y; }

#define HIP_EMU_MIN_MAX(T)                                                                                             \
    HIP_EMU_INLINE T min(T a, T b) { return b < a ? b : a; }                                                           \
    HIP_EMU_INLINE T max(T a, T b) { return a < b ? b : a; }
HIP_EMU_MIN_MAX(int)
HIP_EMU_MIN_MAX(unsigned int)
HIP_EMU_MIN_MAX(long)
HIP_EMU_MIN_MAX(unsigned long)
HIP_EMU_MIN_MAX(long long)
HIP_EMU_MIN_MAX(unsigned long long)
HIP_EMU_INLINE float min(float a, float b) { return fminf(a, b); }
HIP_EMU_INLINE float max(float a, float b) { return fmaxf(a, b); }
HIP_EMU_INLINE double min(double a, double b) { return fmin(a, b); }
HIP_EMU_INLINE double max(double a, double b) { return fmax(a, b); }
HIP_EMU_INLINE int abs(int x) { return x < 0 ? (int)(0u - (unsigned)x) : x; }

// Bits.
HIP_EMU_INLINE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
HIP_EMU_INLINE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
HIP_EMU_INLINE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
HIP_EMU_INLINE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
HIP_EMU_INLINE long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
HIP_EMU_INLINE double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
HIP_EMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
HIP_EMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
HIP_EMU_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
HIP_EMU_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
HIP_EMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
HIP_EMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
HIP_EMU_INLINE unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
HIP_EMU_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
HIP_EMU_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
HIP_EMU_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
HIP_EMU_INLINE int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
HIP_EMU_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
// Byte i of the result is byte n of `hi:lo`, n being bits 4i..4i + 2 of the selector.
HIP_EMU_INLINE unsigned __byte_perm(unsigned lo, unsigned hi, unsigned selector) {
    unsigned long long bytes = (unsigned long long)hi << 32 | lo;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) y |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return y;
}
HIP_EMU_INLINE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
HIP_EMU_INLINE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}

// Conversions; they saturate as the hardware's do, and a NaN becomes 0.
#define HIP_EMU_CONVERT(name, T, step, least, most)                                                                    \
    HIP_EMU_INLINE T name(float x) {                                                                                   \
        float y = step(x);                                                                                             \
        return y != y ? (T)0 : y <= (float)(least) ? (T)(least) : y >= (float)(most) ? (T)(most) : (T)y;               \
    }
HIP_EMU_CONVERT(__float2int_rn, int, rintf, -2147483647 - 1, 2147483647)
HIP_EMU_CONVERT(__float2int_rz, int, truncf, -2147483647 - 1, 2147483647)
HIP_EMU_CONVERT(__float2int_rd, int, floorf, -2147483647 - 1, 2147483647)
HIP_EMU_CONVERT(__float2int_ru, int, ceilf, -2147483647 - 1, 2147483647)
HIP_EMU_CONVERT(__float2uint_rn, unsigned, rintf, 0, 4294967295u)
HIP_EMU_CONVERT(__float2uint_rz, unsigned, truncf, 0, 4294967295u)
HIP_EMU_INLINE float __int2float_rn(int x) { return (float)x; }
HIP_EMU_INLINE float __uint2float_rn(unsigned x) { return (float)x; }

template <typename T> HIP_EMU_INLINE T __ldg(const T *p) { return *p; }

// Atomics, which are so towards copies of other streams too.
namespace hip_emu {
template <typename T> struct same { typedef T type; };
template <unsigned N> struct bits_of;
template <> struct bits_of<4> { typedef unsigned type; };
template <> struct bits_of<8> { typedef unsigned long long type; };
template <typename T, typename F> HIP_EMU_INLINE T update(T *p, F change) {
    typedef typename bits_of<sizeof(T)>::type B;
    B old = __atomic_load_n((B *)p, __ATOMIC_RELAXED);
    for (;;) {
        T value = __builtin_bit_cast(T, old);
        if (__atomic_compare_exchange_n((B *)p, &old, __builtin_bit_cast(B, (T)change(value)), false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return value;
    }
}
} // namespace hip_emu
#define HIP_EMU_ATOMIC(name, expression)                                                                               \
    template <typename T> HIP_EMU_INLINE T name(T *p, typename hip_emu::same<T>::type v) {                             \
        return hip_emu::update(p, [&](T old) { return (T)(expression); });                                             \
    }                                                                                                                  \
    template <typename T> HIP_EMU_INLINE T name##_system(T *p, typename hip_emu::same<T>::type v) { return name(p, v); }
HIP_EMU_ATOMIC(atomicAdd, old + v)
HIP_EMU_ATOMIC(atomicSub, old - v)
HIP_EMU_ATOMIC(atomicMax, old < v ? v : old)
HIP_EMU_ATOMIC(atomicMin, v < old ? v : old)
HIP_EMU_ATOMIC(atomicAnd, old & v)
HIP_EMU_ATOMIC(atomicOr, old | v)
HIP_EMU_ATOMIC(atomicXor, old ^ v)
HIP_EMU_ATOMIC(atomicExch, v)
HIP_EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
HIP_EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
template <typename T>
HIP_EMU_INLINE T atomicCAS(T *p, typename hip_emu::same<T>::type expected, typename hip_emu::same<T>::type value) {
    return hip_emu::update(p, [&](T old) { return old == expected ? value : old; });
}
#ifndef __clang__
#define __HIP_MEMORY_SCOPE_SINGLETHREAD 1
#define __HIP_MEMORY_SCOPE_WAVEFRONT 2
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __HIP_MEMORY_SCOPE_SYSTEM 5
#endif
#define __hip_atomic_load(p, order, scope) __atomic_load_n(p, order)
#define __hip_atomic_store(p, v, order, scope) __atomic_store_n(p, v, order)
#define __hip_atomic_fetch_add(p, v, order, scope) atomicAdd(p, v)
#define __hip_atomic_fetch_max(p, v, order, scope) atomicMax(p, v)
#define __hip_atomic_fetch_min(p, v, order, scope) atomicMin(p, v)
#define __hip_atomic_fetch_or(p, v, order, scope) atomicOr(p, v)
#define __hip_atomic_fetch_and(p, v, order, scope) atomicAnd(p, v)
#define __hip_atomic_exchange(p, v, order, scope) atomicExch(p, v)
