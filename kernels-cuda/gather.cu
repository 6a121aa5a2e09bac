// Rows that are looked up, and the index of a row's largest element. The defines EMBED, SELECT or ARGMAX choose the
// kernel.
#include "vectors.cuh"

#ifdef EMBED
#include "weights.cuh"

struct Args {
    Weight table;
    u64 ids; // i32 [rows]
    u64 y;   // Y_T [rows, cols]
    u32 vocab;
    u32 cols;
    u32 blocks; // blocks a row
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

extern "C" __global__ void __launch_bounds__(BLOCK) embed(const Args args) {
    begin();
    u64 row = blockIdx.x / args.blocks;
    u32 i = blockIdx.x % args.blocks * BLOCK * EACH + threadIdx.x;
    i32 id = at<const i32>(args.ids)[row];
    Y_T *y = at<Y_T>(args.y) + row * args.cols;
#pragma unroll
    for (int n = 0; n < EACH; n++, i += BLOCK) {
        if (i >= args.cols) return;
        // A negative id is a large one.
        bool known = (u32)id < args.vocab;
        y[i] = from_f32<Y_T>(known ? weight_at(args.table, (u64)id, args.cols, i) : not_a_number());
    }
}
#endif

#ifdef SELECT
struct Args {
    u64 x;      // X_T [rows, cols]
    u64 select; // i32 [selected]
    u64 y;      // Y_T [selected, cols]
    u32 rows;
    u32 cols;
    u32 aligned; // every eight elements are aligned to 16 bytes
    u32 blocks;  // blocks a row
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

extern "C" __global__ void __launch_bounds__(BLOCK) select_rows(const Args args) {
    begin();
    u64 row = blockIdx.x / args.blocks;
    u32 i = (blockIdx.x % args.blocks * BLOCK + threadIdx.x) * 8;
    u32 count = left(args.cols, i);
    if (count == 0) return;
    i32 from = at<const i32>(args.select)[row];
    float v[8];
    if ((u32)from < args.rows) {
        load8(at<const X_T>(args.x) + (u64)from * args.cols + i, count, args.aligned, v);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = not_a_number();
    }
    store8(at<Y_T>(args.y) + row * args.cols + i, count, args.aligned, v);
}
#endif

#ifdef ARGMAX
struct Args {
    u64 x;    // X_T [rows, cols]
    u64 y;    // i32 [rows]
    u64 best; // Best [rows], zeros before and after; with more than one part
    u32 rows;
    u32 cols;
    u32 part;    // columns that a block searches
    u32 parts;   // blocks a row
    u32 aligned; // every eight elements are aligned to 16 bytes, and columns and parts are multiples of eight
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

// Where the blocks of a row meet. The largest of keys does not depend on who comes first.
struct Best {
    u64 key;
    u32 count;
    u32 unused;
};

#define NONE 0xffffffffu

// A number that is larger for a larger element, and among equals for a smaller index; 0 for none.
DEVICE u64 key(float value, u32 index) {
    if (index == NONE) return 0;
    // Both zeros are the same.
    u32 bits = value == 0.0f ? 0u : __float_as_uint(value);
    u32 order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | (u32)~index;
}

DEVICE u64 largest_of_lanes(u64 x) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        u64 other = lane_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

// A thread goes through its elements from the last to the first and takes what is not less, so that the smallest
// index of equals stays, an infinity is found too, and a NaN never.
DEVICE void meet(float x, u32 i, float &best, u32 &index) {
    if (x >= best) best = x, index = i;
}

// The largest key of `len` elements, in thread 0; their first is element `first` of the row.
DEVICE u64 search(const X_T *x, u32 len, u32 first, bool aligned) {
    __shared__ u64 keys[BLOCK / LANES];
    float best = -infinity();
    u32 index = NONE, thread = threadIdx.x;
    if (aligned) {
#pragma unroll 4
        for (u32 n = (left(len / 8, thread) + BLOCK - 1) / BLOCK; n > 0; n--) {
            u32 i = ((n - 1) * BLOCK + thread) * 8;
            float v[8];
            load_vector(x + i, v);
#pragma unroll
            for (int j = 7; j >= 0; j--) meet(v[j], first + i + j, best, index);
        }
    } else {
#pragma unroll 4
        for (u32 n = (left(len, thread) + BLOCK - 1) / BLOCK; n > 0; n--) {
            u32 i = (n - 1) * BLOCK + thread;
            meet(to_f32(x[i]), first + i, best, index);
        }
    }
    u64 largest = largest_of_lanes(key(best, index));
    if (thread % LANES == 0) keys[thread / LANES] = largest;
    __syncthreads();
    for (u32 wave = 0; wave < BLOCK / LANES; wave++) largest = keys[wave] > largest ? keys[wave] : largest;
    return largest;
}

extern "C" __global__ void __launch_bounds__(BLOCK) argmax(const Args args) {
    begin();
    u64 row = blockIdx.x / args.parts;
    u32 first = blockIdx.x % args.parts * args.part;
    const X_T *x = at<const X_T>(args.x) + row * args.cols + first;
    u64 largest = search(x, min(left(args.cols, first), args.part), first, args.aligned);
    if (threadIdx.x != 0) return;
    if (args.parts > 1) {
        Best *best = at<Best>(args.best) + row;
        atomicMax(&best->key, largest);
        __threadfence();
        if (atomicAdd(&best->count, 1u) + 1 != args.parts) return;
        // The last of the row: all keys are in.
        __threadfence();
        largest = atomicExch(&best->key, 0ull);
        best->count = 0;
    }
    // A row of nothing but NaN gives 0.
    at<i32>(args.y)[row] = largest == 0 ? 0 : (i32)~(u32)largest;
}
#endif
