// Softmax attention over page tables on matrix units: the kernel of prompts.
//
// A block takes QUERIES queries of one kv head: queries are rows times the GROUP heads that share it, so that few rows
// fill a block too. These rows may belong to several sequences: the gridDim.y blocks of the same queries share the
// sequences out, and each goes over one of its own after another, the queries of the others masked. Keys and values come
// in tiles of TOKENS positions through registers: the values of a tile are on their way while scores are computed, and
// the keys of the next one while values are multiplied. The softmax is online, in f32, to base 2.
//
// Products are turned, K Q^T and V^T P^T: a lane has one query throughout, what it needs of the others of its column are
// a maximum and a sum, and a product of the first kind becomes an operand of the second where it is (matrix.h, `turn`).
// Values lie in shared memory by columns for that, in the order that `turn` gives to positions.
//
// q is rounded to the cache's type, which loses nothing where it has that type, nor in f16 of a bf16 unless that is above
// 65504 or below 2^-14. So are the exponentials before they multiply the values. Sums are f32. `scale` must be above zero.
//
// X_T, Y_T: types of q and of the output. C_T: f16 or bf16, of the cache. K_DIM, V_DIM: elements of a head, multiples of
// 16. GROUP: query heads a kv head. WAVES: of a block. QT: tiles of 16 queries of a wave. TOKENS: 16, 32 or 64, a multiple
// of DEPTH. Q_SHARED: 1 where registers have no room for the queries. ALIGNED: 1 where the cache's keys and values begin
// at multiples of 16 bytes, and the output at one of 4.
#include "attention_tiles.h"
#include "vectors.cuh"

// Fragments that are read together. Wide heads leave few registers for them.
constexpr int AT_ONCE = K_DIM + V_DIM > 256 ? 2 : 4;

// What this lane has of row `row` at step `step` of rows in shared memory.
DEVICE Fragment<C_T> load_fragment(const Unit *row, int step) {
    Fragment<C_T> fragment;
#pragma unroll
    for (int u = 0; u < UNITS; u++) fragment.unit[u] = row[step * STEP_UNITS + lane_unit() + u];
    return fragment;
}

template <typename T> DEVICE void store_pair(T *y, float a, float b) {
    if constexpr (sizeof(T) == 4 || !ALIGNED) {
        y[0] = from_f32<T>(a), y[1] = from_f32<T>(b);
    } else {
        *(u32 *)y = pack2<T>(a, b);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_mma(const Args args) {
    begin();
    __shared__ Unit keys[TOKENS * K_ROW];
    __shared__ Unit values[V_DIM * V_ROW];
    __shared__ Unit queries[Q_SHARED ? QUERIES * K_ROW : 1];
    // Of the rows that the block's queries belong to.
    __shared__ i32 positions[QUERIES];
    __shared__ i32 seqs[QUERIES];

    const u32 wave = threadIdx.x / LANES;
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
    // Keys have zeros behind them where a step goes on.
    for (u32 i = threadIdx.x; i < TOKENS * (K_ROW - 1 - K_UNITS); i += THREADS) {
        constexpr int REST = K_ROW - 1 - K_UNITS > 0 ? K_ROW - 1 - K_UNITS : 1;
        keys[i / REST * K_ROW + K_UNITS + i % REST] = Unit{{0, 0, 0, 0}};
    }

    // `row` is counted from the block's first.
    const auto query_of = [&](int qt) { return first_query + (wave * QT + qt) * SIDE + lane_row(); };
    const auto head_of = [&](u64 query) { return query / GROUP * heads + kv_head * GROUP + query % GROUP; };
    u32 row[QT];
    bool mine[QT];
    Fragment<C_T> q[Q_SHARED ? 1 : QT][Q_SHARED ? 1 : K_STEPS];
    const bool aligned = args.q % 16 == 0;
#pragma unroll
    for (int qt = 0; qt < QT; qt++) {
        const u64 query = query_of(qt);
        const bool real = query < all; // else `row` is beyond the block's last
        mine[qt] = false;
        row[qt] = query / GROUP - first_row;
        const X_T *from = at<const X_T>(args.q) + head_of(real ? query : 0) * K_DIM;
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                const u32 n = k * STEP_UNITS + lane_unit() + u;
                const bool valid = real && n < K_UNITS;
                float x[UNIT];
                load8(from + (valid ? n * UNIT : 0), UNIT, aligned, x);
                Unit unit;
#pragma unroll
                for (int i = 0; i < 4; i++) unit.word[i] = valid ? pack2<C_T>(x[2 * i], x[2 * i + 1]) : 0;
                if constexpr (Q_SHARED) queries[((wave * QT + qt) * SIDE + lane_row()) * K_ROW + n] = unit;
                else q[qt][k].unit[u] = unit;
            }
        }
    }
    Sums out[QT][V_TILES];
    // Of the exponent to base 2. `most` is of the scores before it multiplies them.
    const float scale = args.scale * 1.4426950408889634f;
    float most[QT], sum[QT];
#pragma unroll
    for (int qt = 0; qt < QT; qt++) {
        most[qt] = -infinity();
        sum[qt] = 0.0f;
#pragma unroll
        for (int n = 0; n < V_TILES; n++) out[qt][n] = no_sums();
    }
    __syncthreads();

    u32 begin = 0, turns = 0;
    while (begin < count) {
        // The rows begin..end of a sequence, the positions that they see between them, and those that all see.
        const i32 seq = uniform(seqs[begin]);
        u32 end = begin;
        i32 lo = 0x7fffffff, hi = -1, all_lo = 0, all_hi = 0x7fffffff;
        for (; end < count && uniform(seqs[end]) == seq; end++) {
            const i32 position = uniform(positions[end]);
            const i32 first = (u32)position + 1 > args.window ? position + 1 - (i32)args.window : 0;
            if (position >= 0 && first < lo) lo = first;
            if (position > hi) hi = position;
            if (first > all_lo) all_lo = first;
            if (position < all_hi) all_hi = position;
        }
        const bool everyone = begin == 0 && end == count, skipped = turns != blockIdx.y;
        turns = turns + 1 == gridDim.y ? 0 : turns + 1;
        i32 seen_hi[QT];
#pragma unroll
        for (int qt = 0; qt < QT; qt++) {
            const bool of_it = row[qt] >= begin && row[qt] < end;
            seen_hi[qt] = of_it ? positions[row[qt]] : -1;
            if (of_it && !skipped) mine[qt] = true;
        }
        begin = end;
        if (skipped || seq < 0 || (u32)seq >= args.step.seqs || hi < lo) continue;

        Tile tile;
        tile.find(args, seq, lo / TOKENS * TOKENS);
        Keys next;
        next.load(tile, args, kv_head);
        while (true) {
            // All have passed the barrier below since they read keys.
            next.store(keys);
            __syncthreads(); // the keys are there, and the last values are no longer needed
            Values coming;
            coming.load(tile, args, kv_head);

            // One condition rather than several, each with a branch that products would be moved behind, and away from the
            // loads of what they multiply.
            const bool masked = !everyone | (tile.start < all_lo) | (tile.start + TOKENS - 1 > all_hi) | !tile.whole();
            Sums score[QT][T_TILES];
#pragma unroll
            for (int qt = 0; qt < QT; qt++)
#pragma unroll
                for (int n = 0; n < T_TILES; n++) score[qt][n] = no_sums();
#pragma unroll
            for (int k = 0; k < K_STEPS; k++) {
                Fragment<C_T> query[QT];
#pragma unroll
                for (int qt = 0; qt < QT; qt++) {
                    if constexpr (Q_SHARED)
                        query[qt] = load_fragment(queries + ((wave * QT + qt) * SIDE + lane_row()) * K_ROW, k);
                    else query[qt] = q[qt][k];
                }
#pragma unroll
                for (int n = 0; n < T_TILES; n++) {
                    const Fragment<C_T> key = load_fragment(keys + (n * SIDE + lane_row()) * K_ROW, k);
#pragma unroll
                    for (int qt = 0; qt < QT; qt++) multiply<C_T>(score[qt][n], key, query[qt]);
                }
                if ((k + 1) * T_TILES % AT_ONCE == 0) keep_order();
            }

            if (masked) {
#pragma unroll
                for (int qt = 0; qt < QT; qt++) {
                    const i32 back0 = seen_hi[qt] - tile.start - (i32)value_row(0);
#pragma unroll
                    for (int n = 0; n < T_TILES; n++)
#pragma unroll
                        for (int i = 0; i < VALUES; i++) {
                            const i32 back = back0 - (n * SIDE + VALUE_STEP * i);
                            const bool sees = back >= 0 && (u32)back < args.window;
                            // A page that is needed and missing makes the row NaN.
                            const float other = tile.page_at(n * SIDE) < 0 ? not_a_number() : score[qt][n][i];
                            score[qt][n][i] = sees ? other : -infinity();
                        }
                }
            }

#pragma unroll
            for (int qt = 0; qt < QT; qt++) {
                float top = most[qt];
#pragma unroll
                for (int n = 0; n < T_TILES; n++)
#pragma unroll
                    for (int i = 0; i < VALUES; i++) top = fmaxf(top, score[qt][n][i]);
                top = max_column(top);
                const float base = top == -infinity() ? 0.0f : top * scale;
                const float keep = exp2_f32(fmaf(most[qt], scale, -base));
                most[qt] = top;
                sum[qt] *= keep;
#pragma unroll
                for (int n = 0; n < V_TILES; n++) out[qt][n] *= keep;
#pragma unroll
                for (int n = 0; n < T_TILES; n++)
#pragma unroll
                    for (int i = 0; i < VALUES; i++) {
                        const float weight = exp2_f32(fmaf(score[qt][n][i], scale, -base));
                        score[qt][n][i] = weight;
                        sum[qt] += weight;
                    }
            }

            coming.store((Piece *)values, tile, lo, hi);
            __syncthreads(); // the values are there, and the keys are no longer needed
            const bool last = tile.start + TOKENS > hi;
            if (!last) {
                tile.find(args, seq, tile.start + TOKENS);
                next.load(tile, args, kv_head);
            }
#pragma unroll
            for (int k = 0; k < T_STEPS; k++) {
                Fragment<C_T> weights[QT];
#pragma unroll
                for (int qt = 0; qt < QT; qt++) {
                    Sums part[TURNED];
#pragma unroll
                    for (int i = 0; i < TURNED; i++) part[i] = score[qt][k * TURNED + i];
                    weights[qt] = turn<C_T>(part);
                }
#pragma unroll
                for (int n = 0; n < V_TILES; n++) {
                    const Fragment<C_T> value = load_fragment(values + (n * SIDE + lane_row()) * V_ROW, k);
#pragma unroll
                    for (int qt = 0; qt < QT; qt++) multiply<C_T>(out[qt][n], value, weights[qt]);
                    if ((n + 1) % AT_ONCE == 0) keep_order();
                }
            }
            if (last) break;
        }
    }

#pragma unroll
    for (int qt = 0; qt < QT; qt++) {
        const float total = sum_column(sum[qt]);
        const u64 query = query_of(qt);
        Y_T *const y = at<Y_T>(args.y) + head_of(query) * V_DIM + lane_id() / SIDE * VALUES;
#pragma unroll
        for (int n = 0; n < V_TILES; n++) {
            float x[VALUES];
            neighbours(out[qt][n], x);
            if (!mine[qt]) continue;
            // No position seen: 0 / 0, which is NaN.
#pragma unroll
            for (int i = 0; i < VALUES; i += 2) store_pair(y + n * SIDE + i, x[i] / total, x[i + 1] / total);
        }
    }
}
