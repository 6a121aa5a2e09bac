// Root-mean-square norms of rows or of heads. With ADD, of the sum of two values, which is an output too.
//
// TEAM threads make a norm: a wave, or a block of BLOCK. Each holds CHUNKS groups of eight elements in registers,
// so that memory is read once; what is longer than that is read again. The order of the sum depends on the width
// alone: not on rows, nor on alignment, nor on ADD.
#include "vectors.cuh"

struct Args {
    u64 a;      // A_T [norms, width]
    u64 b;      // B_T, likewise; with ADD
    u64 weight; // W_T [width]
    u64 s;      // S_T [norms, width]: a + b; with ADD
    u64 y;      // Y_T [norms, width]
    u32 norms;
    u32 width;
    float eps;
    u32 aligned; // every group of eight is aligned to 16 bytes, and the width is a multiple of eight
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

#ifdef ADD
#define ENTRY add_rms_norm
#else
#define ENTRY rms_norm
#endif

// The elements from `i` on of the norm that begins at `start`. The sum is rounded as its type says before the norm
// reads it, as the two ops one after the other would have it.
DEVICE void read(const Args &args, u64 start, u32 i, bool first, float (&x)[8]) {
    u32 count = left(args.width, i);
    load8(at<const A_T>(args.a) + start + i, count, args.aligned, x);
#ifdef ADD
    float b[8];
    load8(at<const B_T>(args.b) + start + i, count, args.aligned, b);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = rounded<S_T>(x[j] + b[j]);
    if (first) store8(at<S_T>(args.s) + start + i, count, args.aligned, x);
#endif
}

DEVICE void load_weight(const Args &args, u32 i, float (&w)[8]) {
    load8(at<const W_T>(args.weight) + i, left(args.width, i), args.aligned, w);
}

DEVICE void write(const Args &args, u64 start, u32 i, float scale, const float (&x)[8], const float (&w)[8]) {
    float y[8];
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = x[j] * scale * w[j];
    store8(at<Y_T>(args.y) + start + i, left(args.width, i), args.aligned, y);
}

extern "C" __global__ void __launch_bounds__(BLOCK) ENTRY(const Args args) {
    begin();
    static_assert(TEAM == LANES || TEAM == BLOCK, "a norm is made by a wave or by a block");
    __shared__ float sums[BLOCK / LANES];
    u64 norm = (u64)blockIdx.x * (BLOCK / TEAM) + threadIdx.x / TEAM;
    u32 thread = threadIdx.x % TEAM;
    // Whole waves leave, or whole blocks.
    if (norm >= args.norms) return;
    u64 start = norm * args.width;

    float x[CHUNKS][8], w[8], squares = 0.0f;
    // Before the sum, so that nothing waits for it after.
    if (CHUNKS == 1) load_weight(args, thread * 8, w);
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) read(args, start, (c * TEAM + thread) * 8, true, x[c]);
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) squares = add_squares(squares, x[c]);
    for (u32 i = (CHUNKS * TEAM + thread) * 8; i < args.width; i += TEAM * 8) {
        float more[8];
        read(args, start, i, true, more);
        squares = add_squares(squares, more);
    }

    float scale = norm_scale(sum_block<TEAM>(squares, sums), args.width, args.eps);

#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
        u32 i = (c * TEAM + thread) * 8;
        if (CHUNKS > 1) load_weight(args, i, w);
        write(args, start, i, scale, x[c], w);
    }
    for (u32 i = (CHUNKS * TEAM + thread) * 8; i < args.width; i += TEAM * 8) {
        float more[8];
        read(args, start, i, false, more);
        load_weight(args, i, w);
        write(args, start, i, scale, more, w);
    }
}
