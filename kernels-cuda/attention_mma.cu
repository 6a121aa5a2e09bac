// Softmax attention over page tables on matrix units: the kernel of prompts.
//
// A block takes 16 * WARPS queries of one kv head: queries are rows times the GROUP heads that share it, so that few
// rows fill a block too. These rows may belong to several sequences: the gridDim.y blocks of the same queries share the
// sequences out, and each goes over one of its own after another, the queries of the others masked. Keys and values
// come in tiles of TOKENS positions; the keys of the next tile are under way while values are multiplied, and values
// while keys are. The softmax is online, in f32, to base 2.
//
// q is rounded to the cache's type, which loses nothing where it has that type, nor in f16 of a bf16 unless that is
// above 65504 or below 2^-14. So are the exponentials before they multiply the values. Sums are f32. `scale` must be
// above zero.
//
// X_T, Y_T: types of q and of the output. C_T: f16 or bf16, of the cache. K_DIM, V_DIM: elements of a head, multiples
// of 16. GROUP: query heads a kv head. WARPS: warps of a block. TOKENS: 32 or 64. BLOCKS: of a multiprocessor.
// ALIGNED: 1 where the cache's keys and values begin at multiples of 16 bytes, and the output at one of 4.
#include "attention.cuh"

static_assert(LANES == 32, "the matrix units of 32 lanes");

constexpr int THREADS = 32 * WARPS;
constexpr int QUERIES = 16 * WARPS;
constexpr int PAGES = TOKENS / PAGE_TOKENS;
// A row of a tile in shared memory: eight elements more, so that eight rows at one column lie in different banks.
constexpr int K_ROW = K_DIM + 8;
constexpr int V_ROW = V_DIM + 8;
constexpr int K_STEPS = K_DIM / 16;
constexpr int V_STEPS = V_DIM / 16;
constexpr int T_STEPS = TOKENS / 16;

// Wide heads leave few registers for addresses.
constexpr int COPIES_AT_ONCE = K_DIM + V_DIM > 256 ? 1 : 16;

// The pages of a tile of positions; -1 for none.
struct Tile {
    i32 page[PAGES];
    DEVICE void find(const Args &args, i32 seq, i32 tile) {
#pragma unroll
        for (int i = 0; i < PAGES; i++) page[i] = page_of(args.step, args.cache, seq, tile * PAGES + i);
    }
    DEVICE bool whole() const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < PAGES; i++) all = all && page[i] >= 0;
        return all;
    }
    DEVICE i32 page_at(int token) const { return PAGES == 1 || token < PAGE_TOKENS ? page[0] : page[PAGES - 1]; }
};

// Starts to copy a tile. Positions outside lo..=hi, and those of missing pages, become zeros: a weight of zero
// must not meet a NaN.
template <int DIM>
DEVICE void copy_tile(C_T *shared, const C_T *memory, const Tile &tile, const Args &args, u32 kv_head, i32 start,
                      i32 lo, i32 hi) {
    constexpr int PIECES = DIM / 8, COPIES = (TOKENS * PIECES + THREADS - 1) / THREADS;
    const C_T *from[PAGES];
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        const u64 page = tile.page[i] >= 0 ? tile.page[i] : 0;
        from[i] = memory + (page * args.cache.kv_heads + kv_head) * PAGE_TOKENS * DIM;
    }
#pragma unroll COPIES_AT_ONCE
    for (int i = 0; i < COPIES; i++) {
        const int n = i * THREADS + threadIdx.x, token = n / PIECES, piece = n % PIECES;
        if (TOKENS * PIECES % THREADS != 0 && token >= TOKENS) break;
        const bool valid = tile.page_at(token) >= 0 && start + token >= lo && start + token <= hi;
        const C_T *const page = token < PAGE_TOKENS ? from[0] : from[PAGES - 1];
        const C_T *const at = page + (token % PAGE_TOKENS * DIM + piece * 8);
        C_T *const to = shared + (token * (DIM + 8) + piece * 8);
        if constexpr (ALIGNED) {
            copy_async16(shared_address(to), at, valid);
        } else {
            for (int e = 0; e < 8; e++) to[e] = valid ? at[e] : from_f32<C_T>(0.0f);
        }
    }
    copy_async_commit();
}

// Two neighbours of a query as the matrix units take them.
DEVICE u32 query_pair(const X_T *q) { return pack2<C_T>(to_f32(q[0]), to_f32(q[1])); }

template <typename T> DEVICE void store_pair(T *y, float a, float b) {
    if constexpr (sizeof(T) == 4 || !ALIGNED) {
        y[0] = from_f32<T>(a), y[1] = from_f32<T>(b);
    } else {
        *(u32 *)y = pack2<T>(a, b);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_mma(const Args args) {
    begin();
    __shared__ __align__(16) C_T keys[TOKENS * K_ROW];
    __shared__ __align__(16) C_T values[TOKENS * V_ROW];
    // Of the rows that the block's queries belong to.
    __shared__ i32 positions[QUERIES];
    __shared__ i32 seqs[QUERIES];

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 kv_heads = args.cache.kv_heads, heads = kv_heads * GROUP;
    const u32 kv_head = blockIdx.x % kv_heads;
    // The last rows first: they see the most.
    const u64 first_query = (u64)((gridDim.x - 1 - blockIdx.x) / kv_heads) * QUERIES, all = (u64)args.rows * GROUP;
    const u64 last_query = (first_query + QUERIES < all ? first_query + QUERIES : all) - 1;
    const u32 first_row = first_query / GROUP, count = last_query / GROUP - first_row + 1;

    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const i32 position = at<const i32>(args.step.positions)[first_row + i];
        // A row without room in the table sees nothing, and is NaN.
        positions[i] = position >= 0 && (u32)position / PAGE_TOKENS < args.step.max_pages ? position : -1;
        seqs[i] = at<const i32>(args.step.row_seq)[first_row + i];
    }

    // Lane i has queries i / 4 and i / 4 + 8 of its warp, as the matrix units have it.
    // `row` is counted from the block's first.
    const auto query_of = [&](int half) { return first_query + warp * 16 + lane / 4 + half * 8; };
    const auto head_of = [&](u64 query) { return query / GROUP * heads + kv_head * GROUP + query % GROUP; };
    u32 row[2];
    bool mine[2] = {false, false};
    u32 q[K_STEPS][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u64 query = query_of(half);
        const bool real = query < all; // else `row` is beyond the block's last
        row[half] = query / GROUP - first_row;
        const X_T *from = at<const X_T>(args.q) + head_of(query) * K_DIM + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
            q[k][half] = real ? query_pair(from + k * 16) : 0;
            q[k][half + 2] = real ? query_pair(from + k * 16 + 8) : 0;
        }
    }
    float out[V_STEPS * 2][4];
#pragma unroll
    for (int n = 0; n < V_STEPS * 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] = 0.0f;
    // Of the exponent to base 2. `most` is of the scores before it multiplies them.
    const float scale = args.scale * 1.4426950408889634f;
    float most[2] = {-infinity(), -infinity()}, sum[2] = {0.0f, 0.0f};
    const u32 keys_at = shared_address(keys) + ((lane / 16 * 8 + lane % 8) * K_ROW + lane / 8 % 2 * 8) * 2;
    const u32 values_at = shared_address(values) + ((lane / 8 % 2 * 8 + lane % 8) * V_ROW + lane / 16 * 8) * 2;
    __syncthreads();

    u32 begin = 0, turn = 0;
    while (begin < count) {
        // The rows begin..end of a sequence, the positions that they see between them, and those that all see.
        const i32 seq = seqs[begin];
        u32 end = begin;
        i32 lo = 0x7fffffff, hi = -1, all_lo = 0, all_hi = 0x7fffffff;
        for (; end < count && seqs[end] == seq; end++) {
            const i32 position = positions[end];
            const i32 first = (u32)position + 1 > args.window ? position + 1 - (i32)args.window : 0;
            if (position >= 0 && first < lo) lo = first;
            if (position > hi) hi = position;
            if (first > all_lo) all_lo = first;
            if (position < all_hi) all_hi = position;
        }
        const bool everyone = begin == 0 && end == count, skipped = turn != blockIdx.y;
        turn = turn + 1 == gridDim.y ? 0 : turn + 1;
        i32 seen_hi[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool of_it = row[half] >= begin && row[half] < end;
            seen_hi[half] = of_it ? positions[row[half]] : -1;
            if (of_it && !skipped) mine[half] = true;
        }
        begin = end;
        if (skipped || seq < 0 || (u32)seq >= args.step.seqs || hi < lo) continue;

        const C_T *const k_memory = at<const C_T>(args.cache.k), *const v_memory = at<const C_T>(args.cache.v);
        const i32 last = hi / TOKENS;
        Tile tile;
        tile.find(args, seq, lo / TOKENS);
        copy_tile<K_DIM>(keys, k_memory, tile, args, kv_head, lo / TOKENS * TOKENS, lo, hi);
        for (i32 t = lo / TOKENS; t <= last; t++) {
            const i32 start = t * TOKENS;
            Tile next = tile;
            if (t < last) next.find(args, seq, t + 1);
            copy_async_wait<0>();
            __syncthreads(); // the keys are there, and the last values are no longer needed
            copy_tile<V_DIM>(values, v_memory, tile, args, kv_head, start, lo, hi);

            float score[T_STEPS * 2][4];
#pragma unroll
            for (int n = 0; n < T_STEPS * 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
#pragma unroll
            for (int k = 0; k < K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < T_STEPS; n++) {
                    u32 b[4];
                    load_matrix_x4(b, keys_at + (n * 16 * K_ROW + k * 16) * 2);
                    mma_16x8x16<C_T>(score[2 * n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
                    mma_16x8x16<C_T>(score[2 * n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
                }

            if (!everyone || start < all_lo || start + TOKENS - 1 > all_hi || !tile.whole()) {
#pragma unroll
                for (int n = 0; n < T_STEPS * 2; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int token = n * 8 + lane % 4 * 2 + i % 2;
                        const i32 back = seen_hi[i / 2] - (start + token);
                        const bool sees = back >= 0 && (u32)back < args.window;
                        // A page that is needed and missing makes the row NaN.
                        if (sees && tile.page_at(token) < 0) score[n][i] = not_a_number();
                        if (!sees) score[n][i] = -infinity();
                    }
            }

            float base[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float top = most[half];
#pragma unroll
                for (int n = 0; n < T_STEPS * 2; n++)
                    top = fmaxf(top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
                top = fmaxf(top, lane_xor(top, 1));
                top = fmaxf(top, lane_xor(top, 2));
                base[half] = top == -infinity() ? 0.0f : top * scale;
                const float keep = exp2_f32(fmaf(most[half], scale, -base[half]));
                most[half] = top;
                sum[half] *= keep;
#pragma unroll
                for (int n = 0; n < V_STEPS * 2; n++) out[n][2 * half] *= keep, out[n][2 * half + 1] *= keep;
            }
#pragma unroll
            for (int n = 0; n < T_STEPS * 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    score[n][i] = exp2_f32(fmaf(score[n][i], scale, -base[i / 2]));
                    sum[i / 2] += score[n][i];
                }

            copy_async_wait<0>();
            __syncthreads(); // the values are there, and the keys are no longer needed
            if (t < last) copy_tile<K_DIM>(keys, k_memory, next, args, kv_head, start + TOKENS, lo, hi);
#pragma unroll
            for (int k = 0; k < T_STEPS; k++) {
                const u32 a0 = pack2<C_T>(score[2 * k][0], score[2 * k][1]);
                const u32 a1 = pack2<C_T>(score[2 * k][2], score[2 * k][3]);
                const u32 a2 = pack2<C_T>(score[2 * k + 1][0], score[2 * k + 1][1]);
                const u32 a3 = pack2<C_T>(score[2 * k + 1][2], score[2 * k + 1][3]);
#pragma unroll
                for (int n = 0; n < V_STEPS; n++) {
                    u32 b[4];
                    load_matrix_x4_transposed(b, values_at + (k * 16 * V_ROW + n * 16) * 2);
                    mma_16x8x16<C_T>(out[2 * n], a0, a1, a2, a3, b[0], b[1]);
                    mma_16x8x16<C_T>(out[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
                }
            }
            tile = next;
        }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += lane_xor(total, 1);
        total += lane_xor(total, 2);
        Y_T *const y = at<Y_T>(args.y) + head_of(query_of(half)) * V_DIM + lane % 4 * 2;
        if (!mine[half]) continue;
#pragma unroll
        for (int n = 0; n < V_STEPS * 2; n++) {
            // No position seen: 0 / 0, which is NaN.
            store_pair(y + n * 8, out[n][2 * half] / total, out[n][2 * half + 1] / total);
        }
    }
}
