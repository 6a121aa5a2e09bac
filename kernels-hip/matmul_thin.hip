// A few rows of x in f16 or bf16, on matrix units: every weight is read once, straight to the registers that multiply
// it. Sums are f32; weights are decoded to the type of x first.
//
// Defines, beside those of matmul.cuh and matrix.h: NT, tiles of 16 rows of x; MT, tiles of 16 lines (rows of a matrix) of
// a block: for gate_up 2, one of each matrix; WAVES of a block. Rows of weights are whole chunks of 8 elements or more,
// and k is a multiple of 8.
//
// The waves of a block share its lines and divide the columns. At a step a lane takes SHARE neighbouring weights of its
// line of each tile, and multiplies them HELD at a time: a matrix unit does not mind which columns of x and of the weights
// meet, as long as they are the same. What x has in those columns comes from the caches.
#include "decoded.h"

#define THREADS (WAVES * LANES)
// Lanes with different columns of one line; on gfx11 all have the same.
#define PARTS (MATRIX == 11 ? 1 : LANES / SIDE)
#define COLUMNS (PARTS * SHARE)
#define X_UNITS (SHARE / UNIT)

// The first column of a step for this lane.
DEVICE u32 column_of(u32 step) { return step * COLUMNS + (PARTS == 1 ? 0 : lane_id() / SIDE * SHARE); }

// Rows beyond the last are others, whose products nobody reads; columns beyond the last are zeros.
DEVICE void load_x(Unit (&x)[NT][X_UNITS], const Args &args, u32 row0, u32 step) {
    bool aligned = args.x % 16 == 0;
    u32 column = column_of(step);
#pragma unroll
    for (int t = 0; t < NT; t++) {
        u32 row = row0 + t * SIDE + lane_row();
        const X_T *from = at<const X_T>(args.x) + (u64)(row < args.rows ? row : 0) * args.k;
#pragma unroll
        for (int i = 0; i < X_UNITS; i++) {
            u32 k = column + i * UNIT;
            x[t][i] = load_unit(from + (k < args.k ? k : 0), aligned);
        }
    }
}

DEVICE void zero_rest(Unit (&x)[NT][X_UNITS], const Args &args, u32 step) {
#pragma unroll
    for (int i = 0; i < X_UNITS; i++) {
        bool valid = column_of(step) + i * UNIT < args.k;
#pragma unroll
        for (int t = 0; t < NT; t++) {
#pragma unroll
            for (int j = 0; j < 4; j++) x[t][i].word[j] = valid ? x[t][i].word[j] : 0;
        }
    }
}

DEVICE void load_lines(Coded (&coded)[MT], const Args &args, u32 column0, u32 step) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
        u32 column = column0 + m / MATRICES * SIDE + lane_row();
        load_coded(coded[m], args.w[m % MATRICES], column < args.n ? column : args.n - 1, args.k, column_of(step));
    }
}

DEVICE void multiply_step(Sums (&sums)[MT][NT], const Coded (&coded)[MT], const Unit (&x)[NT][X_UNITS]) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
        Scales scales[GROUPS];
        scales_of(scales, coded[m]);
#pragma unroll
        for (int i = 0; i < X_UNITS; i += UNITS) {
            Fragment<X_T> w, rows;
#pragma unroll
            for (int u = 0; u < UNITS; u++) w.unit[u] = decode_unit(coded[m], scales, i + u);
#pragma unroll
            for (int t = 0; t < NT; t++) {
#pragma unroll
                for (int u = 0; u < UNITS; u++) rows.unit[u] = x[t][i + u];
                multiply<X_T>(sums[m][t], rows, w);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul_thin(const Args args) {
    begin();
    __shared__ float shared[WAVES * MT * NT * VALUES * LANES];
    u32 tiles = (args.rows + NT * SIDE - 1) / (NT * SIDE);
    u32 row0 = blockIdx.x % tiles * (NT * SIDE), column0 = blockIdx.x / tiles * (MT / MATRICES * SIDE);
    u32 wave = uniform(threadIdx.x / LANES);
    Sums sums[MT][NT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int t = 0; t < NT; t++) sums[m][t] = no_sums();
    }
    u32 steps = (args.k + COLUMNS - 1) / COLUMNS;
    Coded now[MT], next[MT];
    if (wave < steps) load_lines(now, args, column0, wave);
    for (u32 step = wave; step < steps; step += WAVES) {
        Unit x[NT][X_UNITS];
        load_x(x, args, row0, step);
        if (step + WAVES < steps) load_lines(next, args, column0, step + WAVES);
        if ((step + 1) * COLUMNS > args.k) zero_rest(x, args, step);
        multiply_step(sums, now, x);
#pragma unroll
        for (int m = 0; m < MT; m++) now[m] = next[m];
    }
    // The waves' sums meet.
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
#pragma unroll
            for (int e = 0; e < VALUES; e++)
                shared[(((wave * MT + m) * NT + t) * VALUES + e) * LANES + lane_id()] = sums[m][t][e];
        }
    }
    __syncthreads();
    for (u32 i = wave; i < MT / MATRICES * NT * VALUES; i += WAVES) {
        u32 e = i % VALUES, t = i / VALUES % NT, m = i / VALUES / NT;
        float sum[MATRICES];
#pragma unroll
        for (int j = 0; j < MATRICES; j++) {
            sum[j] = 0;
#pragma unroll
            for (int w = 0; w < WAVES; w++)
                sum[j] += shared[(((w * MT + m * MATRICES + j) * NT + t) * VALUES + e) * LANES + lane_id()];
        }
        u32 row = row0 + t * SIDE + value_row(e), column = column0 + m * SIDE + lane_row();
        if (row < args.rows && column < args.n) finish(args, row, column, sum);
    }
}
