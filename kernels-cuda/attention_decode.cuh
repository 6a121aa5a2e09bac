// What a warp of attention_decode.cu does: it copies keys and values, and adds them to its part of a chunk.
//
// The copies of TOKENS positions into shared memory all start at once, and those of the next positions as soon as there
// is room: the keys' when scores are made of the last ones, the values' when these are summed. A lane copies the pieces
// of 16 bytes that itself needs for the matrix units and no other lane does, so nothing waits for a barrier. Which
// element of a head is which index of a product is free, as long as both factors agree:
// - scores: queries are A (16 heads), keys are B. Lane (g, c), that is 4 g + c, has position g of eight and piece c of
//   four; the eight elements of a piece are the pairs that it has of two products of 16.
// - values: they are A (16 elements of a head), exponentials are B (positions by 8 heads). Lane (g, c) has the
//   positions of which it has scores, 2 c and 2 c + 1 of eight, and piece g of eight. Pairs of positions are made of
//   two rows.
//
// attention_decode.cu says what the defines are.
#pragma once
#include "common.cuh"

static_assert(LANES == 32, "the matrix units of 32 lanes");
static_assert(K_DIM % 8 == 0 && V_DIM % 8 == 0, "pieces of eight elements");

constexpr int THREADS = 32 * WARPS;
constexpr int EIGHTS = TOKENS / 8;           // eights of positions
constexpr int HALVES = (TILE + 7) / 8;       // eights of heads
constexpr int K_PIECES = K_DIM / 8;          // of 16 bytes
constexpr int K_FOURS = (K_PIECES + 3) / 4;  // pieces of a lane, of a key
constexpr int V_PIECES = V_DIM / 8;
constexpr int V_EIGHTS = (V_PIECES + 7) / 8; // pieces of a lane, of a value
constexpr int Q_WORDS = K_FOURS * 2 * 32 * 2 * HALVES;

// The dynamic shared memory: for each warp its keys, then its values, as pieces by lane. When a chunk is done its sums
// take their place, in rows with four floats more, so that the heads of a warp lie in different banks.
constexpr int KEY_BYTES = EIGHTS * K_FOURS * 32 * 16;
constexpr int VALUE_BYTES = EIGHTS * 2 * V_EIGHTS * 32 * 16;
constexpr int WARP_BYTES = KEY_BYTES + VALUE_BYTES;
constexpr int SUM_ROW = V_DIM + 4;
static_assert(WARP_BYTES * WARPS == SHARED_BYTES, "the shared memory differs from the host's");
static_assert(TILE * SUM_ROW * 4 <= WARP_BYTES, "no room for a warp's sums");

// Starts to copy a piece.
DEVICE void copy_piece(u8 *to, const u8 *from) {
    if constexpr (ALIGNED) {
        copy_async16(shared_address(to), from, true);
    } else {
        for (int i = 0; i < 8; i++) ((C_T *)to)[i] = ((const C_T *)from)[i];
    }
}

// Positions lo..=hi, of TOKENS that a warp takes at a time, and their page: -1 where nothing is seen, or it is missing.
struct Part {
    i32 lo, hi, page;
    // In place of a position that is not seen a lane reads one that is: what lies there may be no number.
    DEVICE u32 seen(int token) const { return token < lo ? lo : token > hi ? hi : token; }

    // Starts to copy a lane's pieces of a row of PIECES: `mine` and every STRIDEth from there on, and beyond the end of
    // the row its last. Offsets that are constants need no registers.
    template <int PIECES, int STRIDE> DEVICE static void copy_row(u8 *own, const u8 *row, u32 mine) {
        constexpr int COUNT = (PIECES + STRIDE - 1) / STRIDE;
        const u8 *const from = row + mine * 16;
#pragma unroll
        for (int p = 0; p < COUNT; p++) {
            const bool past = PIECES % STRIDE != 0 && p == COUNT - 1 && p * STRIDE + mine >= PIECES;
            copy_piece(own + p * 512, past ? row + (PIECES - 1) * 16 : from + p * STRIDE * 16);
        }
    }
    // Starts to copy the keys to `own`, a lane's first piece. They lie at `memory` rows of the cache.
    DEVICE void copy_keys(u8 *own, u64 cache, u64 memory, int lane) const {
        if (page >= 0) {
            const u8 *const keys = at<const u8>(cache) + memory * (K_DIM * 2);
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                copy_row<K_PIECES, 4>(own + j * K_FOURS * 512, keys + seen(j * 8 + lane / 4) * (K_DIM * 2), lane % 4);
        }
        copy_async_commit();
    }
    DEVICE void copy_values(u8 *own, u64 cache, u64 memory, int lane) const {
        if (page >= 0) {
            const u8 *const values = at<const u8>(cache) + memory * (V_DIM * 2);
#pragma unroll
            for (int j = 0; j < EIGHTS * 2; j++) {
                const int token = j / 2 * 8 + lane % 4 * 2 + j % 2;
                copy_row<V_PIECES, 8>(own + j * V_EIGHTS * 512, values + seen(token) * (V_DIM * 2), lane / 4);
            }
        }
        copy_async_commit();
    }
};

// What a factor 2^(score - largest) is for a part whose largest score is `m`: none for a part without positions.
DEVICE float factor(float m, float top) { return m == -infinity() ? 0.0f : exp2_f32(m - top); }

// The softmax over a warp's positions. Lane (g, c) has the largest score of heads g and g + 8, and its own share of
// their sums; of the values, elements 8 g + 2 i (in 0 and 1) and the next (in 2 and 3) of each 64, for heads 2 c and
// 2 c + 1 of each eight.
struct WarpState {
    float most[HALVES];
    float sum[HALVES];
    float out[V_EIGHTS][4][HALVES][4];

    DEVICE void clear() {
#pragma unroll
        for (int h = 0; h < HALVES; h++) most[h] = -infinity(), sum[h] = 0.0f;
#pragma unroll
        for (int p = 0; p < V_EIGHTS; p++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int h = 0; h < HALVES; h++)
#pragma unroll
                    for (int e = 0; e < 4; e++) out[p][i][h][e] = 0.0f;
    }

    // The scores of positions, times `scale`: of heads g and g + 8, positions 2 c and 2 c + 1 of each eight.
    DEVICE static void scores_of(float (&score)[EIGHTS][4], const u8 *own, const u32 *q, int lane) {
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[j][i] = 0.0f;
#pragma unroll
        for (int p = 0; p < K_FOURS; p++) {
            // Zeros of q beyond the head must not meet what is no number.
            const bool past = K_PIECES % 4 != 0 && p * 4 + lane % 4 >= K_PIECES;
            uint4 k[EIGHTS];
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                k[j] = *(const uint4 *)(own + (j * K_FOURS + p) * 512);
                if (past) k[j] = make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 a[4] = {0, 0, 0, 0};
                const u32 *const from = q + ((p * 2 + i) * 32 + lane) * 2 * HALVES;
                if constexpr (HALVES == 1) {
                    const uint2 x = *(const uint2 *)from;
                    a[0] = x.x, a[2] = x.y;
                } else {
                    const uint4 x = *(const uint4 *)from;
                    a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w;
                }
#pragma unroll
                for (int j = 0; j < EIGHTS; j++)
                    mma_16x8x16<C_T>(score[j], a[0], a[1], a[2], a[3], i ? k[j].z : k[j].x, i ? k[j].w : k[j].y);
            }
        }
    }

    // Adds positions lo..=hi to the softmax: from scores to weights, as the matrix units take them.
    DEVICE void weights_of(u32 (&weight)[HALVES][EIGHTS], const float (&score)[EIGHTS][4], i32 lo, i32 hi, float scale,
                           int lane) {
        const int c = lane % 4;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            float x[EIGHTS][2];
            float top = most[h];
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int token = j * 8 + c * 2 + e;
                    x[j][e] = token >= lo && token <= hi ? score[j][2 * h + e] * scale : -infinity();
                    top = fmaxf(top, x[j][e]);
                }
            top = fmaxf(top, lane_xor(top, 1));
            top = fmaxf(top, lane_xor(top, 2));
            const float base = top == -infinity() ? 0.0f : top;
            const float keep = factor(most[h], top);
            most[h] = top;
            sum[h] *= keep;
            // The factors of heads 2 c and 2 c + 1: any lane of theirs has them.
            const float keep0 = lane_get(keep, c * 8), keep1 = lane_get(keep, c * 8 + 4);
#pragma unroll
            for (int p = 0; p < V_EIGHTS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) out[p][i][h][e] *= e % 2 ? keep1 : keep0;
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                x[j][0] = exp2_f32(x[j][0] - base), x[j][1] = exp2_f32(x[j][1] - base);
                sum[h] += x[j][0] + x[j][1];
                weight[h][j] = pack2<C_T>(x[j][0], x[j][1]);
            }
        }
    }

    // Adds the values by their weights.
    DEVICE void add_values(const u32 (&weight)[HALVES][EIGHTS], const u8 *own) {
#pragma unroll
        for (int j = 0; j < EIGHTS; j += 2)
#pragma unroll
            for (int p = 0; p < V_EIGHTS; p++) {
                u32 v[4][4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint4 x = *(const uint4 *)(own + ((j * 2 + e) * V_EIGHTS + p) * 512);
                    v[e][0] = x.x, v[e][1] = x.y, v[e][2] = x.z, v[e][3] = x.w;
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // Elements 2 i and 2 i + 1 of a piece, each of two neighbouring positions.
                    const u32 a0 = permute_bytes(v[0][i], v[1][i], 0x5410);
                    const u32 a1 = permute_bytes(v[0][i], v[1][i], 0x7632);
                    const u32 a2 = permute_bytes(v[2][i], v[3][i], 0x5410);
                    const u32 a3 = permute_bytes(v[2][i], v[3][i], 0x7632);
#pragma unroll
                    for (int h = 0; h < HALVES; h++)
                        mma_16x8x16<C_T>(out[p][i][h], a0, a1, a2, a3, weight[h][j], weight[h][j + 1]);
                }
            }
    }

    // Leaves it in shared memory: `m` and `l` of TILE heads, `sums` of as many rows of SUM_ROW.
    DEVICE void leave(float *m, float *l, float *sums, int lane) {
        const int g = lane / 4, c = lane % 4;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            float total = sum[h];
            total += lane_xor(total, 1);
            total += lane_xor(total, 2);
            if (c == 0 && h * 8 + g < TILE) m[h * 8 + g] = most[h], l[h * 8 + g] = total;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int head = h * 8 + c * 2 + e;
#pragma unroll
                for (int p = 0; p < V_EIGHTS; p++) {
                    if (head >= TILE || p * 8 + g >= V_PIECES) continue;
                    float *const to = sums + head * SUM_ROW + (p * 8 + g) * 8;
#pragma unroll
                    for (int i = 0; i < 4; i += 2)
                        *(float4 *)(to + 2 * i) = make_float4(out[p][i][h][e], out[p][i][h][e + 2],
                                                              out[p][i + 1][h][e], out[p][i + 1][h][e + 2]);
                }
            }
        }
    }
};

// q's heads as matrix units take them: for each 16 elements of a head, by lane.
DEVICE void stage_queries(u32 *q, const X_T *from, int heads) {
    constexpr int WORDS = K_FOURS * 16;
#pragma unroll
    for (int n = 0; n < (Q_WORDS + THREADS - 1) / THREADS; n++) {
        const int i = n * THREADS + threadIdx.x, h = i / WORDS, at = i % WORDS * 2;
        if (Q_WORDS % THREADS != 0 && i >= Q_WORDS) break;
        u32 pair = 0;
        if (h < heads && at < K_DIM) pair = pack2<C_T>(to_f32(from[h * K_DIM + at]), to_f32(from[h * K_DIM + at + 1]));
        const int product = at / 32 * 2 + at % 8 / 4, lane = h % 8 * 4 + at % 32 / 8;
        q[((product * 32 + lane) * 2 + at % 4 / 2) * HALVES + h / 8] = pair;
    }
}
