// The matrix instructions: WMMA of gfx11 and gfx12, MFMA of gfx9 (CDNA), as the ISA documents lay their fragments out
// over the lanes. Products and sums are made in f32 (or i32) one after the other in the order of k; the hardware may
// round its partial sums otherwise.
//
// Of A (M x K) a lane holds S neighbouring elements of one row, of B (K x N) of one column: row r and element k are in
// lane r + M * (k / S), at k % S. On gfx11 S is K, and the upper lanes repeat the lower ones.
#pragma once

namespace hip_emu {
HIP_EMU_INLINE float element(_Float16 x) { return (float)x; }
HIP_EMU_INLINE float element(short x) { return __uint_as_float((unsigned)(unsigned short)x << 16); }
HIP_EMU_INLINE float element(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
#ifdef __clang__
HIP_EMU_INLINE float element(__bf16 x) { return element(__builtin_bit_cast(short, x)); }
#endif

// Rows of D by the number of a lane's value.
template <int N> struct rows_gfx11 {
    static unsigned row(unsigned lane, unsigned i) { return 2 * i + lane / N; }
};
template <int N> struct rows_gfx12 {
    static unsigned row(unsigned lane, unsigned i) { return lane / N * 8 + i; }
};
template <int N> struct rows_mfma {
    static unsigned row(unsigned lane, unsigned i) { return i % 4 + lane / N * 4 + i / 4 * (256 / N); }
};

template <typename A, typename B> struct fragments {
    A a;
    B b;
};

HIP_EMU_INLINE void check_whole(const wave_view &view) {
    unsigned lanes = hip_emu_context->lanes;
    if (view.mask != (lanes == 64 ? ~0ull : (1ull << lanes) - 1)) fail("matrix: some lanes of the wave take no part in a matrix instruction");
}

// D = A B + C of floats. N columns, and as many rows; S elements of a fragment.
template <int N, int K, int S, template <int> class ROWS, typename A, typename B, typename C>
static inline C multiply(const void *site, A a, B b, C c) {
    fragments<A, B> mine = {a, b};
    wave_view view;
    meet(view, mine, site);
    check_whole(view);
    unsigned lane = hip_emu_context->lane, column = lane % N;
    typedef const fragments<A, B> *pointer;
    if (S == K && lane >= N) {
        pointer lower = (pointer)view.payload[lane - N];
        if (__builtin_memcmp(&lower->a, &a, sizeof(A)) || __builtin_memcmp(&lower->b, &b, sizeof(B)))
            fail("matrix: lanes 16 to 31 do not repeat the fragments of lanes 0 to 15");
    }
    for (unsigned i = 0; i < sizeof(C) / 4; i++) {
        unsigned row = ROWS<N>::row(lane, i);
        float sum = c[i];
        for (unsigned k = 0; k < K; k++) {
            pointer left = (pointer)view.payload[row + N * (k / S)], right = (pointer)view.payload[column + N * (k / S)];
            sum = fmaf(element(left->a[k % S]), element(right->b[k % S]), sum);
        }
        c[i] = sum;
    }
    leave(site);
    return c;
}

// The same of bytes, whose sums are i32 and wrap, or saturate on demand.
template <int N, int K, int S, template <int> class ROWS, typename A, typename C>
static inline C multiply_bytes(const void *site, bool a_signed, A a, bool b_signed, A b, C c, bool clamp) {
    static_assert(sizeof(A) == S, "a fragment's bytes");
    fragments<A, A> mine = {a, b};
    wave_view view;
    meet(view, mine, site);
    check_whole(view);
    unsigned lane = hip_emu_context->lane, column = lane % N;
    typedef const fragments<A, A> *pointer;
    for (unsigned i = 0; i < sizeof(C) / 4; i++) {
        unsigned row = ROWS<N>::row(lane, i);
        long long sum = c[i];
        for (unsigned k = 0; k < K; k++) {
            pointer left = (pointer)view.payload[row + N * (k / S)], right = (pointer)view.payload[column + N * (k / S)];
            unsigned char x = ((const unsigned char *)&left->a)[k % S], y = ((const unsigned char *)&right->b)[k % S];
            sum += (long long)(a_signed ? (int)(signed char)x : (int)x) * (b_signed ? (int)(signed char)y : (int)y);
        }
        if (clamp) sum = sum > 2147483647ll ? 2147483647ll : sum < -2147483648ll ? -2147483648ll : sum;
        c[i] = (int)(unsigned)sum;
    }
    leave(site);
    return c;
}
} // namespace hip_emu

#define HIP_EMU_WMMA11(a, b, c) hip_emu::multiply<16, 16, 16, hip_emu::rows_gfx11>(HIP_EMU_SITE, a, b, c)
#define HIP_EMU_WMMA12(a, b, c) hip_emu::multiply<16, 16, 8, hip_emu::rows_gfx12>(HIP_EMU_SITE, a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c) HIP_EMU_WMMA11(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c) HIP_EMU_WMMA11(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c) HIP_EMU_WMMA12(a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c) HIP_EMU_WMMA12(a, b, c)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(as, a, bs, b, c, clamp)                                             \
    hip_emu::multiply_bytes<16, 16, 16, hip_emu::rows_gfx11>(HIP_EMU_SITE, as, a, bs, b, c, clamp)
#define __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(as, a, bs, b, c, clamp)                                       \
    hip_emu::multiply_bytes<16, 16, 8, hip_emu::rows_gfx12>(HIP_EMU_SITE, as, a, bs, b, c, clamp)

// The last three arguments broadcast and permute blocks; they are 0 where there is one block.
#define HIP_EMU_MFMA(n, k, a, b, c, x, y, z)                                                                           \
    (((x) | (y) | (z)) ? hip_emu::fail("matrix: cbsz, abid and blgp are not emulated") : (void)0,                      \
     hip_emu::multiply<n, k, 4, hip_emu::rows_mfma>(HIP_EMU_SITE, a, b, c))
#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, x, y, z) HIP_EMU_MFMA(32, 8, a, b, c, x, y, z)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, x, y, z) HIP_EMU_MFMA(16, 16, a, b, c, x, y, z)
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, x, y, z) HIP_EMU_MFMA(32, 8, a, b, c, x, y, z)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, x, y, z) HIP_EMU_MFMA(16, 16, a, b, c, x, y, z)
#define HIP_EMU_MFMA_I8(n, k, a, b, c)                                                                                 \
    hip_emu::multiply_bytes<n, k, 8, hip_emu::rows_mfma>(HIP_EMU_SITE, true, a, true, b, c, false)
#define __builtin_amdgcn_mfma_i32_32x32x16_i8(a, b, c, x, y, z) HIP_EMU_MFMA_I8(32, 16, a, b, c)
#define __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, x, y, z) HIP_EMU_MFMA_I8(16, 32, a, b, c)
