// Softmax attention over page tables, in f32: the kernel of decoding, and of whatever no other kernel takes.
//
// Positions are cut into chunks of SPLIT, counted from position 0. A block takes a row, a kv head and up to TILE of the
// query heads that share it; each 32 threads of it, a team, take a page of the chunk. What a chunk leaves is its
// largest score, the sum of its exponentials and the weighted sum of its values; these are merged in the order of
// positions. With `splits` set a block has one chunk, and the last of a row's blocks to finish merges. With `splits`
// zero a block goes over all chunks of the row. Both do the same arithmetic in the same order: the bits agree.
//
// X_T, Y_T, C_T: types of q, of the output and of the cache. K_DIM, V_DIM: elements of a head.
// GROUP: query heads a kv head. TILE: query heads a block. SPLIT: positions of a chunk, and threads of a block.
// ALIGNED: 1 where the cache's keys and values begin at multiples of 16 bytes.
#include "attention.cuh"

constexpr int TEAM = 32;
constexpr int TEAMS = SPLIT / PAGE_TOKENS;
constexpr int THREADS = TEAMS * TEAM;
constexpr int TILES = (GROUP + TILE - 1) / TILE;
constexpr int COLUMNS = TILE * V_DIM;
constexpr int PER_THREAD = (COLUMNS + THREADS - 1) / THREADS;
// Scratch: COUNTERS, then for each item and split (TILE * V_DIM + 2 * TILE) floats.
constexpr int COUNTERS = 16384;
// Chunks whose partial sums a thread reads at once.
constexpr int BATCH = PER_THREAD >= 8 ? 1 : 8 / PER_THREAD;

// Elements that a lane loads at once: 16 bytes where rows are a multiple of that.
constexpr int FULL = 16 / sizeof(C_T);
constexpr int K_PIECE = ALIGNED && K_DIM % FULL == 0 ? FULL : 1;
constexpr int V_PIECE = ALIGNED && V_DIM % FULL == 0 ? FULL : 1;

// Lanes on a row of `pieces`, so that none has more than `most`, or all 32.
constexpr int row_lanes(int pieces, int most) {
    int lanes = 1;
    while (lanes < TEAM && (pieces + lanes - 1) / lanes > most) lanes *= 2;
    return lanes;
}
constexpr int at_least_1(int x) { return x > 1 ? x : 1; }
// A lane holds at most 32 numbers of q, and of the sums, or one piece for each head.
constexpr int K_LANES = row_lanes(K_DIM / K_PIECE, at_least_1(32 / (K_PIECE * TILE)));
constexpr int K_PIECES = (K_DIM / K_PIECE + K_LANES - 1) / K_LANES;
constexpr int V_LANES = row_lanes(V_DIM / V_PIECE, at_least_1(32 / (V_PIECE * TILE)));
constexpr int V_PIECES = (V_DIM / V_PIECE + V_LANES - 1) / V_LANES;
// Rows that a team loads at once, and how many of these a batch of loads has: 8 loads a lane, or 4 of wide heads.
constexpr int K_ROWS = TEAM / K_LANES;
constexpr int V_ROWS = TEAM / V_LANES;
constexpr int in_flight(int pieces, int times, int loads) {
    int n = 1;
    while (n * 2 * pieces <= loads && n * 2 <= times) n *= 2;
    return n;
}
constexpr int K_FLIGHT = in_flight(K_PIECES, K_LANES, 8);
constexpr int K_BITS = K_FLIGHT == 8 ? 3 : K_FLIGHT == 4 ? 2 : K_FLIGHT - 1;
constexpr int V_FLIGHT = in_flight(V_PIECES, V_LANES, V_DIM > 128 ? 4 : 8);

// As many elements as a lane loads at once, as they lie in memory.
template <int PIECE> struct Raw {
    u32 word[PIECE * sizeof(C_T) / 4];
    DEVICE void load(const C_T *from, bool valid) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (valid) x = *(const uint4 *)from;
        word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
    }
    DEVICE float get(int i) const {
        if constexpr (sizeof(C_T) == 4) {
            return __uint_as_float(word[i]);
        } else {
            return i % 2 ? high_half<C_T>(word[i / 2]) : low_half<C_T>(word[i / 2]);
        }
    }
};
template <> struct Raw<1> {
    C_T x;
    DEVICE void load(const C_T *from, bool valid) { x = valid ? *from : from_f32<C_T>(0.0f); }
    DEVICE float get(int) const { return to_f32(x); }
};

// The part of a team of a wave's lanes: masks below 32 stay within it.
DEVICE float max_team(float x) {
#pragma unroll
    for (int mask = TEAM / 2; mask > 0; mask /= 2) x = fmaxf(x, lane_xor(x, mask));
    return x;
}
DEVICE float sum_team(float x) {
#pragma unroll
    for (int mask = TEAM / 2; mask > 0; mask /= 2) x += lane_xor(x, mask);
    return x;
}

// What a factor exp(score - largest) is for a part whose largest score is `m`: none for a part without positions.
DEVICE float factor(float m, float top) { return m == -infinity() ? 0.0f : expf(m - top); }

// What positions leave behind for a column: the largest score, the sum of exponentials, the sum of values.
struct State {
    float m;
    float l;
    float a;
    // Adds what later positions leave.
    DEVICE void merge(float m2, float l2, float a2) {
        const float top = fmaxf(m, m2);
        const float keep = factor(m, top), add = factor(m2, top);
        l = fmaf(l, keep, l2 * add);
        a = fmaf(a, keep, a2 * add);
        m = top;
    }
};

// A page of a team. `rows` lo..=hi of it are seen.
struct Page {
    const C_T *k;
    const C_T *v;
    i32 lo;
    i32 hi;
    DEVICE bool sees(i32 row) const { return row >= lo && row <= hi; }
};

template <int N> DEVICE void load_keys(Raw<K_PIECE> (&raw)[N][K_PIECES], const Page &page, int first, int lane) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = (first + i) * K_ROWS + lane / K_LANES;
#pragma unroll
        for (int c = 0; c < K_PIECES; c++) {
            const int at = (lane % K_LANES + c * K_LANES) * K_PIECE;
            raw[i][c].load(page.k + row * K_DIM + at, page.sees(row) && at < K_DIM);
        }
    }
}
template <int N> DEVICE void load_values(Raw<V_PIECE> (&raw)[N][V_PIECES], const Page &page, int first, int lane) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = (first + i) * V_ROWS + lane / V_LANES;
#pragma unroll
        for (int c = 0; c < V_PIECES; c++) {
            const int at = (lane % V_LANES + c * V_LANES) * V_PIECE;
            raw[i][c].load(page.v + row * V_DIM + at, page.sees(row) && at < V_DIM);
        }
    }
}

// The scores of a page. Lane i gets those of row `i % K_LANES * K_ROWS + i / K_LANES`, one for each head.
DEVICE void scores_of(float (&score)[TILE], const Page &page, const float *q, int lane) {
    float mine[TILE][K_PIECES][K_PIECE];
#pragma unroll
    for (int h = 0; h < TILE; h++)
#pragma unroll
        for (int c = 0; c < K_PIECES; c++)
#pragma unroll
            for (int e = 0; e < K_PIECE; e++) {
                const int at = (lane % K_LANES + c * K_LANES) * K_PIECE + e;
                mine[h][c][e] = at < K_DIM ? q[h * K_DIM + at] : 0.0f;
            }
    // The sums over the K_LANES lanes of a row. A step adds two lanes' parts and halves the rows that a lane has:
    // `waiting[bit]` is the first of two sums that meet at a bit of the row. Thus a lane gets one row of each batch,
    // and keeps that of one batch.
#pragma unroll
    for (int h = 0; h < TILE; h++) score[h] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < K_LANES; i += K_FLIGHT) {
        Raw<K_PIECE> raw[K_FLIGHT][K_PIECES];
        load_keys(raw, page, i, lane);
        float waiting[4][TILE];
#pragma unroll
        for (int j = 0; j < K_FLIGHT; j++) {
            float sum[TILE];
#pragma unroll
            for (int h = 0; h < TILE; h++) sum[h] = 0.0f;
#pragma unroll
            for (int c = 0; c < K_PIECES; c++)
#pragma unroll
                for (int e = 0; e < K_PIECE; e++) {
                    const float k = raw[j][c].get(e);
#pragma unroll
                    for (int h = 0; h < TILE; h++) sum[h] = fmaf(mine[h][c][e], k, sum[h]);
                }
            int bit = 0;
#pragma unroll
            for (int rest = j; rest % 2 == 1; rest /= 2) {
                const bool upper = lane >> bit & 1;
#pragma unroll
                for (int h = 0; h < TILE; h++) {
                    const float keep = upper ? sum[h] : waiting[bit][h];
                    const float give = upper ? waiting[bit][h] : sum[h];
                    sum[h] = keep + lane_xor(give, 1 << bit);
                }
                bit++;
            }
#pragma unroll
            for (int h = 0; h < TILE; h++) waiting[bit][h] = sum[h];
        }
#pragma unroll
        for (int h = 0; h < TILE; h++) {
            float sum = waiting[K_BITS][h];
#pragma unroll
            for (int mask = K_FLIGHT; mask < K_LANES; mask *= 2) sum += lane_xor(sum, mask);
            if (lane % K_LANES / K_FLIGHT == i / K_FLIGHT) score[h] = sum;
        }
    }
}

// A team's page: its state for each head to `m`, `l` and `sums`. `weights` is the team's own memory.
DEVICE void attend(const Page &page, const float *q, float *weights, float *m, float *l, float *sums, int lane) {
    float score[TILE];
    scores_of(score, page, q, lane);
    // These loads are under way while the softmax is computed.
    Raw<V_PIECE> raw[V_FLIGHT][V_PIECES];
    load_values(raw, page, 0, lane);

    const i32 row = lane % K_LANES * K_ROWS + lane / K_LANES;
#pragma unroll
    for (int h = 0; h < TILE; h++) {
        const float s = page.sees(row) ? score[h] : -infinity();
        const float most = max_team(s);
        const float base = most == -infinity() ? 0.0f : most;
        const float p = expf(s - base);
        const float sum = sum_team(p);
        weights[row * TILE + h] = p;
        // A sum of NaN is kept: it has a weight.
        if (lane == h % TEAM) m[h] = sum == 0.0f ? -infinity() : base, l[h] = sum;
    }
    lanes_sync();

    float acc[TILE][V_PIECES][V_PIECE];
#pragma unroll
    for (int h = 0; h < TILE; h++)
#pragma unroll
        for (int c = 0; c < V_PIECES; c++)
#pragma unroll
            for (int e = 0; e < V_PIECE; e++) acc[h][c][e] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < V_LANES; i += V_FLIGHT) {
        if (i > 0) load_values(raw, page, i, lane);
#pragma unroll
        for (int j = 0; j < V_FLIGHT; j++) {
            const float *weight = weights + ((i + j) * V_ROWS + lane / V_LANES) * TILE;
            float p[TILE];
#pragma unroll
            for (int h = 0; h < TILE; h++) p[h] = weight[h];
#pragma unroll
            for (int c = 0; c < V_PIECES; c++)
#pragma unroll
                for (int e = 0; e < V_PIECE; e++) {
                    const float v = raw[j][c].get(e);
#pragma unroll
                    for (int h = 0; h < TILE; h++) acc[h][c][e] = fmaf(p[h], v, acc[h][c][e]);
                }
        }
    }
#pragma unroll
    for (int h = 0; h < TILE; h++)
#pragma unroll
        for (int c = 0; c < V_PIECES; c++)
#pragma unroll
            for (int e = 0; e < V_PIECE; e++) {
                float x = acc[h][c][e];
#pragma unroll
                for (int mask = V_LANES; mask < TEAM; mask *= 2) x += lane_xor(x, mask);
                const int at = (lane % V_LANES + c * V_LANES) * V_PIECE + e;
                if (lane < V_LANES && at < V_DIM) sums[h * V_DIM + at] = x;
            }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_split(const Args args) {
    begin();
    __shared__ __align__(16) float q[TILE * K_DIM];
    __shared__ __align__(16) float weights[TEAMS][PAGE_TOKENS * TILE];
    __shared__ float team_m[TEAMS][TILE];
    __shared__ float team_l[TEAMS][TILE];
    __shared__ __align__(16) float sums[TEAMS][COLUMNS];
    __shared__ u32 arrived;

    const int thread = threadIdx.x, lane = thread % TEAM, team = thread / TEAM;
    // An item is a row, a kv head and a tile of its query heads.
    const u32 item = blockIdx.x;
    const u32 tile = item % TILES, kv_head = item / TILES % args.cache.kv_heads;
    const u32 row = item / TILES / args.cache.kv_heads;
    const u64 first_head = (u64)row * args.cache.kv_heads * GROUP + kv_head * GROUP + tile * TILE;
    const int heads = GROUP - tile * TILE < TILE ? GROUP - tile * TILE : TILE;
    Y_T *const y = at<Y_T>(args.y) + first_head * V_DIM;

    const i32 position = at<const i32>(args.step.positions)[row];
    const i32 seq = at<const i32>(args.step.row_seq)[row];
    const X_T *const q_from = at<const X_T>(args.q) + first_head * K_DIM;
    for (int i = thread; i < TILE * K_DIM; i += THREADS)
        q[i] = i < heads * K_DIM ? to_f32(q_from[i]) * args.scale : 0.0f;

    const bool lost = position < 0 || seq < 0 || (u32)position / PAGE_TOKENS >= args.step.max_pages;
    const u32 end = (u32)position + 1;
    const u32 first = end > args.window ? end - args.window : 0;
    const u32 last_chunk = (u32)position / SPLIT;
    const u32 first_chunk = first / SPLIT < last_chunk ? first / SPLIT : last_chunk;
    const u32 chunks = last_chunk - first_chunk + 1;
    // More chunks than the grid has cannot be served: rather NaN than a result of fewer positions.
    if (lost || (args.splits > 0 && chunks > args.splits)) {
        if (blockIdx.y == 0)
            for (int i = thread; i < heads * V_DIM; i += THREADS) y[i] = from_f32<Y_T>(not_a_number());
        return;
    }
    u32 chunk = first_chunk, chunk_end = last_chunk + 1;
    if (args.splits > 0) {
        if (blockIdx.y >= chunks) return;
        chunk = first_chunk + blockIdx.y, chunk_end = chunk + 1;
    }

    State state[PER_THREAD];
#pragma unroll
    for (int n = 0; n < PER_THREAD; n++) state[n] = {-infinity(), 0.0f, 0.0f};

    for (; chunk < chunk_end; chunk++) {
        // q is there; the last chunk's sums have been read.
        __syncthreads();
        const u32 index = chunk * TEAMS + team;
        const i32 start = index * PAGE_TOKENS;
        Page page;
        page.lo = (i32)first > start ? (i32)first - start : 0;
        page.hi = position - start < PAGE_TOKENS - 1 ? position - start : PAGE_TOKENS - 1;
        float *const m = team_m[team], *const l = team_l[team];
        const i32 number = page.lo <= page.hi ? page_of(args.step, args.cache, seq, index) : -1;
        const bool missing = page.lo <= page.hi && number < 0;
        // The teams of a wave go together.
        int work = number >= 0;
        if (LANES > TEAM) work |= lane_xor(work, TEAM);
        if (number >= 0) {
            const u64 memory = ((u64)number * args.cache.kv_heads + kv_head) * PAGE_TOKENS;
            page.k = at<const C_T>(args.cache.k) + memory * K_DIM;
            page.v = at<const C_T>(args.cache.v) + memory * V_DIM;
        } else {
            page.lo = PAGE_TOKENS, page.hi = -1, page.k = page.v = nullptr;
        }
        if (work) attend(page, q, weights[team], m, l, sums[team], lane);
        if (!work || missing) {
            // Nothing to see here, or a page that is needed is missing: then the row is NaN.
            for (int h = lane; h < TILE; h += TEAM) {
                m[h] = missing ? 0.0f : -infinity();
                l[h] = missing ? not_a_number() : 0.0f;
            }
            for (int i = lane; i < COLUMNS; i += TEAM) sums[team][i] = 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int i = thread + n * THREADS;
            if (i >= COLUMNS) continue;
            const int h = i / V_DIM;
            float top = -infinity();
#pragma unroll
            for (int t = 0; t < TEAMS; t++) top = fmaxf(top, team_m[t][h]);
            float l_sum = 0.0f, a_sum = 0.0f;
#pragma unroll
            for (int t = 0; t < TEAMS; t++) {
                const float f = factor(team_m[t][h], top);
                l_sum = fmaf(f, team_l[t][h], l_sum);
                a_sum = fmaf(f, sums[t][i], a_sum);
            }
            state[n].merge(top, l_sum, a_sum);
        }
    }

    if (args.splits > 0 && chunks > 1) {
        constexpr u64 PARTIAL = COLUMNS + 2 * TILE;
        u32 *const counter = at<u32>(args.scratch) + item;
        float *const partials = at<float>(args.scratch) + COUNTERS + (u64)item * args.splits * PARTIAL;
        float *const own = partials + blockIdx.y * PARTIAL;
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int i = thread + n * THREADS;
            if (i >= COLUMNS) continue;
            own[i] = state[n].a;
            if (i % V_DIM == 0) own[COLUMNS + i / V_DIM] = state[n].m, own[COLUMNS + TILE + i / V_DIM] = state[n].l;
        }
        __threadfence();
        __syncthreads();
        if (thread == 0) arrived = atomicAdd(counter, 1u);
        __syncthreads();
        if (arrived != chunks - 1) return;
        // The last: every other block's sums are in memory.
        __threadfence();
        if (thread == 0) *counter = 0;
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) state[n] = {-infinity(), 0.0f, 0.0f};
        for (u32 c = 0; c < chunks; c += BATCH) {
            float m[BATCH][PER_THREAD], l[BATCH][PER_THREAD], a[BATCH][PER_THREAD];
#pragma unroll
            for (int b = 0; b < BATCH; b++)
#pragma unroll
                for (int n = 0; n < PER_THREAD; n++) {
                    const int i = thread + n * THREADS;
                    const bool valid = i < COLUMNS && c + b < chunks;
                    // Volatile: another block wrote them, and a cache of this one may hold what was there before.
                    const volatile float *const from = partials + (u64)(c + b) * PARTIAL;
                    m[b][n] = valid ? from[COLUMNS + i / V_DIM] : -infinity();
                    l[b][n] = valid ? from[COLUMNS + TILE + i / V_DIM] : 0.0f;
                    a[b][n] = valid ? from[i] : 0.0f;
                }
#pragma unroll
            for (int b = 0; b < BATCH; b++)
#pragma unroll
                for (int n = 0; n < PER_THREAD; n++) state[n].merge(m[b][n], l[b][n], a[b][n]);
        }
    }
#pragma unroll
    for (int n = 0; n < PER_THREAD; n++) {
        const int i = thread + n * THREADS;
        if (i < heads * V_DIM) y[i] = from_f32<Y_T>(state[n].a / state[n].l);
    }
}
