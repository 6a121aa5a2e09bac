// HIP's names and AMD's builtins for NVRTC, at waves of 32 lanes: what kernels-hip uses. Put before a kernel's text.
//
// Exchanges between lanes wait for all 32 of them, as CUDA's do that have a mask: a wave on AMD runs in step, and so all
// of it comes to an exchange, or the kernel is wrong there too. (An exchange within a branch that some lanes do not take
// is not served; hip-emu does that.)
#pragma once

#define __HIP_ON_CUDA__ 1
#define __HIP__ 1

#define opencl_global // the name of an address space: CUDA finds out by itself
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#ifndef __ATOMIC_RELAXED
#define __ATOMIC_RELAXED 0
#define __ATOMIC_ACQUIRE 2
#define __ATOMIC_RELEASE 3
#define __ATOMIC_ACQ_REL 4
#define __ATOMIC_SEQ_CST 5
#endif
#define __builtin_isunordered(a, b) ((a) != (a) || (b) != (b))

#define HIP_ON_CUDA_INLINE __device__ __forceinline__

namespace hip_on_cuda {
constexpr unsigned WAVE = 0xffffffffu;

// f16 as a number that is only converted, to the nearest, ties to even.
struct half {
    unsigned short bits;
    half() = default;
    HIP_ON_CUDA_INLINE explicit half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    HIP_ON_CUDA_INLINE operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
};

// In the place of clang's vectors.
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vector {
    T element[N];
    HIP_ON_CUDA_INLINE T &operator[](int i) { return element[i]; }
    HIP_ON_CUDA_INLINE const T &operator[](int i) const { return element[i]; }
    HIP_ON_CUDA_INLINE vector &operator*=(T x) {
#pragma unroll
        for (int i = 0; i < N; i++) element[i] *= x;
        return *this;
    }
};

HIP_ON_CUDA_INLINE unsigned lane() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
template <typename T> HIP_ON_CUDA_INLINE T shuffle(T x, int from, int width = 32) {
    return __shfl_sync(WAVE, x, from, width);
}
template <typename T> HIP_ON_CUDA_INLINE T shuffle_xor(T x, int mask, int width = 32) {
    return __shfl_xor_sync(WAVE, x, mask, width);
}
template <typename T> HIP_ON_CUDA_INLINE T shuffle_up(T x, unsigned by, int width = 32) {
    return __shfl_up_sync(WAVE, x, by, width);
}
template <typename T> HIP_ON_CUDA_INLINE T shuffle_down(T x, unsigned by, int width = 32) {
    return __shfl_down_sync(WAVE, x, by, width);
}
// Of the lanes that are here the first.
HIP_ON_CUDA_INLINE int first_lane(int x) {
    unsigned here = __activemask();
    return __shfl_sync(here, x, __ffs(here) - 1);
}
// v_permlanex16_b32: nibble i % 8 of `lo` or `hi` names the lane of the other row of 16 that lane i of a row reads.
HIP_ON_CUDA_INLINE unsigned other_row(unsigned x, unsigned lo, unsigned hi) {
    unsigned at = lane(), i = at % 16;
    return shuffle(x, (int)((at & 16 ^ 16) + ((i < 8 ? lo : hi) >> i % 8 * 4 & 15)));
}
// v_perm_b32: byte i by byte i of the selector. 0 to 3 are of `lo`, 4 to 7 of `hi`; 8 to 11 the sign of every second byte
// of both; 12 is 0, and what is above it 255.
HIP_ON_CUDA_INLINE unsigned permute(unsigned hi, unsigned lo, unsigned selector) {
    unsigned y = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        unsigned n = selector >> i & 0xff, byte = n == 12 ? 0 : 0xff;
        if (n < 12 && n >= 8) byte = ((n < 10 ? lo : hi) >> (n % 2 ? 31 : 15) & 1) * 0xff;
        if (n < 8) byte = __byte_perm(lo, hi, n) & 0xff;
        y |= byte << i;
    }
    return y;
}
// The sum of the products of four bytes, and `sum`: it wraps, or stays within 32 bits on demand.
HIP_ON_CUDA_INLINE int dot4(bool a_signed, unsigned a, bool b_signed, unsigned b, int sum, bool clamp) {
    long long total = sum;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        int x = a_signed ? (int)(signed char)(a >> i) : (int)(a >> i & 0xff);
        int y = b_signed ? (int)(signed char)(b >> i) : (int)(b >> i & 0xff);
        total += x * y;
    }
    if (clamp) total = total > 2147483647ll ? 2147483647ll : total < -2147483648ll ? -2147483648ll : total;
    return (int)total;
}
HIP_ON_CUDA_INLINE float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The low and the high element of a word, of a fragment of _Float16 and of one of bf16.
struct of_half {
    static HIP_ON_CUDA_INLINE float value(unsigned word, int i) {
        half x;
        x.bits = (unsigned short)(word >> i * 16);
        return x;
    }
};
struct of_bf16 {
    static HIP_ON_CUDA_INLINE float value(unsigned word, int i) {
        return __uint_as_float(i ? word & 0xffff0000u : word << 16);
    }
};

// WMMA 16x16x16, as the ISA documents lay fragments out. Row r of A (column of B) and element k are on gfx11 in lane r and
// again in lane r + 16, at k; on gfx12 in lane r + 16 (k / 8), at k % 8. A lane has of the product column `lane % 16`,
// rows 2 i + lane / 16 on gfx11 and 8 (lane / 16) + i on gfx12. Sums are made in f32 in the order of k, as hip-emu's; the
// hardware may round its partial sums otherwise. A call, so that a kernel of many does not take minutes to compile.
template <typename E, int WORDS>
__device__ __noinline__ vector<float, 8> wmma(vector<unsigned, WORDS> a, vector<unsigned, WORDS> b,
                                              vector<float, 8> c) {
    constexpr bool GFX11 = WORDS == 8;
    const unsigned upper = lane() / 16, column = lane() % 16;
    unsigned right[8];
#pragma unroll
    for (int k = 0; k < 8; k++) right[k] = GFX11 ? b[k % WORDS] : shuffle(b[k % WORDS], (int)(column + k / 4 * 16));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const unsigned row = GFX11 ? 2 * i + upper : 8 * upper + i;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const unsigned left = shuffle(a[k % WORDS], (int)(GFX11 ? row : row + k / 4 * 16));
            c[i] = fmaf(E::value(left, 0), E::value(right[k], 0), c[i]);
            c[i] = fmaf(E::value(left, 1), E::value(right[k], 1), c[i]);
        }
    }
    return c;
}
template <typename E, typename F>
HIP_ON_CUDA_INLINE vector<float, 8> multiply(const F &a, const F &b, const vector<float, 8> &c) {
    typedef vector<unsigned, sizeof(F) / 4> words;
    return wmma<E>(__builtin_bit_cast(words, a), __builtin_bit_cast(words, b), c);
}
} // namespace hip_on_cuda

#define _Float16 hip_on_cuda::half
#define VECTOR(NAME, T, N) typedef hip_on_cuda::vector<T, N> NAME

#define __shfl hip_on_cuda::shuffle
#define __shfl_xor hip_on_cuda::shuffle_xor
#define __shfl_up hip_on_cuda::shuffle_up
#define __shfl_down hip_on_cuda::shuffle_down
#define __ballot(p) ((unsigned long long)__ballot_sync(hip_on_cuda::WAVE, p))
#define __any(p) __any_sync(hip_on_cuda::WAVE, p)
#define __all(p) __all_sync(hip_on_cuda::WAVE, p)

#define __builtin_amdgcn_wavefrontsize() 32
#define __builtin_amdgcn_s_barrier() __syncthreads()
#define __builtin_amdgcn_wave_barrier() __syncwarp()
#define __builtin_amdgcn_fence(...) __threadfence_block()
#define __builtin_amdgcn_sched_barrier(mask) ((void)0)
#define __builtin_amdgcn_readfirstlane(x) hip_on_cuda::first_lane(x)
#define __builtin_amdgcn_permlanex16(old, x, lo, hi, fetch, bound) hip_on_cuda::other_row(x, lo, hi)
#define __builtin_amdgcn_perm(hi, lo, selector) hip_on_cuda::permute(hi, lo, selector)
#define __builtin_amdgcn_sdot4(a, b, sum, clamp) hip_on_cuda::dot4(true, (unsigned)(a), true, (unsigned)(b), sum, clamp)
#define __builtin_amdgcn_sudot4(a_signed, a, b_signed, b, sum, clamp)                                                  \
    hip_on_cuda::dot4(a_signed, (unsigned)(a), b_signed, (unsigned)(b), sum, clamp)
#define __builtin_amdgcn_exp2f(x) hip_on_cuda::exp2_approximate(x)
#define __builtin_exp2f(x) exp2f(x)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c) hip_on_cuda::multiply<hip_on_cuda::of_half>(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c) hip_on_cuda::multiply<hip_on_cuda::of_bf16>(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c) hip_on_cuda::multiply<hip_on_cuda::of_half>(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c) hip_on_cuda::multiply<hip_on_cuda::of_bf16>(a, b, c)
