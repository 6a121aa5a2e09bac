// Many rows of x in f16 or bf16, on matrix units: sums in f32, weights decoded to the type of x first.
//
// Defines, beside those of matmul.cuh and matrix.h: BM, rows of x that a block takes (64, 128); BN, lines (rows of a
// matrix) that it takes (64, 128). Rows of weights are whole chunks, 16-byte units where they have the type of x, and k is
// a multiple of 8.
//
// There is no copy past the registers into shared memory: while a step is multiplied the next one's x and codes are on
// their way to registers, and weights are decoded from there. One buffer of shared memory for it leaves room for two
// blocks and more on a compute unit, of which one multiplies while the other decodes.
//
// Lines of gate and up take turns, 16 by 16, so that a lane holds both sums of an element of y.
#include "decoded.h"

#define THREADS (2 * BN)
// Columns in shared memory at once, and units of them.
#define BK 64
#define ROW_UNITS (BK / UNIT)
// Waves lie 2 by WAVES / 2, and each takes tiles of 16 rows by 16 lines.
#define WAVES (THREADS / LANES)
#define MT (BM / 2 / SIDE)
#define NT (LANES / SIDE)
// Units of x, and of weights that need no decoding, that a thread moves for a step.
#define X_UNITS (BM * ROW_UNITS / THREADS)
#define W_UNITS (BN * ROW_UNITS / THREADS)

struct Tile {
    u32 row0;    // first row of x
    u32 column0; // first column of y
};

// The matrix and the column of y of a line of the block.
DEVICE u32 matrix_of(u32 line) { return GATE_UP ? line / SIDE % 2 : 0; }
DEVICE u32 column_of(u32 line) { return GATE_UP ? line / (2 * SIDE) * SIDE + line % SIDE : line; }

// Where a unit of a row lies in shared memory: so that those of eight neighbouring rows are in different banks.
DEVICE u32 place(u32 row, u32 unit) { return row * ROW_UNITS + (unit ^ row % ROW_UNITS); }

// What a thread brings to a step: of x as it is, of the weights as they are stored. Beyond the last row and the last line
// it is of others, whose products nobody reads. Beyond the end of a row x is made zeros, and meets other weights of the
// same line.
struct Brought {
    Unit x[X_UNITS];
    Unit w[PLAIN ? W_UNITS : 1];
    Coded coded;
};

template <bool ALIGNED> DEVICE void load_x(Brought &brought, const Args &args, const Tile &tile, u32 k0) {
    u32 column = k0 + threadIdx.x % ROW_UNITS * UNIT;
#pragma unroll
    for (int i = 0; i < X_UNITS; i++) {
        u32 row = tile.row0 + (i * THREADS + threadIdx.x) / ROW_UNITS;
        const X_T *from = at<const X_T>(args.x) + (u64)(row < args.rows ? row : 0) * args.k;
        brought.x[i] = load_unit(from + (column < args.k ? column : 0), ALIGNED);
    }
}

DEVICE void load_plain(Brought &brought, const Args &args, const Tile &tile, u32 k0) {
    u32 k = k0 + threadIdx.x % ROW_UNITS * UNIT;
#pragma unroll
    for (int i = 0; i < W_UNITS; i++) {
        u32 line = (i * THREADS + threadIdx.x) / ROW_UNITS, column = tile.column0 + column_of(line);
        u64 plane = matrix_of(line) ? args.w[1].plane[0] : args.w[0].plane[0];
        const X_T *from = at<const X_T>(plane) + (u64)(column < args.n ? column : 0) * args.k;
        brought.w[i % (PLAIN ? W_UNITS : 1)] = load_unit(from + (k < args.k ? k : 0), true);
    }
}

DEVICE void load_coded(Brought &brought, const Args &args, const Tile &tile, u32 k0) {
    u32 line = threadIdx.x / 2, column = tile.column0 + column_of(line);
    Weight w = args.w[0];
    if (GATE_UP && matrix_of(line)) w = args.w[MATRICES - 1];
    load_coded(brought.coded, w, column < args.n ? column : 0, args.k, k0 + threadIdx.x % 2 * SHARE);
}

DEVICE void load(Brought &brought, const Args &args, const Tile &tile, u32 k0) {
    if (args.x % 16 == 0) load_x<true>(brought, args, tile, k0);
    else load_x<false>(brought, args, tile, k0);
    if (PLAIN) load_plain(brought, args, tile, k0);
    else load_coded(brought, args, tile, k0);
}

// Puts it into shared memory, weights decoded: BM rows of x, then BN lines. `left`: columns from the step's first on.
DEVICE void store(const Brought &brought, Unit *shared, u32 left) {
    u32 unit = threadIdx.x % ROW_UNITS;
    Unit *lines = shared + BM * ROW_UNITS;
#pragma unroll
    for (int i = 0; i < X_UNITS; i++) {
        Unit x = brought.x[i];
#pragma unroll
        for (int j = 0; j < 4; j++) x.word[j] = unit * UNIT < left ? x.word[j] : 0;
        shared[place((i * THREADS + threadIdx.x) / ROW_UNITS, unit)] = x;
    }
    if (PLAIN) {
#pragma unroll
        for (int i = 0; i < W_UNITS; i++)
            lines[place((i * THREADS + threadIdx.x) / ROW_UNITS, unit)] = brought.w[i % (PLAIN ? W_UNITS : 1)];
        return;
    }
    Scales scales[GROUPS];
    scales_of(scales, brought.coded);
#pragma unroll
    for (int i = 0; i < SHARE / UNIT; i++)
        lines[place(threadIdx.x / 2, threadIdx.x % 2 * (SHARE / UNIT) + i)] = decode_unit(brought.coded, scales, i);
}

DEVICE Fragment<X_T> load_fragment(const Unit *shared, u32 row, u32 step) {
    Fragment<X_T> fragment;
#pragma unroll
    for (int u = 0; u < UNITS; u++) fragment.unit[u] = shared[place(row, step * STEP_UNITS + lane_unit() + u)];
    return fragment;
}

DEVICE void multiply_step(Sums (&sums)[MT][NT], const Unit *shared) {
    u32 wave = threadIdx.x / LANES;
    u32 row = wave % 2 * (MT * SIDE) + lane_row(), line = BM + wave / 2 * (NT * SIDE) + lane_row();
#pragma unroll
    for (int step = 0; step < BK / DEPTH; step++) {
        Fragment<X_T> w[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) w[j] = load_fragment(shared, line + j * SIDE, step);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            Fragment<X_T> x = load_fragment(shared, row + i * SIDE, step);
#pragma unroll
            for (int j = 0; j < NT; j++) multiply<X_T>(sums[i][j], x, w[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul_mma(const Args args) {
    begin();
    __shared__ Unit shared[(BM + BN) * ROW_UNITS];
    u32 blocks = (args.rows + BM - 1) / BM;
    Tile tile = {blockIdx.x % blocks * BM, blockIdx.x / blocks * (BN / MATRICES)};
    Sums sums[MT][NT];
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++) sums[i][j] = no_sums();
    }
    Brought brought;
    if (args.k > 0) load(brought, args, tile, 0);
    for (u32 k0 = 0; k0 < args.k; k0 += BK) {
        // The step before has been multiplied.
        __syncthreads();
        store(brought, shared, args.k - k0);
        __syncthreads();
        if (k0 + BK < args.k) load(brought, args, tile, k0 + BK);
        multiply_step(sums, shared);
    }
    u32 wave = threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j += MATRICES) {
            u32 column = tile.column0 + column_of(wave / 2 * (NT * SIDE) + j * SIDE + lane_row());
            if (column >= args.n) continue;
#pragma unroll
            for (int e = 0; e < VALUES; e++) {
                u32 row = tile.row0 + wave % 2 * (MT * SIDE) + i * SIDE + value_row(e);
                float sum[MATRICES];
#pragma unroll
                for (int m = 0; m < MATRICES; m++) sum[m] = sums[i][j + m][e];
                if (row < args.rows) finish(args, row, column, sum);
            }
        }
    }
}
