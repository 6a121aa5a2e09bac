// Few rows of x: every weight is read once, by the wave that sums its row, in f32.
//
// Defines, beside those of matmul.cuh: ROWS, rows of x that a block takes (1, 2, 4, 8); WROWS, rows of a matrix that a
// wave takes; FAST, whether k is a multiple of CHUNK.
//
// A lane takes chunks `lane, lane + LANES, ...` of a row in order, and sums the codes of a group before its scale
// multiplies them; then the lanes are summed. That order is the same whatever ROWS and WROWS are, so all
// agree to the last bit.
#include "matmul.cuh"

#define WAVES (256 / LANES)
#define THREADS 256
// (row of a matrix, matrix) pairs of a wave.
#define LINES (WROWS * MATRICES)

struct Place {
    u32 lane;
    u32 column; // first row of the matrices that this wave takes
    u32 row;    // first row of x
};

DEVICE Place place_of(const Args &args, u32 block) {
    // Blocks of the same weights are neighbours.
    u32 tiles = (args.rows + ROWS - 1) / ROWS;
    u32 wave = threadIdx.x / LANES;
    return {threadIdx.x % LANES, (block / tiles * WAVES + wave) * WROWS, block % tiles * ROWS};
}

// Sums over the lanes, and writes.
DEVICE void finish_all(const Args &args, const Place &place, float (&acc)[LINES][ROWS]) {
#pragma unroll
    for (int i = 0; i < WROWS; i++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum[MATRICES];
#pragma unroll
            for (int m = 0; m < MATRICES; m++) sum[m] = sum_lanes(acc[i * MATRICES + m][r]);
            bool mine = place.lane == (i * ROWS + r) % LANES;
            if (mine && place.column + i < args.n && place.row + r < args.rows)
                finish(args, place.row + r, place.column + i, sum);
        }
    }
}

#if FAST

// Codes as they lie within a word are multiplied as floats: the bits of an integer c << p, below 2^24, are those of
// the float c * 2^(p - 149) (a subnormal number mostly, at full speed and exact). The staged x makes up for the factor,
// all but UNIT = 2^-60, which keeps both ends of the range of f32 far away; the scale of the group takes that.
// Small floats lie on the same scale: their bits below the sign, shifted, are the value times a power of two.
#define STAGED_SCALE (ENC != 0)
#define IS_E2M1 (ENC == 3 && !ELEMENT)
#define IS_E4M3 (ENC == 3 && ELEMENT)
// E2M1 is looked up to bytes: twice the value, plus 12.
#define RAW_BITS (IS_E2M1 ? 8 : BITS)
// Whether sums of x per group are wanted: for a bias or a centre.
#define SUMS (ENC == 1 || ENC == 2 || IS_E2M1)

// Where in a float the code of element `j` lies.
DEVICE int raw_place(int j) {
    int first = j * RAW_BITS % 32, end = first + RAW_BITS;
    return end <= 24 ? first : end == 32 ? 0 : end < 32 ? first - 8 : first - 16;
}

DEVICE float stage_factor(int j) {
    if (!STAGED_SCALE) return 1.0f;
    return power_of_two(IS_E4M3 ? 60 : 89 - raw_place(j));
}

// Element `j` of a chunk, times what `stage_factor` says.
DEVICE float raw_of(const u32 (&word)[WORDS], int j) {
#if ENC == 0
    return half_of<W_T>(word[j * sizeof(W_T) / 4], j % 2);
#else
    if (IS_E4M3) {
        // The sign stays on top, the rest moves down four bits.
        int up = (int)(word[j / 4 % WORDS] << (24 - j % 4 * 8));
        return __uint_as_float((u32)(up >> 4) & 0x87f00000u);
    }
    u32 low, high;
    if (IS_E2M1) {
        low = high = e2m1_bytes(word[j / 8], j / 4 % 2 * 4);
    } else {
        int at = j * BITS / 32;
        low = word[at];
        high = word[(at + 1) % WORDS];
    }
    int first = j * RAW_BITS % 32, end = first + RAW_BITS;
    if (end == 32) return __uint_as_float(low >> (32 - RAW_BITS));
    u32 bits = end <= 24 ? low : end < 32 ? low >> 8 : low >> 16 | high << 16;
    return __uint_as_float(bits & ((1u << RAW_BITS) - 1) << raw_place(j));
#endif
}

// The scales that raw sums want.
DEVICE Scales raw_scales(GroupBits bits) {
    Scales s = scales_of(bits);
    if (ENC == 2 && !MINIMA) s.bias = s.scale * -(float)(1 << (BITS - 1));
    if (IS_E2M1) {
        s.bias = -6.0f * s.scale;
        s.scale *= 0.5f;
    }
    s.scale *= power_of_two(60);
    return s;
}

// Not 0 if a chunk has the code of no number.
DEVICE u32 bad_codes(const u32 (&word)[WORDS]) {
    u32 bad = 0;
    if (IS_E4M3) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) bad |= ((word[i] & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    }
    return bad;
}

// Columns of x that are staged at once.
#define SPAN (8192 / ROWS)
// A lane reads a whole chunk; four more floats for each 32 spread lanes over the banks.
#define PADDED(i) ((i) + (i) / 32 * 4)
#define STEP (CHUNK < 8 ? 4 : 8)
#define SHARERS (SUB / STEP > 0 ? SUB / STEP : 1)

struct alignas(16) Float4 {
    float x[4];
};

// STEP elements of x.
DEVICE void load_x(float (&v)[STEP], const X_T *x, bool aligned) {
    if (aligned) {
        const int per = 16 / sizeof(X_T) < STEP ? 16 / sizeof(X_T) : STEP;
#pragma unroll
        for (int i = 0; i < STEP; i += per) {
            u32 word[4];
            if (per * sizeof(X_T) == 16) {
                Words4 w = *(const Words4 *)(x + i);
#pragma unroll
                for (int j = 0; j < 4; j++) word[j] = w.x[j];
            } else {
                Words2 w = *(const Words2 *)(x + i);
                word[0] = w.x[0];
                word[1] = w.x[1];
            }
#pragma unroll
            for (int j = 0; j < per; j++) v[i + j] = half_of<X_T>(word[j * sizeof(X_T) / 4], j % 2);
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEP; i++) v[i] = to_f32(x[i]);
    }
}

#if SUMS
#define SUM_COUNT (SPAN / SUB)
#else
#define SUM_COUNT 1
#endif

// Columns `first..first + count` of the rows of x, made ready for the codes that meet them.
DEVICE void stage(const Args &args, const Place &place, u32 first, u32 count, float (*xs)[PADDED(SPAN)],
                  float (*sums)[SUM_COUNT]) {
    bool aligned = (args.x | (u64)args.k * sizeof(X_T)) % 16 == 0;
    u32 steps = count / STEP;
    for (int r = 0; r < ROWS; r++) {
        bool real = place.row + r < args.rows;
        const X_T *x = at<const X_T>(args.x) + (u64)(real ? place.row + r : 0) * args.k + first;
        for (u32 from = 0; from < steps; from += THREADS) {
            u32 i = (from + threadIdx.x) * STEP;
            bool valid = i < count;
            float v[STEP];
            load_x(v, x + (valid ? i : 0), aligned);
            float sum = 0;
#pragma unroll
            for (int j = 0; j < STEP; j++) {
                if (!real) v[j] = 0;
                sum += v[j];
                // The places repeat with each word or each chunk.
                v[j] *= stage_factor(8 % RAW_BITS == 0 && RAW_BITS >= 4 ? j : (int)(i % CHUNK) + j);
            }
            if (SUMS) {
#pragma unroll
                for (int mask = 1; mask < SHARERS; mask *= 2) sum += lane_xor(sum, mask);
                if (valid && i % SUB == 0) sums[r][i / SUB % SUM_COUNT] = sum;
            }
            if (valid) {
#pragma unroll
                for (int j = 0; j < STEP; j += 4)
                    *(Float4 *)&xs[r][PADDED(i) + j] = Float4{{v[j], v[j + 1], v[j + 2], v[j + 3]}};
            }
        }
    }
}

// Chunks of a line that are loaded before the first is used: as many as registers hold.
#define IN_FLIGHT (ROWS > 2 || WORDS > 4 || SUB < CHUNK ? 4 : 8)
#define AHEAD (ROWS > 4 || IN_FLIGHT <= LINES ? 1 : IN_FLIGHT / LINES)

// Blocks that a compute unit is to hold: what bounds the registers.
#define MIN_BLOCKS (IS_E2M1 && ROWS > 2 ? 1 : 2)
#define BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS)

DEVICE void gemv(const Args &args, u32 block) {
    __shared__ __align__(16) float xs[ROWS][PADDED(SPAN)];
    __shared__ float sums[ROWS][SUM_COUNT];
    Place place = place_of(args, block);
    u32 chunks = args.k / CHUNK;
    u32 column[WROWS];
#pragma unroll
    for (int i = 0; i < WROWS; i++) column[i] = place.column + i < args.n ? place.column + i : args.n - 1;
    float acc[LINES][ROWS];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[l][r] = 0;
    }
    u32 word[AHEAD][LINES][WORDS];
    GroupBits bits[AHEAD][LINES][CHUNK / SUB];
    auto fetch = [&](u32 c) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            u32 chunk = c + a * LANES;
            if (chunk >= chunks) break;
#pragma unroll
            for (int l = 0; l < LINES; l++) {
                const Weight &w = args.w[l % MATRICES];
                load_words(word[a][l], w, column[l / MATRICES], args.k, chunk);
#pragma unroll
                for (int g = 0; g < CHUNK / SUB; g++)
                    bits[a][l][g] = load_group(w, column[l / MATRICES], args.k, (chunk * CHUNK + g * SUB) / GROUP);
            }
        }
    };
    // The first weights are on their way before the kernel ahead has made x.
    fetch(place.lane);
    bool fetched = true;
    after_previous();
    for (u32 first = 0; first < args.k; first += SPAN) {
        u32 count = args.k - first < SPAN ? args.k - first : SPAN;
        if (first > 0) __syncthreads();
        stage(args, place, first, count, xs, sums);
        __syncthreads();
        u32 origin = first / CHUNK, end = origin + count / CHUNK;
        for (u32 c = origin + (place.lane + LANES - origin % LANES) % LANES; c < end; c += AHEAD * LANES) {
            if (!fetched) fetch(c);
            fetched = false;
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                u32 chunk = c + a * LANES;
                if (chunk >= end) break;
                u32 local = (chunk - origin) * CHUNK;
#pragma unroll
                for (int g = 0; g < CHUNK / SUB; g++) {
                    float part[LINES][ROWS];
#pragma unroll
                    for (int l = 0; l < LINES; l++) {
#pragma unroll
                        for (int r = 0; r < ROWS; r++) part[l][r] = ENC ? 0.0f : acc[l][r];
                    }
#pragma unroll
                    for (int j = 0; j < SUB; j += 4) {
                        Float4 x[ROWS];
#pragma unroll
                        for (int r = 0; r < ROWS; r++)
                            x[r] = *(const Float4 *)&xs[r][PADDED(local) + g * SUB + j];
#pragma unroll
                        for (int l = 0; l < LINES; l++) {
#pragma unroll
                            for (int q = 0; q < 4; q++) {
                                float v = raw_of(word[a][l], g * SUB + j + q);
#pragma unroll
                                for (int r = 0; r < ROWS; r++) part[l][r] = fmaf(v, x[r].x[q], part[l][r]);
                            }
                        }
                    }
#pragma unroll
                    for (int l = 0; l < LINES; l++) {
                        Scales s = raw_scales(bits[a][l][g]);
                        if (bad_codes(word[a][l])) s.scale = not_a_number();
#pragma unroll
                        for (int r = 0; r < ROWS; r++) {
                            if (!ENC) {
                                acc[l][r] = part[l][r];
                            } else {
                                acc[l][r] = fmaf(s.scale, part[l][r], acc[l][r]);
                                if (SUMS) acc[l][r] = fmaf(s.bias, sums[r][(local / SUB + g) % SUM_COUNT], acc[l][r]);
                            }
                        }
                    }
                }
            }
        }
    }
    finish_all(args, place, acc);
}

#else // Rows of any length, an element at a time.

#define BOUNDS __launch_bounds__(THREADS)

DEVICE void gemv(const Args &args, u32 block) {
    after_previous();
    Place place = place_of(args, block);
    float acc[LINES][ROWS];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        u32 column = place.column + l / MATRICES;
        if (column >= args.n) column = args.n - 1;
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[l][r] = 0;
        for (u32 i = place.lane; i < args.k; i += LANES) {
            float w = weight_at(args.w[l % MATRICES], column, args.k, i);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                u64 row = place.row + r < args.rows ? place.row + r : place.row;
                acc[l][r] = fmaf(w, to_f32(at<const X_T>(args.x)[row * args.k + i]), acc[l][r]);
            }
        }
    }
    finish_all(args, place, acc);
}

#endif

#if JOINED
extern "C" __global__ void BOUNDS matmul_gemv(const Joined all) {
    let_next_begin();
    u32 block = blockIdx.x;
    Args args = product_of<WAVES * WROWS>(all, (all.rows + ROWS - 1) / ROWS, block);
    gemv(args, block);
}
#else
extern "C" __global__ void BOUNDS matmul_gemv(const Args args) {
    let_next_begin();
    gemv(args, blockIdx.x);
}
#endif
