// Weights as they are stored, and as matrix units take them: SHARE neighbouring elements of a row of whole chunks.
#pragma once
#include "matmul.cuh"
#include "matrix.h"

#define SHARE 32
// Groups and chunks among them.
#define GROUPS (ENC == 0 || GROUP >= SHARE ? 1 : SHARE / GROUP)
#define CHUNKS (SHARE / CHUNK)

struct Coded {
    u32 word[CHUNKS][WORDS];
    GroupBits bits[GROUPS];
};

// Elements `first..first + SHARE` of a row of k, first being a multiple of SHARE. Beyond its end come others of the row,
// to meet zeros of x.
DEVICE void load_coded(Coded &coded, const Weight &w, u32 row, u32 k, u32 first) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        u32 start = first + c * CHUNK;
        load_words(coded.word[c], w, row, k, start < k ? start / CHUNK : 0);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        u32 start = first + g * (SHARE / GROUPS);
        coded.bits[g] = load_group(w, row, k, start < k ? start / GROUP : 0);
    }
}

DEVICE void scales_of(Scales (&scales)[GROUPS], const Coded &coded) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        scales[g] = scales_of(coded.bits[g]);
        // A NaN of any kind becomes one that `round2` keeps.
        if (ENC && __builtin_isunordered(scales[g].scale, scales[g].bias)) scales[g].scale = not_a_number();
    }
}

// Elements 8 i..8 i + 8, in the type of x. `i` is known when compiling.
DEVICE Unit decode_unit(const Coded &coded, const Scales (&scales)[GROUPS], int i) {
    Unit out;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int first = i * UNIT + 2 * j, c = first / CHUNK, e = first % CHUNK;
        Scales s = scales[first / (SHARE / GROUPS)];
        out.word[j] = PLAIN ? coded.word[c][e / 2 % WORDS]
                            : round2<X_T>(rough_value_of(coded.word[c], e, s), rough_value_of(coded.word[c], e + 1, s));
    }
    return out;
}
