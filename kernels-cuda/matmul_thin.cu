// A few rows of x in f16 or bf16, on matrix units: every weight is read once, straight to the registers that multiply
// it. Sums are f32; weights are decoded to the type of x first.
//
// Defines, beside those of matmul.cuh: NT, tiles of 8 rows of x; MT, tiles of 16 lines (rows of a matrix) of a block:
// for gate_up 2, one of each matrix; WAVES of a block. Rows of weights are whole chunks of 8 elements or more.
//
// The waves of a block share its lines and divide the columns. At a step a wave takes four neighbouring chunks of every
// line, and lane 4 i + j chunk j of lines i and i + 8 of each tile: a matrix unit does not mind which four columns of x
// and of the weights meet, as long as they are the same. What x has in those columns waits in shared memory.
#include "matmul.cuh"

#define THREADS (WAVES * 32)
#define COLUMNS (4 * CHUNK)
// Elements from one chunk to the next in shared memory: the eight lanes that read at once read different banks.
#define SPACED (CHUNK == 8 ? CHUNK : CHUNK + 8)
#define X_ROW (4 * SPACED)
#define SLAB (NT * 8 * X_ROW)

// Columns `step * COLUMNS..` of the rows of x, zeros beyond the rows and their ends.
DEVICE void copy_slab(X_T *slab, const Args &args, u32 row0, u32 step, bool aligned) {
    const u32 units = COLUMNS / 8;
#pragma unroll
    for (int i = 0; i < (int)(NT * 8 * units / 32); i++) {
        u32 u = i * 32 + threadIdx.x % 32;
        u32 row = u / units, unit = u % units, column = step * COLUMNS + unit * 8;
        bool valid = row0 + row < args.rows && column < args.k;
        const X_T *from = at<const X_T>(args.x) + (valid ? (u64)(row0 + row) * args.k + column : 0);
        X_T *to = slab + row * X_ROW + unit * 8 / CHUNK * SPACED + unit * 8 % CHUNK;
        if (aligned) {
            copy_async16(shared_address(to), from, valid);
        } else {
            for (int j = 0; j < 8; j++) to[j] = valid ? from[j] : from_f32<X_T>(0.0f);
        }
    }
}

// A lane's chunks of a step, as stored: of lines i and i + 8 of each tile.
struct Chunks {
    u32 word[MT][2][WORDS];
    GroupBits bits[MT][2][CHUNK / SUB];
};

// Beyond the end of a row its last chunk comes again, to meet the zeros of x.
DEVICE void load_chunks(Chunks &chunks, const Args &args, u32 column0, u32 step) {
    u32 lane = threadIdx.x % 32;
    u32 chunk = step * 4 + lane % 4, last = args.k / CHUNK - 1;
    if (chunk > last) chunk = last;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 column = column0 + m / MATRICES * 16 + h * 8 + lane / 4;
            if (column >= args.n) column = args.n - 1;
            const Weight &w = args.w[m % MATRICES];
            load_words(chunks.word[m][h], w, column, args.k, chunk);
#pragma unroll
            for (int g = 0; g < CHUNK / SUB; g++)
                chunks.bits[m][h][g] = load_group(w, column, args.k, (chunk * CHUNK + g * SUB) / GROUP);
        }
    }
}

DEVICE void multiply(float (&acc)[MT][NT][4], const Chunks &chunks, const X_T *slab) {
    u32 lane = threadIdx.x % 32;
    const X_T *x = slab + lane / 4 * X_ROW + lane % 4 * SPACED;
    Scales scales[MT][2][CHUNK / SUB];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int g = 0; g < CHUNK / SUB; g++) scales[m][h][g] = scales_of(chunks.bits[m][h][g]);
        }
    }
#pragma unroll
    for (int e = 0; e < CHUNK; e += 8) {
        u32 a[MT][2][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32(&word)[WORDS] = chunks.word[m][h];
                Scales s = scales[m][h][e / SUB];
#pragma unroll
                for (int p = 0; p < 4; p++)
                    a[m][h][p] = PLAIN ? word[(e / 2 + p) % WORDS]
                                       : pack2<X_T>(rough_value_of(word, e + 2 * p, s),
                                                    rough_value_of(word, e + 2 * p + 1, s));
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            Words4 b = *(const Words4 *)(x + t * 8 * X_ROW + e);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_16x8x16<X_T>(acc[m][t], a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], b.x[0], b.x[1]);
                mma_16x8x16<X_T>(acc[m][t], a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], b.x[2], b.x[3]);
            }
        }
    }
}

// Blocks that a compute unit is to hold: what bounds the registers.
#define MIN_BLOCKS (NT > 2 || SUB < CHUNK ? 1 : 2)

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) matmul_thin(const Args args) {
    begin();
    u32 tiles = (args.rows + NT * 8 - 1) / (NT * 8);
    u32 row0 = blockIdx.x % tiles * (NT * 8), column0 = blockIdx.x / tiles * (MT / MATRICES * 16);
    u32 lane = threadIdx.x % 32, wave = threadIdx.x / 32;
    X_T *slabs = dynamic_shared<X_T>() + wave * 2 * SLAB;
    bool aligned = args.x % 16 == 0;
    float acc[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][t][e] = 0;
        }
    }
    u32 steps = (args.k + COLUMNS - 1) / COLUMNS;
    Chunks now, next;
    if (wave < steps) {
        copy_slab(slabs, args, row0, wave, aligned);
        load_chunks(now, args, column0, wave);
    }
    copy_async_commit();
    u32 half = 0;
    for (u32 step = wave; step < steps; step += WAVES) {
        if (step + WAVES < steps) {
            copy_slab(slabs + (half ^ 1) * SLAB, args, row0, step + WAVES, aligned);
            load_chunks(next, args, column0, step + WAVES);
        }
        copy_async_commit();
        copy_async_wait<1>();
        lanes_sync();
        multiply(acc, now, slabs + half * SLAB);
        // No lane fills the slab again before all have read it.
        lanes_sync();
        now = next;
        half ^= 1;
    }
    // The waves' sums meet where the slabs were.
    float *sums = dynamic_shared<float>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
#pragma unroll
            for (int e = 0; e < 4; e++) sums[(((wave * MT + m) * NT + t) * 4 + e) * 32 + lane] = acc[m][t][e];
        }
    }
    __syncthreads();
    for (u32 i = wave; i < MT / MATRICES * NT * 4; i += WAVES) {
        u32 e = i % 4, t = i / 4 % NT, m = i / 4 / NT;
        float sum[MATRICES];
#pragma unroll
        for (int j = 0; j < MATRICES; j++) {
            sum[j] = 0;
#pragma unroll
            for (int w = 0; w < WAVES; w++)
                sum[j] += sums[(((w * MT + m * MATRICES + j) * NT + t) * 4 + e) * 32 + lane];
        }
        u32 row = row0 + t * 8 + lane % 4 * 2 + e % 2, column = column0 + m * 16 + e / 2 * 8 + lane / 4;
        if (row < args.rows && column < args.n) finish(args, row, column, sum);
    }
}
