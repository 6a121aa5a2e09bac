// Tiles of keys and of values on their way from the pages, through registers, to shared memory, for attention_mma.hip, whose
// defines these are.
#pragma once
#include "attention.cuh"
#include "matrix.h"

constexpr int THREADS = LANES * WAVES;
constexpr int QUERIES = SIDE * QT * WAVES;
constexpr int PAGES = (TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS;
constexpr int K_STEPS = (K_DIM + DEPTH - 1) / DEPTH;
constexpr int K_UNITS = K_DIM / UNIT;
constexpr int T_TILES = TOKENS / SIDE;
constexpr int T_STEPS = TOKENS / DEPTH;
constexpr int V_TILES = V_DIM / SIDE;
// Units of a row in shared memory: an odd number, so that eight rows at one column lie in different banks.
constexpr int K_ROW = K_STEPS * STEP_UNITS + 1;
constexpr int V_ROW = TOKENS / UNIT + 1;
// A thread turns so many positions by eight elements of the values: half a unit where whole ones are too few for all.
constexpr int PIECE = TOKENS * V_DIM / (UNIT * UNIT) >= THREADS ? UNIT : UNIT / 2;
constexpr int V_PIECES = TOKENS / PIECE;
// Units of keys and pieces of values that a thread takes.
constexpr int K_COPIES = (TOKENS * K_UNITS + THREADS - 1) / THREADS;
constexpr int V_COPIES = (V_PIECES * (V_DIM / UNIT) + THREADS - 1) / THREADS;

// A tile of positions of a sequence.
struct Tile {
    i32 start;
    i32 page[PAGES]; // -1 for none
    DEVICE void find(const Args &args, i32 seq, i32 first) {
        start = first;
#pragma unroll
        for (int i = 0; i < PAGES; i++)
            page[i] = uniform(page_of(args.step, args.cache, seq, (u32)first / PAGE_TOKENS + i));
    }
    DEVICE bool whole() const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < PAGES; i++) all = all & (page[i] >= 0);
        return all;
    }
    DEVICE i32 page_at(u32 token) const { return PAGES == 1 || token < PAGE_TOKENS ? page[0] : page[PAGES - 1]; }
    // Elements of a position; those of some page where it has none. What depends on the lane is an offset of 32 bits.
    template <int DIM>
    DEVICE const C_T *row(u64 memory, const Args &args, u32 kv_head, u32 token, u32 element) const {
        u64 from[PAGES];
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            u64 head = (u64)(page[i] >= 0 ? page[i] : 0) * args.cache.kv_heads + kv_head;
            from[i] = memory + head * (PAGE_TOKENS * DIM * sizeof(C_T));
        }
        u32 within = TOKENS < PAGE_TOKENS ? (u32)start % PAGE_TOKENS + token : token % PAGE_TOKENS;
        const u8 *first = at<const u8>(PAGES == 1 || token < PAGE_TOKENS ? from[0] : from[PAGES - 1]);
        return (const C_T *)(first + (u32)((within * DIM + element) * sizeof(C_T)));
    }
};

// Keys on their way. What no query sees is masked later, whatever it is.
struct Keys {
    Unit unit[K_COPIES];
    DEVICE void load(const Tile &tile, const Args &args, u32 kv_head) {
#pragma unroll
        for (int i = 0; i < K_COPIES; i++) {
            u32 n = i * THREADS + threadIdx.x;
            if (TOKENS * K_UNITS % THREADS != 0 && n >= TOKENS * K_UNITS) n = 0;
            unit[i] = load_unit(tile.row<K_DIM>(args.cache.k, args, kv_head, n / K_UNITS, n % K_UNITS * UNIT), ALIGNED);
        }
    }
    DEVICE void store(Unit *keys) const {
#pragma unroll
        for (int i = 0; i < K_COPIES; i++) {
            u32 n = i * THREADS + threadIdx.x;
            if (TOKENS * K_UNITS % THREADS != 0 && n >= TOKENS * K_UNITS) break;
            keys[n / K_UNITS * K_ROW + n % K_UNITS] = unit[i];
        }
    }
};

struct alignas(2 * PIECE) Piece {
    u32 word[PIECE / 2];
};

// Values on their way: a thread has PIECE positions, neighbours in shared memory, of eight elements.
struct Values {
    Unit unit[V_COPIES][PIECE];
    // The first position of a piece. The others lie behind it, of the same page, at `turned_column(j)`.
    static DEVICE u32 token(u32 n) { return turned_column(n % V_PIECES * PIECE); }
    DEVICE void load(const Tile &tile, const Args &args, u32 kv_head) {
#pragma unroll
        for (int i = 0; i < V_COPIES; i++) {
            u32 n = i * THREADS + threadIdx.x;
            if (n >= V_PIECES * (V_DIM / UNIT)) n = 0;
            const C_T *from = tile.row<V_DIM>(args.cache.v, args, kv_head, token(n), n / V_PIECES * UNIT);
#pragma unroll
            for (int j = 0; j < PIECE; j++) unit[i][j] = load_unit(from + turned_column(j) * V_DIM, ALIGNED);
        }
    }
    // Positions outside lo..=hi, and those of missing pages, become zeros: a weight of zero must not meet a NaN.
    DEVICE void store(Piece *values, const Tile &tile, i32 lo, i32 hi) {
        const bool all = (tile.start >= lo) & (tile.start + TOKENS - 1 <= hi) & tile.whole();
#pragma unroll
        for (int i = 0; i < V_COPIES; i++) {
            u32 n = i * THREADS + threadIdx.x;
            if (n >= V_PIECES * (V_DIM / UNIT)) break;
            if (!all) {
                const i32 first = tile.start + (i32)token(n);
                const bool there = tile.page_at(token(n)) >= 0;
#pragma unroll
                for (int j = 0; j < PIECE; j++) {
                    const i32 position = first + (i32)turned_column(j);
                    const bool valid = there && position >= lo && position <= hi;
#pragma unroll
                    for (int k = 0; k < 4; k++) unit[i][j].word[k] = valid ? unit[i][j].word[k] : 0;
                }
            }
#pragma unroll
            for (int e = 0; e < UNIT; e++) {
                Piece piece;
#pragma unroll
                for (int j = 0; j < PIECE; j += 2)
                    piece.word[j / 2] = __builtin_amdgcn_perm(unit[i][j + 1].word[e / 2], unit[i][j].word[e / 2],
                                                              e % 2 ? 0x07060302u : 0x05040100u);
                values[(n / V_PIECES * UNIT + e) * (V_ROW * UNIT / PIECE) + n % V_PIECES] = piece;
            }
        }
    }
};
