// Norms of the heads of q and of k, rotary position embedding, and the append of k and v to the pages of a cache.
//
// A block works on one row; a wave makes one head, which it holds whole: a lane norms eight elements, then rotates eight
// pairs. Waves behind those of the heads copy v. Rounded in between as norm.cu and rope.cu would, one after the other,
// and summed in the order of norm.cu: the bits are theirs.
#include "rope.cuh"

#define WAVES (BLOCK / LANES)
// Elements that a wave holds.
#define HELD (LANES * 8)

struct Args {
    u64 q;          // X_T [rows, heads * k_dim]
    u64 k;          // K_T [rows, kv_heads * k_dim]
    u64 v;          // V_T [rows, kv_heads * v_dim]
    u64 table;      // f32 [rows, rot]
    u64 y;          // Y_T, as q
    u64 weights[2]; // W_T [k_dim] each: of q's norm, of k's
    Step step;
    Cache cache;
    u32 heads;
    u32 rot;
    u32 interleaved;
    u32 aligned_k; // every unit of queries, keys and weights is aligned to 16 bytes
    u32 aligned_v;
    u32 blocks; // blocks a row
    float eps;
    u32 unused;
};
static_assert(sizeof(Args) == ARGS_SIZE, "the arguments differ from the host's");

// Norms a head of `dim` elements from x into shared memory, each rounded to A_T.
template <typename X>
DEVICE void norm_head(const X *x, float *head, const float (&weight)[8], u32 lane, u32 dim, float eps, bool aligned) {
    float v[8];
    load8(x + lane * 8, left(dim, lane * 8), aligned, v);
    float scale = norm_scale(sum_lanes(add_squares(0.0f, v)), dim, eps);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = rounded<A_T>(v[j] * scale * weight[j]);
    // The wave's part of shared memory has room for HELD elements, and is aligned.
    store8(head + lane * 8, 8, true, v);
    lanes_sync();
}

extern "C" __global__ void __launch_bounds__(BLOCK) norm_rope_append(const Args args) {
    __shared__ __align__(16) float held[WAVES][HELD];
    let_next_begin();
    const Cache &cache = args.cache;
    u32 lane = threadIdx.x % LANES, dim = cache.k_dim;
    u32 wave = blockIdx.x % args.blocks * WAVES + threadIdx.x / LANES;
    u64 row = blockIdx.x / args.blocks;
    float *head = held[threadIdx.x / LANES];
    bool query = wave < args.heads;
    // Weights may be read before the kernel ahead has made q and k.
    float weight[8];
    load8(at<const W_T>(query ? args.weights[0] : args.weights[1]) + lane * 8, left(dim, lane * 8), args.aligned_k,
          weight);
    after_previous();

    // What follows is decided wave by wave, never within one.
    const float *table = at<const float>(args.table) + row * args.rot;
    u32 per_head = rope_units(dim, args.rot);
    if (query) {
        u64 start = (row * args.heads + wave) * dim;
        norm_head(at<const X_T>(args.q) + start, head, weight, lane, dim, args.eps, args.aligned_k);
        for (u32 unit = lane; unit < per_head; unit += LANES)
            rope_unit<float>(head, at<Y_T>(args.y) + start, table, unit, dim, args.rot, args.interleaved,
                             args.aligned_k);
        return;
    }
    i64 place = cache_row(args.step, cache, row);
    if (place < 0) return;
    u32 key = wave - args.heads;
    if (key < cache.kv_heads) {
        norm_head(at<const K_T>(args.k) + (row * cache.kv_heads + key) * dim, head, weight, lane, dim, args.eps,
                  args.aligned_k);
        for (u32 unit = lane; unit < per_head; unit += LANES)
            rope_unit<A_T>(head, at<C_T>(cache.k) + (place + key * PAGE_TOKENS) * dim, table, unit, dim, args.rot,
                           args.interleaved, args.aligned_k);
        return;
    }
    u32 unit = (key - cache.kv_heads) * LANES + lane;
    if (unit < cache.kv_heads * units(cache.v_dim))
        append_unit(at<const V_T>(args.v), at<C_T>(cache.v), place, row, unit, cache.kv_heads, cache.v_dim,
                    args.aligned_v);
}
