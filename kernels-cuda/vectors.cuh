// Eight neighbouring elements at a time, whatever their type.
#pragma once
#include "common.cuh"

// Eight elements from an address that is aligned to 16 bytes.
DEVICE void load_vector(const float *p, float (&x)[8]) {
    float4 lo = ((const float4 *)p)[0], hi = ((const float4 *)p)[1];
    x[0] = lo.x, x[1] = lo.y, x[2] = lo.z, x[3] = lo.w;
    x[4] = hi.x, x[5] = hi.y, x[6] = hi.z, x[7] = hi.w;
}
template <typename T> DEVICE void load_vector(const T *p, float (&x)[8]) {
    uint4 v = *(const uint4 *)p;
    x[0] = low_half<T>(v.x), x[1] = high_half<T>(v.x);
    x[2] = low_half<T>(v.y), x[3] = high_half<T>(v.y);
    x[4] = low_half<T>(v.z), x[5] = high_half<T>(v.z);
    x[6] = low_half<T>(v.w), x[7] = high_half<T>(v.w);
}

DEVICE void store_vector(float *p, const float (&x)[8]) {
    float4 lo, hi;
    lo.x = x[0], lo.y = x[1], lo.z = x[2], lo.w = x[3];
    hi.x = x[4], hi.y = x[5], hi.z = x[6], hi.w = x[7];
    ((float4 *)p)[0] = lo;
    ((float4 *)p)[1] = hi;
}
template <typename T> DEVICE void store_vector(T *p, const float (&x)[8]) {
    uint4 v;
    v.x = pack2<T>(x[0], x[1]);
    v.y = pack2<T>(x[2], x[3]);
    v.z = pack2<T>(x[4], x[5]);
    v.w = pack2<T>(x[6], x[7]);
    *(uint4 *)p = v;
}

// The first `count` elements at `p`, eight at the most, and zeros behind them. `aligned`: p is so to 16 bytes.
template <typename T> DEVICE void load8(const T *p, u32 count, bool aligned, float (&x)[8]) {
    if (aligned && count >= 8) {
        load_vector(p, x);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = i < count ? to_f32(p[i]) : 0.0f;
}

// Rounds and writes the first `count` elements, eight at the most.
template <typename T> DEVICE void store8(T *p, u32 count, bool aligned, const float (&x)[8]) {
    if (aligned && count >= 8) {
        store_vector(p, x);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (i < count) p[i] = from_f32<T>(x[i]);
    }
}

// As a T holds it.
template <typename T> DEVICE float rounded(float x) { return to_f32(from_f32<T>(x)); }

// How many of the elements from `i` on there are in a row of `len`.
DEVICE u32 left(u32 len, u32 i) { return i < len ? len - i : 0; }

// Norms: the squares of eight elements added to a sum, and what a root-mean-square norm multiplies its elements by. Every
// kernel that norms goes through both, so that all give the same bits.
DEVICE float add_squares(float sum, const float (&x)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(x[j], x[j], sum);
    return sum;
}
DEVICE float norm_scale(float squares, u32 width, float eps) { return 1.0f / sqrtf(squares / (float)width + eps); }
