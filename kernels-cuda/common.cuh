// What all kernels share: the structs that launches are made of, and sums over lanes and blocks.
#pragma once
#include "dialect.cuh"

// A weight's planes, in the order of its encoding: codes (or values), scales, biases or minima, super scales.
struct Weight {
    u64 plane[4];
};

// What changes from step to step.
struct Step {
    u64 ids;        // i32 [T]
    u64 positions;  // i32 [T]
    u64 row_seq;    // i32 [T]; a negative one marks a row that is padding
    u64 page_table; // i32 [S, max_pages]; a negative entry is no page
    u64 select;     // i32 [R]
    u32 max_pages;
    u32 seqs;       // S: rows of the page table
};

// Pages of keys `[pages, kv_heads, 32, k_dim]` and values `[pages, kv_heads, 32, v_dim]`.
struct Cache {
    u64 k;
    u64 v;
    u32 pages;
    u32 kv_heads;
    u32 k_dim;
    u32 v_dim;
};

#define PAGE_TOKENS 32

// The page of positions `index * 32..` of a sequence, or -1.
DEVICE i32 page_of(const Step &step, const Cache &cache, i32 seq, u32 index) {
    if (seq < 0 || (u32)seq >= step.seqs || index >= step.max_pages) return -1;
    i32 page = at<const i32>(step.page_table)[(u64)seq * step.max_pages + index];
    return page >= 0 && (u32)page < cache.pages ? page : -1;
}

DEVICE float sum_lanes(float x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x += lane_xor(x, mask);
    return x;
}
DEVICE float max_lanes(float x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) x = fmaxf(x, lane_xor(x, mask));
    return x;
}

// The sum over a block of THREADS threads, in every thread. `shared` has room for THREADS / LANES floats.
template <int THREADS> DEVICE float sum_block(float x, float *shared) {
    x = sum_lanes(x);
    if (THREADS == LANES) return x;
    __syncthreads();
    if (threadIdx.x % LANES == 0) shared[threadIdx.x / LANES] = x;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < THREADS / LANES; i++) total += shared[i];
    return total;
}

// The elementwise functions, by the number that a launch gives: silu, gelu, gelu (tanh), relu squared. Each is written
// so that nothing cancels where the result is small: 1 + erf(x) is erfc(-x), and (1 + tanh(x)) / 2 is that quotient.
DEVICE float activate(int function, float x) {
    switch (function) {
    case 0: return x / (1.0f + expf(-x));
    case 1: return 0.5f * x * erfcf(x * -0.70710678118654752f);
    case 2: return x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    default: {
        float y = fmaxf(x, 0.0f);
        return y * y;
    }
    }
}
