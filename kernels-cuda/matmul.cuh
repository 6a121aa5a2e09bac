// What the kernels of matmul and gate_up share. Defines:
//   X_T, Y_T      types of x and y
//   GATE_UP       0: y = x W^T (+ bias). 1: y = act(x W^T) * (x V^T)
//   JOINED        1: three products of one x, each with its own y; their launch has `Joined` for its arguments
//   HAS_BIAS, B_T a bias of n, and its type
// and those of weights.cuh, which both matrices have in common.
#pragma once
#include "weights.cuh"

#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef B_T
#define B_T float
#endif

#ifndef JOINED
#define JOINED 0
#endif

#define MATRICES (GATE_UP ? 2 : 1)

template <typename A, typename B> struct Same {
    static const bool value = false;
};
template <typename A> struct Same<A, A> {
    static const bool value = true;
};
// Whether weights have the type of x and need no decoding.
#define PLAIN (ENC == 0 && Same<W_T, X_T>::value)

struct Args {
    Weight w[2]; // [n, k] each
    u64 x;       // [rows, k]
    u64 y;       // [rows, n]
    u64 bias;    // [n]
    u32 n;
    u32 k;
    u32 rows;
    u32 function; // of gate_up, as `activate` has it
};
static_assert(JOINED || sizeof(Args) == ARGS_SIZE, "Args is not as the host has it");

#if JOINED
struct Joined {
    Weight w[3]; // [n, k] each
    u64 x;       // [rows, k]
    u64 y[3];    // [rows, n] each
    u64 bias[3]; // [n] each
    u32 n[3];
    u32 k;
    u32 rows;
    u32 unused;
};
static_assert(sizeof(Joined) == ARGS_SIZE, "Joined is not as the host has it");

// The product of block `block`, which becomes the block's place in that product: each takes as many blocks as it has
// times COLUMNS columns for each of `tiles` tiles of rows.
template <int COLUMNS> DEVICE Args product_of(const Joined &all, u32 tiles, u32 &block) {
    u32 first = (all.n[0] + COLUMNS - 1) / COLUMNS * tiles;
    u32 second = first + (all.n[1] + COLUMNS - 1) / COLUMNS * tiles;
    int m = block < first ? 0 : block < second ? 1 : 2;
    block -= m == 0 ? 0 : m == 1 ? first : second;
    // Chosen rather than indexed: an index that is no constant would move the arguments to local memory.
    auto of = [&](auto a, auto b, auto c) { return m == 0 ? a : m == 1 ? b : c; };
    Args args;
#pragma unroll
    for (int i = 0; i < 4; i++) args.w[0].plane[i] = of(all.w[0].plane[i], all.w[1].plane[i], all.w[2].plane[i]);
    args.x = all.x;
    args.y = of(all.y[0], all.y[1], all.y[2]);
    args.bias = of(all.bias[0], all.bias[1], all.bias[2]);
    args.n = of(all.n[0], all.n[1], all.n[2]);
    args.k = all.k;
    args.rows = all.rows;
    args.function = 0;
    return args;
}
#endif

// Writes an element of y from the sums over k.
DEVICE void finish(const Args &args, u32 row, u32 column, const float (&sum)[MATRICES]) {
    float value = sum[0];
    if (HAS_BIAS) value += to_f32(at<const B_T>(args.bias)[column]);
    if (GATE_UP) value = activate((int)args.function, value) * sum[MATRICES - 1];
    at<Y_T>(args.y)[(u64)row * args.n + column] = from_f32<Y_T>(value);
}
