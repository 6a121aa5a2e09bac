// Many rows of x in f16 or bf16, on matrix units: sums in f32, weights decoded to the type of x first.
//
// Defines, beside those of matmul.cuh: BM, rows of x that a block takes (64, 128); BN, lines (rows of a matrix) that
// it takes (64, 128); STAGES, tiles of shared memory (2 or more). Rows of weights are whole chunks, 16-byte units where
// they have the type of x, and k is a multiple of 8.
//
// Lines of gate and up take turns, eight by eight, so that a lane holds both sums of an element of y.
#include "matmul.cuh"

#define THREADS (2 * BN)
// Columns that are in shared memory at once, and elements from one row to the next there: 16 bytes more, so that the
// eight rows of a matrix lie in different banks.
#define BK 64
#define STRIDE (BK + 8)
#define TILE ((BM + BN) * STRIDE)
// Tiles of 16 rows and of 8 lines of a wave; waves lie 2 by BN / 32.
#define MT (BM / 32)
#define NT 4
// Elements of a line that a thread decodes for a step; groups and chunks among them.
#define SHARE 32
#define GROUPS (ENC == 0 || GROUP >= SHARE ? 1 : SHARE / GROUP)
#define CHUNKS (SHARE / CHUNK)

#define MIN_BLOCKS (ENC == 0 && sizeof(W_T) == 4 ? 1 : 2)

struct Tile {
    u32 row0;    // first row of x
    u32 column0; // first column of y
};

// The matrix and the column of y of a line of the block.
DEVICE u32 matrix_of(u32 line) { return GATE_UP ? line / 8 % 2 : 0; }
DEVICE u32 column_of(u32 line) { return GATE_UP ? line / 16 * 8 + line % 8 : line; }

// Starts to copy columns `k0..k0 + BK` of a row to shared memory. Beyond the row or where it is not `real`: zeros.
// `unit` is one of its BK / 8 units of 16 bytes.
DEVICE void copy_unit(X_T *to, const X_T *row, bool real, u32 k, u32 k0, u32 unit, bool aligned) {
    u32 column = k0 + unit * 8;
    bool valid = real && column < k;
    const X_T *from = row + (valid ? column : 0);
    if (aligned) {
        copy_async16(shared_address(to + unit * 8), from, valid);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[unit * 8 + i] = valid ? from[i] : from_f32<X_T>(0.0f);
    }
}

// Starts to copy what a step needs no decoding for.
DEVICE void copy_step(const Args &args, const Tile &tile, X_T *shared, u32 k0) {
    bool aligned = args.x % 16 == 0;
#pragma unroll
    for (int i = 0; i < BM * 8 / THREADS; i++) {
        u32 line = (i * THREADS + threadIdx.x) / 8, unit = threadIdx.x % 8;
        bool real = tile.row0 + line < args.rows;
        const X_T *row = at<const X_T>(args.x) + (u64)(real ? tile.row0 + line : 0) * args.k;
        copy_unit(shared + line * STRIDE, row, real, args.k, k0, unit, aligned);
    }
    if (PLAIN) {
#pragma unroll
        for (int i = 0; i < BN * 8 / THREADS; i++) {
            u32 line = (i * THREADS + threadIdx.x) / 8, unit = threadIdx.x % 8;
            u32 column = tile.column0 + column_of(line);
            bool real = column < args.n;
            u64 plane = matrix_of(line) ? args.w[1].plane[0] : args.w[0].plane[0];
            const X_T *row = at<const X_T>(plane) + (u64)(real ? column : 0) * args.k;
            copy_unit(shared + (BM + line) * STRIDE, row, real, args.k, k0, unit, true);
        }
    }
}

// A thread's share of the weights of a step, as stored.
struct Share {
    u32 word[CHUNKS][WORDS];
    GroupBits bits[GROUPS];
    bool valid[CHUNKS];
};

DEVICE void load_share(Share &share, const Args &args, const Tile &tile, u32 k0) {
    u32 line = threadIdx.x / 2;
    u32 column = tile.column0 + column_of(line);
    bool real = column < args.n;
    if (!real) column = 0;
    Weight w = args.w[0];
    if (GATE_UP && matrix_of(line)) w = args.w[MATRICES - 1];
    u32 first = k0 + threadIdx.x % 2 * SHARE;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        u32 start = first + c * CHUNK;
        share.valid[c] = real && start < args.k;
        load_words(share.word[c], w, column, args.k, share.valid[c] ? start / CHUNK : 0);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        u32 start = first + g * (SHARE / GROUPS);
        share.bits[g] = load_group(w, column, args.k, start < args.k ? start / GROUP : 0);
    }
}

// Decodes it into the lines of weights in shared memory.
DEVICE void decode_share(const Share &share, X_T *shared) {
    X_T *to = shared + (BM + threadIdx.x / 2) * STRIDE + threadIdx.x % 2 * SHARE;
    Scales scales[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) scales[g] = scales_of(share.bits[g]);
#pragma unroll
    for (int i = 0; i < SHARE; i += 8) {
        Words4 out;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            int c = (i + j) / CHUNK, e = (i + j) % CHUNK;
            Scales s = scales[(i + j) / (SHARE / GROUPS)];
            u32 pair = pack2<X_T>(rough_value_of(share.word[c], e, s), rough_value_of(share.word[c], e + 1, s));
            out.x[j / 2] = share.valid[c] ? pair : 0;
        }
        *(Words4 *)(to + i) = out;
    }
}

DEVICE void multiply(float (&acc)[MT][NT][4], const X_T *shared) {
    u32 lane = threadIdx.x % 32, wave = threadIdx.x / 32;
    u32 row = wave % 2 * (MT * 16) + lane % 16;
    u32 line = BM + wave / 2 * (NT * 8) + lane / 16 * 8 + lane % 8;
    u32 x = shared_address(shared + row * STRIDE + lane / 16 * 8);
    u32 w = shared_address(shared + line * STRIDE + lane / 8 % 2 * 8);
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        u32 a[MT][4], b[NT / 2][4];
#pragma unroll
        for (int i = 0; i < MT; i++) load_matrix_x4(a[i], x + (i * 16 * STRIDE + k) * 2);
#pragma unroll
        for (int j = 0; j < NT / 2; j++) load_matrix_x4(b[j], w + (j * 16 * STRIDE + k) * 2);
#pragma unroll
        for (int i = 0; i < MT; i++) {
#pragma unroll
            for (int j = 0; j < NT; j++)
                mma_16x8x16<X_T>(acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
                                 b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) matmul_mma(const Args args) {
    begin();
    X_T *shared = dynamic_shared<X_T>();
    u32 blocks = (args.rows + BM - 1) / BM;
    Tile tile = {blockIdx.x % blocks * BM, blockIdx.x / blocks * (BN / MATRICES)};
    float acc[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][j][e] = 0;
        }
    }
    u32 steps = (args.k + BK - 1) / BK;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) copy_step(args, tile, shared + s * TILE, s * BK);
        copy_async_commit();
    }
    Share share;
    if (!PLAIN && steps > 0) {
        load_share(share, args, tile, 0);
        decode_share(share, shared);
    }
    u32 now = 0;
    for (u32 s = 0; s < steps; s++) {
        copy_async_wait<STAGES - 2>();
        // Also: the tile before has been multiplied, and its room is free; the weights of this one have been decoded.
        __syncthreads();
        u32 ahead = s + STAGES - 1;
        if (ahead < steps) copy_step(args, tile, shared + (now ? now - 1 : STAGES - 1) * TILE, ahead * BK);
        copy_async_commit();
        if (!PLAIN && s + 1 < steps) load_share(share, args, tile, (s + 1) * BK);
        multiply(acc, shared + now * TILE);
        now = now + 1 == STAGES ? 0 : now + 1;
        if (!PLAIN && s + 1 < steps) decode_share(share, shared + now * TILE);
    }
    u32 lane = threadIdx.x % 32, wave = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j += MATRICES) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 row = tile.row0 + wave % 2 * (MT * 16) + i * 16 + e / 2 * 8 + lane / 4;
                u32 line = wave / 2 * (NT * 8) + j * 8 + lane % 4 * 2 + e % 2;
                u32 column = tile.column0 + column_of(line);
                float sum[MATRICES];
#pragma unroll
                for (int m = 0; m < MATRICES; m++) sum[m] = acc[i][j + m][e];
                if (row < args.rows && column < args.n) finish(args, row, column, sum);
            }
        }
    }
}
