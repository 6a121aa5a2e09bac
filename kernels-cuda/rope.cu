// Rotary position embedding, and what writes to the pages of a cache. The defines TABLE, ROPE, APPEND or ROPE_APPEND
// choose the kernel.
//
// But for the table, a block works on one row, a thread on eight elements or eight pairs of one head: a unit.
#include "rope.cuh"

#ifdef TABLE

struct Args {
    u64 positions; // i32 [rows]
    u64 y;         // f32 [rows, 2 * PAIRS]: cosines, then sines
    u32 rows;
    float scale;
    // With DYNAMIC: beyond `max_position` positions the base grows.
    float theta;
    float factor;
    float max_position;
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

// Radians a position, as bits.
__constant__ u32 FREQUENCIES[] = {FREQUENCY_BITS};
#define PAIRS ((u32)(sizeof(FREQUENCIES) / sizeof(u32)))

// Sine and cosine of any angle below 2^31, within 1e-13. The quarter turns are taken off by a pi of two doubles, which
// leaves pi/4 at the most for the power series.
DEVICE void sine_cosine(double angle, double &sine, double &cosine) {
    double quarters = rint(angle * 0.63661977236758134);
    double r = fma(quarters, -1.5707963267948966, angle);
    r = fma(quarters, -6.123233995736766e-17, r);
    double z = r * r;
    double s = fma(z, 1.0 / 6227020800.0, -1.0 / 39916800.0);
    s = fma(z, s, 1.0 / 362880.0);
    s = fma(z, s, -1.0 / 5040.0);
    s = fma(z, s, 1.0 / 120.0);
    s = fma(z, s, -1.0 / 6.0);
    s = fma(r * z, s, r);
    double c = fma(z, -1.0 / 87178291200.0, 1.0 / 479001600.0);
    c = fma(z, c, -1.0 / 3628800.0);
    c = fma(z, c, 1.0 / 40320.0);
    c = fma(z, c, -1.0 / 720.0);
    c = fma(z, c, 1.0 / 24.0);
    c = fma(z, c, -0.5);
    c = fma(z, c, 1.0);
    u32 turn = (u32)(i64)quarters & 3;
    sine = turn & 1 ? c : s;
    cosine = turn & 1 ? s : c;
    if (turn == 2 || turn == 3) sine = -sine;
    if (turn == 1 || turn == 2) cosine = -cosine;
}

DEVICE float frequency(const Args &args, i32 position, u32 pair) {
#ifdef DYNAMIC
    float length = (float)position + 1.0f;
    if (length > args.max_position && PAIRS > 1) {
        float growth = args.factor * length / args.max_position - (args.factor - 1.0f);
        double rot = 2.0 * PAIRS;
        float base = args.theta * (float)pow((double)growth, rot / (rot - 2.0));
        float exponent = (float)(2 * pair) / (float)(2 * PAIRS);
        return 1.0f / (float)pow((double)base, (double)exponent);
    }
#endif
    return __uint_as_float(FREQUENCIES[pair]);
}

extern "C" __global__ void __launch_bounds__(BLOCK) rope_table(const Args args) {
    begin();
    u64 index = (u64)blockIdx.x * BLOCK + threadIdx.x;
    u64 row = index / PAIRS;
    u32 pair = (u32)(index % PAIRS);
    if (row >= args.rows) return;
    i32 position = at<const i32>(args.positions)[row];
    // The angle is one of f32; its sine is then taken as exactly as f32 can say.
    float angle = (float)position * frequency(args, position, pair);
    double sine, cosine;
    sine_cosine((double)angle, sine, cosine);
    float *y = at<float>(args.y) + row * (2 * PAIRS);
    y[pair] = (float)cosine * args.scale;
    y[PAIRS + pair] = (float)sine * args.scale;
}

#else

// The row of a block, and the unit of a thread within it.
DEVICE u32 row_of(u32 blocks) { return blockIdx.x / blocks; }
DEVICE u32 unit_of(u32 blocks) { return blockIdx.x % blocks * BLOCK + threadIdx.x; }

#ifdef ROPE

struct Args {
    u64 x;     // X_T [rows, heads * dim]
    u64 table; // f32 [rows, rot]
    u64 y;     // Y_T, as x
    u32 heads;
    u32 dim;
    u32 rot;
    u32 interleaved;
    u32 aligned; // every unit is aligned to 16 bytes
    u32 blocks;  // blocks a row
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

extern "C" __global__ void __launch_bounds__(BLOCK) rope(const Args args) {
    begin();
    u32 unit = unit_of(args.blocks), per_head = rope_units(args.dim, args.rot);
    if (unit >= args.heads * per_head) return;
    u64 row = row_of(args.blocks);
    u64 head = (row * args.heads + unit / per_head) * args.dim;
    const float *table = at<const float>(args.table) + row * args.rot;
    rope_unit<float>(at<const X_T>(args.x) + head, at<Y_T>(args.y) + head, table, unit % per_head, args.dim, args.rot,
                   args.interleaved, args.aligned);
}

#else

#ifdef APPEND

struct Args {
    u64 k; // V_T [rows, kv_heads * k_dim]
    u64 v; // V_T [rows, kv_heads * v_dim]
    Step step;
    Cache cache;
    u32 aligned_k; // every unit of the keys is aligned to 16 bytes
    u32 aligned_v;
    u32 blocks; // blocks a row
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

extern "C" __global__ void __launch_bounds__(BLOCK) cache_append(const Args args) {
    begin();
    const Cache &cache = args.cache;
    u64 row = row_of(args.blocks);
    i64 place = cache_row(args.step, cache, row);
    if (place < 0) return;
    u32 unit = unit_of(args.blocks), keys = cache.kv_heads * units(cache.k_dim);
    if (unit < keys) {
        u32 head = unit / units(cache.k_dim);
        copy_unit(at<const K_T>(args.k) + (row * cache.kv_heads + head) * cache.k_dim,
                  at<C_T>(cache.k) + (place + head * PAGE_TOKENS) * cache.k_dim, unit % units(cache.k_dim) * 8,
                  cache.k_dim, args.aligned_k);
    } else if (unit - keys < cache.kv_heads * units(cache.v_dim)) {
        append_unit(at<const V_T>(args.v), at<C_T>(cache.v), place, row, unit - keys, cache.kv_heads, cache.v_dim,
                    args.aligned_v);
    }
}

#else

struct Args {
    u64 q;     // X_T [rows, heads * k_dim]
    u64 k;     // K_T [rows, kv_heads * k_dim]
    u64 v;     // V_T [rows, kv_heads * v_dim]
    u64 table; // f32 [rows, rot]
    u64 y;     // Y_T, as q
    Step step;
    Cache cache;
    u32 heads;
    u32 rot;
    u32 interleaved;
    u32 aligned_k; // every unit of queries and keys is aligned to 16 bytes
    u32 aligned_v;
    u32 blocks; // blocks a row
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

extern "C" __global__ void __launch_bounds__(BLOCK) rope_append(const Args args) {
    begin();
    const Cache &cache = args.cache;
    u32 dim = cache.k_dim, per_head = rope_units(dim, args.rot);
    u64 row = row_of(args.blocks);
    u32 unit = unit_of(args.blocks);
    const float *table = at<const float>(args.table) + row * args.rot;
    if (unit < args.heads * per_head) {
        u64 head = (row * args.heads + unit / per_head) * dim;
        rope_unit<float>(at<const X_T>(args.q) + head, at<Y_T>(args.y) + head, table, unit % per_head, dim, args.rot,
                       args.interleaved, args.aligned_k);
        return;
    }
    unit -= args.heads * per_head;
    i64 place = cache_row(args.step, cache, row);
    if (place < 0) return;
    u32 keys = cache.kv_heads * per_head;
    if (unit < keys) {
        u32 head = unit / per_head;
        // A rotated key is a value of type A_T before it is an element of the cache, as if rope came alone.
        rope_unit<A_T>(at<const K_T>(args.k) + (row * cache.kv_heads + head) * dim,
                       at<C_T>(cache.k) + (place + head * PAGE_TOKENS) * dim, table, unit % per_head, dim, args.rot,
                       args.interleaved, args.aligned_k);
    } else if (unit - keys < cache.kv_heads * units(cache.v_dim)) {
        append_unit(at<const V_T>(args.v), at<C_T>(cache.v), place, row, unit - keys, cache.kv_heads, cache.v_dim,
                    args.aligned_v);
    }
}

#endif
#endif
#endif
