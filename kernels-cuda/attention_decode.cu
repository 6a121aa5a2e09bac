// Softmax attention over page tables on matrix units, for steps of few rows: the kernel of decoding, which reads much
// and computes little. What counts is how many bytes are on their way.
//
// A block takes a row, a kv head and up to TILE of the query heads that share it. A warp takes TOKENS positions at a
// time: attention_decode.cuh has what it does.
//
// Positions come in groups of WARPS * TOKENS, counted from position 0, and the groups that a row sees in up to MOST
// chunks. How many groups a chunk has follows from the row's position and the window alone, so that a row's result does
// not depend on the step. What a chunk leaves is its largest score, the sum of its exponentials and the weighted sum of
// its values; these are merged in the order of positions. With `splits` set a block has one chunk, and the last of a
// row's blocks to finish merges. With `splits` zero a block goes over all chunks: the same arithmetic in the same
// order.
//
// q is rounded to the cache's type, and so are the exponentials before they multiply the values. Sums are f32, the
// softmax is to base 2.
//
// X_T, Y_T: types of q and of the output. C_T: f16 or bf16, of the cache. K_DIM, V_DIM: elements of a head, multiples
// of 8. GROUP: query heads a kv head. TILE: query heads a block, up to 16. WARPS: warps of a block. TOKENS: 16 or 32.
// MOST: chunks of a row at most. ALONE: with so few groups a row has one chunk, since a merge costs more than another
// turn. BLOCKS: of a multiprocessor. SHARED_BYTES: of dynamic shared memory.
// ALIGNED: 1 where the cache's keys and values begin at multiples of 16 bytes, and the output at one of 4.
#include "attention.cuh"
#include "attention_decode.cuh"

constexpr int STEP_TOKENS = WARPS * TOKENS;
constexpr int TILES = (GROUP + TILE - 1) / TILE;
// Scratch: COUNTERS, then for each item and split PARTIAL floats.
constexpr int COUNTERS = 16384;

// The sums of a chunk, four columns at a time.
constexpr int COLUMNS = TILE * V_DIM;
constexpr int QUADS = COLUMNS / 4;
constexpr int ROW_QUADS = V_DIM / 4;
constexpr int PER_THREAD = (QUADS + THREADS - 1) / THREADS;
constexpr int PARTIAL = COLUMNS + (2 * TILE + 3) / 4 * 4;
// Chunks whose partial sums a thread asks for at once.
constexpr int BATCH = PER_THREAD >= 8 ? 2 : 16 / PER_THREAD;
// When all are merged, four numbers for each chunk and head take the place of keys and values.
constexpr int STATES = MOST * TILE;
static_assert(STATES * 16 <= SHARED_BYTES, "no room for the chunks' states");

// What positions leave behind for four columns of a head: the largest score, the sum of exponentials, the sums of
// values.
struct State {
    float m, l;
    float a[4];
    DEVICE void clear() {
        m = -infinity(), l = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = 0.0f;
    }
    // Adds what later positions leave, by the factors of what is here and of what comes.
    DEVICE void merge(float keep, float add, float l2, const float (&a2)[4]) {
        l = fmaf(l, keep, l2 * add);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = fmaf(a[i], keep, a2[i] * add);
    }
};

template <typename T> DEVICE void store4(T *y, const float (&a)[4], float l) {
    if constexpr (sizeof(T) == 4 || !ALIGNED) {
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = from_f32<T>(a[i] / l);
    } else {
        ((u32 *)y)[0] = pack2<T>(a[0] / l, a[1] / l), ((u32 *)y)[1] = pack2<T>(a[2] / l, a[3] / l);
    }
}

// The partial sums of chunks c, c + 1, ... of a thread's columns.
DEVICE void load_partials(float (&a)[BATCH][PER_THREAD][4], const float *partials, u32 c, u32 chunks) {
#pragma unroll
    for (int b = 0; b < BATCH; b++)
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int i = threadIdx.x + n * THREADS;
#pragma unroll
            for (int e = 0; e < 4; e++) a[b][n][e] = 0.0f;
            if (i < QUADS && c + b < chunks) load_fresh16(a[b][n], partials + (u64)(c + b) * PARTIAL + i * 4);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_decode(const Args args) {
    begin();
    u8 *const room = dynamic_shared<u8>();
    __shared__ __align__(16) u32 q[Q_WORDS];
    __shared__ float warp_m[WARPS][TILE];
    __shared__ float warp_l[WARPS][TILE];
    __shared__ u32 arrived;

    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    // An item is a row, a kv head and a tile of its query heads.
    const u32 item = blockIdx.x;
    const u32 tile = item % TILES, kv_head = item / TILES % args.cache.kv_heads;
    const u32 row = item / TILES / args.cache.kv_heads;
    const u64 first_head = (u64)row * args.cache.kv_heads * GROUP + kv_head * GROUP + tile * TILE;
    const int heads = GROUP - tile * TILE < TILE ? GROUP - tile * TILE : TILE;
    Y_T *const y = at<Y_T>(args.y) + first_head * V_DIM;

    const i32 position = at<const i32>(args.step.positions)[row];
    const i32 seq = at<const i32>(args.step.row_seq)[row];
    const bool lost = position < 0 || seq < 0 || (u32)position / PAGE_TOKENS >= args.step.max_pages;
    const u32 end = (u32)position + 1;
    const u32 first = end > args.window ? end - args.window : 0;
    const u32 first_group = first / STEP_TOKENS, end_group = (u32)position / STEP_TOKENS + 1;
    const u32 groups = end_group - first_group;
    const u32 length = groups <= ALONE ? groups : (groups + MOST - 1) / MOST;
    const u32 chunks = lost ? 1 : (groups + length - 1) / length;
    // More chunks than the grid has cannot be served: rather NaN than a result of fewer positions.
    if (lost || (args.splits > 0 && chunks > args.splits)) {
        if (blockIdx.y == 0)
            for (int i = thread; i < heads * V_DIM; i += THREADS) y[i] = from_f32<Y_T>(not_a_number());
        return;
    }
    u32 begin_chunk = 0, end_chunk = chunks;
    if (args.splits > 0) {
        if (blockIdx.y >= chunks) return;
        begin_chunk = blockIdx.y, end_chunk = begin_chunk + 1;
    }

    const auto part_of = [&](u32 group) {
        const i32 start = group * STEP_TOKENS + warp * TOKENS;
        Part part;
        part.lo = (i32)first > start ? (i32)first - start : 0;
        part.hi = position - start < TOKENS - 1 ? position - start : TOKENS - 1;
        part.page = part.lo <= part.hi ? page_of(args.step, args.cache, seq, (u32)start / PAGE_TOKENS) : -1;
        return part;
    };
    const auto memory_of = [&](const Part &part) {
        return ((u64)part.page * args.cache.kv_heads + kv_head) * PAGE_TOKENS + warp * TOKENS % PAGE_TOKENS;
    };
    u8 *const own_room = room + warp * WARP_BYTES;
    u8 *const own_keys = own_room + lane * 16, *const own_values = own_keys + KEY_BYTES;
    const float scale = args.scale * 1.4426950408889634f;

    Part part = part_of(first_group + begin_chunk * length);
    part.copy_keys(own_keys, args.cache.k, memory_of(part), lane);
    part.copy_values(own_values, args.cache.v, memory_of(part), lane);
    stage_queries(q, at<const X_T>(args.q) + first_head * K_DIM, heads);
    __syncthreads();

    State state[PER_THREAD];
#pragma unroll
    for (int n = 0; n < PER_THREAD; n++) state[n].clear();

#pragma unroll 1
    for (u32 chunk = begin_chunk;; chunk++) {
        u32 group = first_group + chunk * length;
        const u32 stop = group + length < end_group ? group + length : end_group;
        WarpState mine;
        mine.clear();
#pragma unroll 1
        for (; group < stop; group++) {
            Part next = part;
            next.page = -1;
            if (group + 1 < stop) next = part_of(group + 1);
            float score[EIGHTS][4];
            copy_async_wait<1>();
            if (part.page >= 0) mine.scores_of(score, own_keys, q, lane);
            next.copy_keys(own_keys, args.cache.k, memory_of(next), lane);
            u32 weight[HALVES][EIGHTS];
            if (part.page >= 0) mine.weights_of(weight, score, part.lo, part.hi, scale, lane);
            copy_async_wait<1>();
            if (part.page >= 0) mine.add_values(weight, own_values);
            next.copy_values(own_values, args.cache.v, memory_of(next), lane);
            // A page that is needed is missing: then the row is NaN.
            if (part.page < 0 && part.lo <= part.hi) {
#pragma unroll
                for (int h = 0; h < HALVES; h++) mine.sum[h] = not_a_number();
            }
            part = next;
        }
        // The sums take the place of what other lanes copied too.
        lanes_sync();
        mine.leave(warp_m[warp], warp_l[warp], (float *)own_room, lane);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int i = thread + n * THREADS, h = i / ROW_QUADS;
            if (i >= QUADS) continue;
            float top = -infinity();
#pragma unroll
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, warp_m[w][h]);
            float l = 0.0f, a[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = factor(warp_m[w][h], top);
                const float *const sums = (const float *)(room + w * WARP_BYTES) + h * SUM_ROW;
                const float4 x = *(const float4 *)(sums + i % ROW_QUADS * 4);
                l = fmaf(f, warp_l[w][h], l);
                a[0] = fmaf(f, x.x, a[0]), a[1] = fmaf(f, x.y, a[1]);
                a[2] = fmaf(f, x.z, a[2]), a[3] = fmaf(f, x.w, a[3]);
            }
            const float both = fmaxf(state[n].m, top);
            state[n].merge(factor(state[n].m, both), factor(top, both), l, a);
            state[n].m = both;
        }
        // The sums have been read.
        __syncthreads();
        if (chunk + 1 == end_chunk) break;
        part = part_of(stop);
        part.copy_keys(own_keys, args.cache.k, memory_of(part), lane);
        part.copy_values(own_values, args.cache.v, memory_of(part), lane);
    }

    if (args.splits > 0 && chunks > 1) {
        u32 *const counter = at<u32>(args.scratch) + item;
        float *const partials = at<float>(args.scratch) + COUNTERS + (u64)item * args.splits * PARTIAL;
        float *const own = partials + (u64)blockIdx.y * PARTIAL;
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int i = thread + n * THREADS, h = i / ROW_QUADS;
            if (i >= QUADS) continue;
            *(float4 *)(own + i * 4) = make_float4(state[n].a[0], state[n].a[1], state[n].a[2], state[n].a[3]);
            if (i % ROW_QUADS == 0) own[COLUMNS + h] = state[n].m, own[COLUMNS + TILE + h] = state[n].l;
        }
        __syncthreads();
        // What the block has written is seen by whoever counts after it.
        if (thread == 0) arrived = count_arrival(counter);
        __syncthreads();
        if (arrived != chunks - 1) return;
        // The last: every other block's sums are in memory. Only loads that pass by this one's cache see them.
        if (thread == 0) *counter = 0;
        float a[BATCH][PER_THREAD][4];
        load_partials(a, partials, 0, chunks);
        // Chunk by chunk: the largest score and the sum, then the factors of what came before and of the chunk.
        float *const m = (float *)room, *const l = m + STATES, *const keep = l + STATES, *const add = keep + STATES;
        for (int i = thread; i < (int)chunks * TILE; i += THREADS) {
            const volatile float *const from = partials + (u64)(i / TILE) * PARTIAL + COLUMNS + i % TILE;
            m[i] = from[0], l[i] = from[TILE];
        }
        __syncthreads();
        for (int i = thread; i < (int)chunks * TILE; i += THREADS) {
            float before = -infinity();
            for (int j = i % TILE; j < i; j += TILE) before = fmaxf(before, m[j]);
            const float top = fmaxf(before, m[i]);
            keep[i] = factor(before, top), add[i] = factor(m[i], top);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) state[n].clear();
        for (u32 c = 0; c < chunks; c += BATCH) {
            if (c > 0) load_partials(a, partials, c, chunks);
#pragma unroll
            for (int b = 0; b < BATCH; b++)
#pragma unroll
                for (int n = 0; n < PER_THREAD; n++) {
                    const int i = thread + n * THREADS;
                    const bool valid = i < QUADS && c + b < chunks;
                    const int at = valid ? (c + b) * TILE + i / ROW_QUADS : 0;
                    const float kept = valid ? keep[at] : 1.0f, added = valid ? add[at] : 0.0f;
                    state[n].merge(kept, added, valid ? l[at] : 0.0f, a[b][n]);
                }
        }
    }
#pragma unroll
    for (int n = 0; n < PER_THREAD; n++) {
        const int i = thread + n * THREADS;
        if (i < heads * ROW_QUADS) store4(y + i * 4, state[n].a, state[n].l);
    }
}
