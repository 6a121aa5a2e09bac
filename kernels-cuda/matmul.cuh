// What the kernels of matmul and gate_up share. Defines:
//   X_T, Y_T      types of x and y
//   GATE_UP       0: y = x W^T (+ bias). 1: y = act(x W^T) * (x V^T)
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
static_assert(sizeof(Args) == ARGS_SIZE, "Args is not as the host has it");

// Writes an element of y from the sums over k.
DEVICE void finish(const Args &args, u32 row, u32 column, const float (&sum)[MATRICES]) {
    float value = sum[0];
    if (HAS_BIAS) value += to_f32(at<const B_T>(args.bias)[column]);
    if (GATE_UP) value = activate((int)args.function, value) * sum[MATRICES - 1];
    at<Y_T>(args.y)[(u64)row * args.n + column] = from_f32<Y_T>(value);
}
